"""The commands `addnorm serve`, `addnorm settings` and `addnorm sign`."""

import argparse
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import signature
from addnorm.service.engine.bundle import is_version
from addnorm.service.environment import PREFIX, describe, read_settings
from addnorm.service.errors import StartupError
from addnorm.service.loading import addresses
from addnorm.service.loading.addresses import Address
from addnorm.service.loading.kept_proofs import PROOFS
from addnorm.service.options import Parser
from addnorm.service.server import process
from addnorm.service.settings import Settings, descriptions
from addnorm.service.wire.telemetry import logs

# process lists show the command line, so keys are no option
OPTIONS = [name for name in Settings.model_fields if name != "api_keys"]
WINS = (
    "An option wins over its environment variable ADDNORM_*. `addnorm settings` says more of each."
)
METAVARS: Mapping[Any, str] = {
    **dict.fromkeys((int, float, int | None), "N"), Path | None: "FILE", dict[str, str]: "NAME=..."
}  # fmt: skip
FIRST = re.compile(r"(.+?)[.;] .*|(.+)\.")  # sentence of a description
ZERO = re.compile(r"\b0: ([^.;]+)")  # what 0 means, in a description
# the options in their order in `--help`
GROUPS = {
    "common settings": (
        "host", "port", "socket", "grpc_port", "provider", "worker_threads", "log_level",
        "log_format", "default_precision", "aliases", "default_models", "any_model_name",
        "truncate",
    ),
    "security": (
        "api_keys_file", "cors_origins", "tls_cert", "tls_key", "admin", "trusted_keys",
        "require_reference", "trust_token_ids",
    ),
    "limits": (
        "max_sequences", "max_windows", "max_tokens", "max_padded_tokens", "max_body_bytes",
        "max_json_bytes", "max_response_bytes", "max_queue_tokens", "max_pending_response_bytes",
        "max_pending_body_bytes", "max_run_bytes", "max_connections", "timeout_s", "bulk_timeout_s",
        "keep_alive_s", "body_timeout_s", "send_timeout_s", "grace_s",
    ),
    "tuning": (
        "cache_bytes", "token_budget", "run_timeout_s", "invariance_check_share", "watch_s",
        "idle_unload_s", "idle_exit_s", "versions", "answer_versions",
    ),
}  # fmt: skip


def serve(arguments: Sequence[str]) -> None:
    """Serves until a signal ends it. Exits with one line and code 1 if it cannot start."""
    options = serve_parser().parse_args(arguments)
    open_standard_files()
    # until the settings are read
    logs.configure("info", options.log_format or os.environ.get(f"{PREFIX}LOG_FORMAT", "auto"))
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
        texts = [text.partition("?") for text in options.models]
        models = [Address.parse(text) for text, _, _ in texts]
        proofs_folder: Path | None = None
        with suppress(StartupError):  # without a home nothing is kept
            proofs_folder = Path(options.kept or addresses.where_kept()) / PROOFS
        if not models:
            process.serve(options.bundles, settings, proofs_folder)
            return
        folders = addresses.find(models, options.bundles, options.kept)
        defaults = [mark + query for _, mark, query in texts]
        settings = with_names(settings, models, defaults, folders)
        process.serve(tuple(folders), settings, proofs_folder)


def with_names(
    settings: Settings, models: Sequence[Address], defaults: Sequence[str], folders: Sequence[Path]
) -> Settings:
    """The settings, with other names of models from a hub, and the precisions that are named.
    defaults: of requests to each model, as an alias has them: `?windows=64`, or nothing.
    StartupError where two models have one name."""
    names = [folder.parent.name if is_version(folder) else folder.name for folder in folders]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise StartupError(
            f"two of the models are called {twice}: export one of them with `addnorm export"
            " --name`, and serve a folder of bundles with --bundles"
        )
    precisions = {
        name: model.precision for name, model in zip(names, models, strict=True) if model.precision
    }
    queries = dict(zip(names, defaults, strict=True))
    aliases = {name: name + query for name, query in queries.items() if query}
    for repository, name in aliases_of(models, names).items():
        aliases[repository] = name + queries[name]
    aliases |= settings.aliases
    default_precision = {**settings.default_precision, **precisions}
    return settings.model_copy(update={"aliases": aliases, "default_precision": default_precision})


