"""`addnorm COMMAND`: picks the command, and imports only what that command needs."""

import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

from addnorm.service import VERSION, to_install


class Command(NamedTuple):
    options: str  # module with the function `<command>_parser`, which needs no extra
    module: str  # has a function of the command's name, which takes the arguments
    meaning: str
    extra: str  # of pyproject.toml, with all that the command imports
    cannot_run: int = 1  # exit code


OF_EXPORT, OF_CORPUS, OF_LOAD = (
    "addnorm.export.options",
    "addnorm.corpus.options",
    "addnorm.load.options",
)
OF_SERVICE = "addnorm.service.command"
EXPORT, CORPUS, LOAD, SERVE, SIGN = "export", "corpus", "load", "", "signing"
COMMANDS = {
    "serve": Command(OF_SERVICE, OF_SERVICE, "serve models, or a folder of bundles", SERVE),
    "settings": Command(
        OF_SERVICE, OF_SERVICE, "list the current settings and where each comes from", SERVE
    ),
    "export": Command(
        OF_EXPORT, "addnorm.export.command", "export a model as a certified bundle", EXPORT
    ),
    "verify": Command(
        OF_EXPORT,
        "addnorm.export.command",
        "recompute the certificate of a bundle on this machine",
        EXPORT,
    ),
    "keep": Command(
        OF_EXPORT, "addnorm.export.kept", "export models for `serve` and cache the bundles", EXPORT
    ),
    "sign": Command(OF_SERVICE, OF_SERVICE, "sign a bundle with a key", SIGN),
    "embed": Command(
        OF_CORPUS,
        "addnorm.corpus.embed.embed_command",
        "embed files of texts without a server, into a Parquet file",
        CORPUS,
    ),
    "check": Command(
        OF_CORPUS,
        "addnorm.corpus.check.check_command",
        "compare stored vectors with the vectors served now",
        CORPUS,
        cannot_run=2,  # 1 says that they differ
    ),
    "pin": Command(
        OF_CORPUS,
        "addnorm.corpus.check.check_command",
        "write the bits of a model's known answers, for `check --pin`",
        CORPUS,
        cannot_run=2,
    ),
    "compare": Command(
        OF_CORPUS,
        "addnorm.corpus.compare.compare_command",
        "compare two models, precisions, servers or files of vectors on your texts",
        CORPUS,
        cannot_run=2,
    ),
    "load": Command(
        OF_LOAD, "addnorm.load.command", "load-test a server, or two beside each other", LOAD
    ),
}
USAGE = "\n".join(
    [
        "usage: addnorm COMMAND [OPTIONS]",
        "",
        *(f"  {name:10s}{command.meaning}" for name, command in COMMANDS.items()),
        "",
        "`addnorm COMMAND --help` lists the options of one command.",
        "Example: addnorm serve BAAI/bge-small-en-v1.5",
    ]
)


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command that the first word names. words: the command line's if None."""
    name, *arguments = (sys.argv[1:] if words is None else words) or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
    elif name == "--version":
        print(VERSION)
    elif name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else "`addnorm --help` lists all"
        sys.exit(f"addnorm: there is no command {name!r}: {hint}")
    else:
        if os.getpid() == 1:  # for which the kernel drops SIGTERM while there is no handler
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        _run(name, arguments)


def _run(name: str, arguments: list[str]) -> None:
    """Exits with one line if a package is missing."""
    command = COMMANDS[name]
    try:
        # before its module, which may need packages that are not installed
        getattr(import_module(command.options), f"{name}_parser")().parse_args(arguments)
        getattr(import_module(command.module), name)(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("addnorm"):
            raise
        missing = f"addnorm {name}: the package {error.name} is not installed"
        print(f"{missing}; {to_install(command.extra)}", file=sys.stderr)
        sys.exit(command.cannot_run)


if __name__ == "__main__":
    main()
