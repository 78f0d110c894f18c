"""`python -m service --bundles DIR` serves; `python -m service settings` lists the settings."""

import argparse
import ctypes
import gc
import logging
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

from service import logs
from service.app import create_app
from service.errors import StartupError
from service.infer import Inference
from service.lifecycle import Server
from service.models import load_all
from service.settings import Settings, describe, read_settings

M_ARENA_MAX = -8  # malloc.h
LOOPBACK = ("127.0.0.1", "::1", "localhost")
log = logging.getLogger("addnorm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["settings"], help="settings: list all with meaning and default")
    parser.add_argument("--bundles", type=Path, default=Path("bundles"), help="folder of <name>/<version>/ (bundles)")
    arguments = parser.parse_args()
    if arguments.command == "settings":
        print(describe())
        return
    logs.configure("info")
    share_malloc_arenas()
    open_all_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while bundles load; process 1 would not hear it else
    try:
        settings = read_settings()
        logs.configure(settings.log_level)
        serve(arguments.bundles, settings)
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def share_malloc_arenas() -> None:
    """glibc gives each thread a heap of its own, and what one frees another cannot use: resident memory triples."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def open_all_files() -> None:
    """Shells allow 1024 at once unless a program asks for what the system would give; every connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(bundles: Path, settings: Settings) -> None:
    """Loads every bundle, then listens until told to stop. StartupError if a bundle cannot be trusted."""
    inference = Inference(load_all(bundles, settings), settings)
    edge = create_app(inference)
    if not edge.keys and settings.host not in LOOPBACK:
        log.warning("no API keys: whoever reaches %s may ask; see ADDNORM_API_KEYS_FILE", settings.host)
    server = Server(edge, settings)
    gc.freeze()  # what is loaded stays: the collector need not walk it again
    server.run()
    inference.close()


if __name__ == "__main__":
    main()