def aliases_of(models: Sequence[Address], names: Sequence[str]) -> dict[str, str]:
    """ORG/NAME -> NAME, the bundle's, for the models of a hub."""
    repositories = [model.name.partition("@")[0] for model in models]
    return {
        repository: name
        for repository, name in zip(repositories, names, strict=True)
        if repository.endswith(f"/{name}") and not Path(repository).exists()
    }


def settings(arguments: Sequence[str]) -> None:
    """Prints every setting in force, and where it comes from."""
    options = _set_options(settings_parser().parse_args(arguments))
    logs.configure("info")
    with _one_line():
        print(describe(read_settings(**options), options))


def sign(arguments: Sequence[str]) -> None:
    """Signs a certified bundle. Exits with one line and code 1 if it cannot."""
    parser = sign_parser()
    options = parser.parse_args(arguments)
    if options.chain and not options.certificate:
        parser.error("--chain needs --certificate")
    with _one_line():
        bundle = bundles.read(options.bundle)
        files = signature.sign(bundle.path, options.key, options.certificate, options.chain)
        print(f"signed {', '.join(files)}")
        print(f"wrote {bundle.path / signature.SIGNATURE}")


def serve_parser() -> Parser:
    parser = Parser(
        "serve",
        "[MODEL[@PRECISION][?DEFAULTS] ...]",
        "Serves models, or a folder of bundles. A model is exported at its first start, and then"
        f" cached. {WINS}",
        "sentence-transformers/all-MiniLM-L6-v2@int8 --port 9000",
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar=addresses.METAVAR,
        help="model of the Hugging Face hub (ORG/NAME[@REVISION]), folder of a checkpoint or of a"
        " bundle, or name of a bundle in --bundles; without any, all of --bundles are served."
        " PRECISION: fp32, int8, or several, the first of which requests get by default."
        " DEFAULTS: of requests, as an alias has them, such as ?windows=64",
    )
    parser.add_renamed("--precision", "old_precision", "MODEL@PRECISION")
    addresses.add_options(parser)
    _add_settings(parser)
    return parser


@contextmanager
def _one_line() -> Iterator[None]:
    """StartupError ends the process with one line, not with a traceback."""
    try:
        yield
    except StartupError as error:
        logs.finish()  # lines of the log come before this one
        sys.exit(f"addnorm: {error}")


def settings_parser() -> Parser:
    parser = Parser("settings", "", f"Lists the current settings. {WINS}", "--port 9000")
    _add_settings(parser)
    return parser


def _add_settings(parser: Parser) -> None:
    """Every setting as an option, in groups."""
    for title, names in GROUPS.items():
        add = parser.add_argument_group(title).add_argument
        for name in names:
            field, option = Settings.model_fields[name], f"--{name.replace('_', '-')}"
            description, default = descriptions()[name], field.default
            meaning = FIRST.sub(r"\1\2", description).replace("%", "%%")
            if (zero := ZERO.search(description)) and default == 0:
                meaning += f" (default: {zero[1]})"
            elif default not in (None, {}, False):
                shown = f"{default:g}" if isinstance(default, float) else default
                meaning += f" (default: {shown})"
            if field.annotation in (bool, bool | None):
                add(option, action=argparse.BooleanOptionalAction, help=meaning)
            elif get_origin(field.annotation) is Literal:
                add(option, metavar="|".join(get_args(field.annotation)), help=meaning)
            else:
                add(option, metavar=METAVARS.get(field.annotation, "VALUE"), help=meaning)


def sign_parser() -> Parser:
    parser = Parser(
        "sign",
        "BUNDLE --key PEM",
        "Signs all files of a bundle in the OpenSSF Model Signing format. Sign last: `addnorm"
        " verify`, or any other change to a file, makes the signature invalid.",
        "bundles/notebook/1 --key key.pem",
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
    return parser


def _set_options(arguments: argparse.Namespace) -> dict[str, Any]:
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
