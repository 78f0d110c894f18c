"""The commands `addnorm serve`, `addnorm settings` and `addnorm sign`."""

import argparse
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_SH, flock
from pathlib import Path

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import signature
from addnorm.service.environment import describe, read_settings
from addnorm.service.errors import StartupError
from addnorm.service.server import process
from addnorm.service.settings import Settings, descriptions
from addnorm.service.wire.telemetry import logs

# process lists show the command line, so keys are no option
OPTIONS = [name for name in Settings.model_fields if name != "api_keys"]


def serve(arguments: Sequence[str]) -> None:
    """Serves until a signal ends it. Exits with one line and code 1 if it cannot start."""
    parser = _serve_parser()
    options = parser.parse_args(arguments)
    if options.models and options.bundles:
        parser.error("give either models or --bundles, not both")
    if options.precision and not options.models:
        parser.error(
            "--precision applies only to models on the command line; for a bundle, set it at the"
            " export: `addnorm export --precision`"
        )
    open_standard_files()
    logs.configure("info")  # until the settings are read
    open_all_files()
    # while bundles load; as process 1 it would ignore the signals otherwise
    for number in process.ending_signals():
        signal.signal(number, lambda *_: sys.exit(0))
    # the parent may have blocked them, and threads inherit that
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, *process.ending_signals()))
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # that end a process by default
        signal.signal(number, signal.SIG_IGN)
    with _one_line():
        settings = read_settings(**_set_options(options))
        if not options.models:
            process.serve(options.bundles or Path("bundles"), settings)
            return
        reading, writing = os.pipe()
        with open(reading) as path_lines, open(writing, "w") as listing:
            # A process of its own: what PyTorch takes of memory goes with it. -P: the working
            # folder, which may be a checkpoint, is not searched for modules
            exporter = [sys.executable, "-P", "-m", "addnorm", "keep", *options.models]
            cache = options.kept or where_kept()
            exporter_options = ["--precision", options.precision or "fp32", "--kept", cache]
            command = [*exporter, *exporter_options, "--list", f"/dev/fd/{writing}"]
            if code := subprocess.run(command, pass_fds=[writing], check=False).returncode:
                sys.exit(code)  # it has said why
            listing.close()
            folders = tuple(Path(line) for line in path_lines.read().splitlines())
        hold(folders)
        aliases = {**aliases_of(options.models), **settings.aliases}
        process.serve(folders, settings.model_copy(update={"aliases": aliases}))


def hold(folders: Sequence[Path]) -> list[int]:
    """Keeps bundles from `addnorm keep`, which removes those that a folder's next export replaces:
    while this process lives, or until the returned files are closed."""
    descriptors = [os.open(folder.parent, os.O_RDONLY) for folder in folders]
    for descriptor in descriptors:
        with suppress(OSError):  # not every file system has locks
            flock(descriptor, LOCK_SH)
    return descriptors


def where_kept(home: Callable[[], Path] = Path.home) -> str:
    """The folder that bundles are kept in unless --kept names one. StartupError if there is no
    home."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or home() / ".cache"
    except RuntimeError:  # HOME is not set, and the system's list of users lacks this one
        raise StartupError(
            "this user has no home folder for the cached bundles: choose a folder with --kept DIR"
        ) from None
    return str(Path(caches) / "addnorm")


def aliases_of(models: Sequence[str]) -> dict[str, str]:
    """ORG/NAME -> NAME, the bundle's, for the models of a hub."""
    names = [model.partition("@")[0] for model in models if not Path(model).exists()]
    return {name: name.rpartition("/")[2] for name in names if "/" in name}


def settings(arguments: Sequence[str]) -> None:
    """Prints every setting in force, and where it comes from."""
    parser = _parser("settings", "Lists the current settings.", "addnorm settings --port 9000")
    options = _set_options(parser.parse_args(arguments))
    logs.configure("info")
    with _one_line():
        print(describe(read_settings(**options), options))


def sign(arguments: Sequence[str]) -> None:
    """Signs a certified bundle. Exits with one line and code 1 if it cannot."""
    parser = argparse.ArgumentParser(
        prog="addnorm sign",
        description=(
            "Signs all files of a bundle in the OpenSSF Model Signing format. Sign last: `addnorm"
            " verify`, or any other change to a file, makes the signature invalid."
        ),
        epilog="Example: addnorm sign bundles/notebook/1 --key key.pem",
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="a folder <name>/<version>")
    parser.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="PEM",
        help=f"private EC key ({signature.CURVES}) without a passphrase",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="PEM",
        help="certificate of this key, if servers trust its issuer instead of the key itself",
    )
    parser.add_argument(
        "--chain",
        type=Path,
        action="append",
        default=[],
        metavar="PEM",
        help="intermediate certificate between it and the trusted one; may be repeated",
    )
    options = parser.parse_args(arguments)
    if options.chain and not options.certificate:
        parser.error("--chain needs --certificate")
    with _one_line():
        bundle = bundles.read(options.bundle)
        files = signature.sign(bundle.path, options.key, options.certificate, options.chain)
        print(f"signed {', '.join(files)}")
        print(f"wrote {bundle.path / signature.SIGNATURE}")


def _serve_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "serve",
        "Serves models, or a folder of bundles. A model is exported at its first start, and"
        " then cached.",
        "addnorm serve sentence-transformers/all-MiniLM-L6-v2 --precision int8 --port 9000",
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="ORG/NAME[@REVISION]|DIR",
        help="model on the Hugging Face hub, or folder of a checkpoint",
    )
    parser.add_argument(
        "--bundles",
        type=Path,
        help="folder with bundles <name>/<version>/ (default, if no model is given: bundles)",
    )
    parser.add_argument(
        "--precision",
        metavar="P[,P]",
        help=(
            "precisions of the models on the command line; requests without a precision use the"
            " first (default: fp32)"
        ),
    )
    parser.add_argument(
        "--kept",
        metavar="DIR",
        help="folder that caches their bundles for the next start (default: $XDG_CACHE_HOME/addnorm"
        " or ~/.cache/addnorm)",
    )
    return parser


@contextmanager
def _one_line() -> Iterator[None]:
    """StartupError ends the process with one line, not with a traceback."""
    try:
        yield
    except StartupError as error:
        logs.finish()  # lines of the log come before this one
        sys.exit(f"addnorm: {error}")


def _parser(command: str, description: str, example: str) -> argparse.ArgumentParser:
    """A parser that has every setting as an option."""
    parser = argparse.ArgumentParser(
        prog=f"addnorm {command}",
        description=f"{description} An option wins over its environment variable ADDNORM_*.",
        epilog=f"Example: {example}",
    )
    for name in OPTIONS:
        default = Settings.model_fields[name].default
        meaning = f"{descriptions()[name]} ({default})".replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=meaning)
    return parser


def _set_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings among the options that were given."""
    return {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}


def open_standard_files() -> None:
    """Opens standard input, output and error if they are closed. Otherwise another file would get
    their place, and libraries' messages to stderr would go there."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def open_all_files() -> None:
    """Raises the limit on open files as far as the system allows: each connection is one.

    Shells start programs with a limit of 1024.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
