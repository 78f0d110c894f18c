"""`python -m service --bundles DIR` serves; `python -m service settings` lists the settings in force."""

import argparse
import resource
import signal
import sys
from pathlib import Path

from service import logs
from service.errors import StartupError
from service.serve import serve
from service.settings import Settings, describe, read_settings

OPTIONS = [name for name in Settings.model_fields if name != "api_keys"]  # process lists show the command line


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m service", description=__doc__)
    parser.add_argument(
        "command", nargs="?", choices=["settings"], help="settings: list what is in force, and where it comes from"
    )
    parser.add_argument("--bundles", type=Path, default=Path("bundles"), help="folder of <name>/<version>/ (bundles)")
    for name in OPTIONS:
        field = Settings.model_fields[name]
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=f"{field.description} ({field.default})")
    arguments = parser.parse_args()
    options = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    logs.configure("info")
    if arguments.command == "settings":
        show_settings(options)
        return
    open_all_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while bundles load; process 1 would not hear it else
    try:
        serve(arguments.bundles, read_settings(**options))
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def show_settings(options: dict[str, str]) -> None:
    try:
        print(describe(read_settings(**options), options))
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def open_all_files() -> None:
    """Shells allow 1024 at once unless a program asks for what the system would give; every connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
