"""The commands `addnorm serve` and `addnorm settings`."""

import argparse
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from addnorm.service.errors import StartupError
from addnorm.service.server import process
from addnorm.service.settings import Settings, describe, read_settings
from addnorm.service.telemetry import logs

OPTIONS = [
    name for name in Settings.model_fields if name != "api_keys"
]  # process lists show the command line


def serve(arguments: Sequence[str]) -> None:
    """Serves until told to stop. Exits with one line and code 1 if it cannot start."""
    parser = _parser(
        "serve", "Serves a folder of bundles.", "addnorm serve --bundles bundles --port 9000"
    )
    parser.add_argument(
        "--bundles",
        type=Path,
        default=Path("bundles"),
        help="folder of <name>/<version>/ (bundles)",
    )
    found = parser.parse_args(arguments)
    open_all_files()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(0)
    )  # while bundles load; process 1 would not hear it else
    try:
        process.serve(found.bundles, read_settings(**_options(found)))
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def settings(arguments: Sequence[str]) -> None:
    """Prints every setting in force, and where it comes from."""
    parser = _parser("settings", "Lists the settings in force.", "addnorm settings --port 9000")
    options = _options(parser.parse_args(arguments))
    try:
        print(describe(read_settings(**options), options))
    except StartupError as error:
        sys.exit(f"addnorm: {error}")


def _parser(command: str, description: str, example: str) -> argparse.ArgumentParser:
    """With every setting as an option."""
    logs.configure("info")
    parser = argparse.ArgumentParser(
        prog=f"addnorm {command}",
        description=f"{description} An option wins over its environment variable ADDNORM_*.",
        epilog=f"Example: {example}",
    )
    for name in OPTIONS:
        field = Settings.model_fields[name]
        meaning = f"{field.description} ({field.default})".replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="X", help=meaning)
    return parser


def _options(found: argparse.Namespace) -> dict[str, str]:
    """Those that were given."""
    return {name: value for name in OPTIONS if (value := getattr(found, name)) is not None}


def open_all_files() -> None:
    """Shells allow 1024 at once unless a program asks for what the system would give; every connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
