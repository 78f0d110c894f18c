"""`python -m service --bundles DIR` serves; `python -m service settings` lists the settings in force."""

import argparse
import resource
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from service import logs, workers
from service.errors import StartupError
from service.serve import check_address, serve
from service.settings import describe, read_settings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument(
        "command", nargs="?", choices=["settings"], help="settings: list what is in force, and where it comes from"
    )
    parser.add_argument("--bundles", type=Path, default=Path("bundles"), help="folder of <name>/<version>/ (bundles)")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes behind the one port; before ADDNORM_WORKERS"
    )
    arguments = parser.parse_args()
    options = {"workers": arguments.workers}
    logs.configure("info")
    if arguments.command == "settings":
        show_settings(options)
        return
    open_all_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while bundles load; process 1 would not hear it else
    try:
        settings = read_settings(**options)
        check_address(settings)
        if settings.workers > 1:
            logs.configure(settings.log_level)
            workers.supervise(partial(serve, arguments.bundles, settings), settings)
        else:
            serve(arguments.bundles, settings)
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def show_settings(options: dict[str, Any]) -> None:
    try:
        print(describe(read_settings(**options), [name for name, value in options.items() if value is not None]))
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def open_all_files() -> None:
    """Shells allow 1024 at once unless a program asks for what the system would give; every connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
