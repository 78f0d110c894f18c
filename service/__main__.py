"""`python -m service --bundles DIR` serves; `python -m service settings` lists the settings."""

import argparse
import logging
import sys
from pathlib import Path

import uvicorn

from service.app import create_app
from service.errors import StartupError
from service.infer import Inference
from service.models import load_all
from service.scheduler import Scheduler
from service.settings import Settings, describe, read_settings

log = logging.getLogger("addnorm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["settings"], help="settings: list all with meaning and default")
    parser.add_argument("--bundles", type=Path, default=Path("bundles"), help="folder of <name>/<version>/ (bundles)")
    arguments = parser.parse_args()
    if arguments.command == "settings":
        print(describe())
        return
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        serve(arguments.bundles, read_settings())
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def serve(bundles: Path, settings: Settings) -> None:
    """Loads every bundle, then listens until told to stop. StartupError if a bundle cannot be trusted."""
    logging.getLogger().setLevel(settings.log_level.upper())
    models = load_all(bundles, settings)
    inference = Inference(models, Scheduler(settings.num_lanes, settings.max_queue_tokens), settings)
    log.info("try: %s", curl_line(settings, next(iter(models))[0]))
    uvicorn.run(create_app(inference), host=settings.host, port=settings.port, log_config=None, access_log=False)
    inference.close()


def curl_line(settings: Settings, model: str) -> str:
    """A request to paste into a shell."""
    body = f'{{"model": "{model}", "input_ids": [[1, 3, 4, 5, 2]]}}'
    return f"curl -s localhost:{settings.port}/v1/infer -H 'content-type: application/json' -d '{body}'"


if __name__ == "__main__":
    main()
