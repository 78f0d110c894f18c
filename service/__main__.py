"""`python -m service --bundles DIR` serves; `python -m service settings` lists the settings."""

import argparse
import gc
import signal
import sys
from pathlib import Path

import uvicorn

from service import logs, memory
from service.app import create_app
from service.errors import StartupError
from service.infer import Inference
from service.lifecycle import Server
from service.models import load_all
from service.settings import Settings, describe, read_settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["settings"], help="settings: list all with meaning and default")
    parser.add_argument("--bundles", type=Path, default=Path("bundles"), help="folder of <name>/<version>/ (bundles)")
    arguments = parser.parse_args()
    if arguments.command == "settings":
        print(describe())
        return
    logs.configure("info")
    memory.share_arenas()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while bundles load; process 1 would not hear it else
    try:
        settings = read_settings()
        logs.configure(settings.log_level)
        serve(arguments.bundles, settings)
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def serve(bundles: Path, settings: Settings) -> None:
    """Loads every bundle, then listens until told to stop. StartupError if a bundle cannot be trusted."""
    inference = Inference(load_all(bundles, settings), settings)
    edge = create_app(inference)
    gc.freeze()  # what is loaded stays: the collector need not walk it again
    config = uvicorn.Config(edge, host=settings.host, port=settings.port, log_config=None, access_log=False)
    Server(edge, config, settings.grace_s).run()
    inference.close()


if __name__ == "__main__":
    main()
