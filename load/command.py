"""`addnorm load --url URL --bundle BUNDLE`: loads a server, checks every answer, prints a table."""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from addnorm.load import beside, capacity
from addnorm.load.run import NAIVE_TOLERANCE, WRONG, Load, Reference, Result, compute_alone, measure
from addnorm.load.servers import CacheCounts, Server
from addnorm.load.stream import PROFILES, Stream, make, prose, unique, zipf
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.errors import StartupError

MODEL = "if the server has several models, choose one with --model"
NUM_DISTINCT = 50_000
NUM_REQUESTS = 20_000
OF_ONE_LOAD = (
    *("profile", "zipf", "distinct", "unique", "requests", "most_alone", "concurrency", "rate"),
    *("seconds", "warm_up", "seed"),
)
OF_A_TARGET = ("tokens", "p99_ms", "price_per_hour")
OF_A_COMPARISON = ("beside_model", "beside_key_env", "texts_file")


def load(words: Sequence[str]) -> None:
    """Loads a server. Exits with code 1 if an answer was wrong, or if it cannot begin."""
    parser = _parser()
    arguments = parser.parse_args(words)
    option_names = _names_given(parser, words)
    if arguments.target is not None and arguments.beside is not None:
        parser.error("--target and --beside are different measurements: give one of them")
    load_options = [*OF_ONE_LOAD, "json", "bundle", "accept"]

    def refuse(names: Sequence[str], problem: str) -> None:
        """Exits with code 2 if one of these was given, also with its default."""
        for name in names:
            if name in option_names:
                parser.error(f"--{name.replace('_', '-')} {problem}")

    if arguments.target is None:
        refuse(OF_A_TARGET, "needs --target")
    if arguments.beside is None:
        refuse(OF_A_COMPARISON, "needs --beside")
    if arguments.target is not None:
        refuse(load_options, "cannot be used with --target")
        _hold(arguments)
        return
    if arguments.beside is not None:
        option_names -= {"concurrency", "seconds"}
        refuse(["precision", *load_options], "cannot be used with --beside")
        _compare(arguments)
        return
    refuse(("texts",), "needs --target or --beside")
    if arguments.bundle is None:
        parser.error("give --bundle, --target or --beside")
    try:
        bundle = bundles.read(arguments.bundle)
    except StartupError as error:
        raise SystemExit(f"addnorm load: {error}") from None
    precisions, precision = bundle.manifest.precisions, arguments.precision
    if precision and precision not in precisions:
        raise SystemExit(f"addnorm load: {bundle.ref} has {', '.join(precisions)}, not {precision}")
    _must_be_writable("--json", arguments.json)
    _run_load(parser, arguments, bundle)


def _hold(arguments: argparse.Namespace) -> None:
    """Prints whether the server holds the target. Exits with code 1 if no number of such machines
    was seen to."""
    server, fields = _ours(arguments), _fields(arguments)
    try:
        limits = capacity.served_limits(server, arguments.model)
    except (OSError, ValueError) as error:
        raise SystemExit(f"addnorm load: {arguments.url}: {error}") from None
    p99_s = arguments.p99_ms / 1000
    goal = capacity.Goal(
        arguments.texts, arguments.tokens, arguments.target, p99_s, arguments.price_per_hour
    )
    measurement = capacity.measure(capacity.Subject(server, limits, goal, fields))
    print("\n".join(measurement.lines()))
    sys.exit(0 if measurement.is_held else 1)


def _compare(arguments: argparse.Namespace) -> None:
    texts = prose(256)
    if arguments.texts_file:
        try:
            texts = arguments.texts_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"addnorm load: --texts-file {error}") from None
        if not (texts := [text for text in texts if text.strip()]):
            raise SystemExit(f"addnorm load: --texts-file {arguments.texts_file} has no texts")
    their_model = arguments.beside_model or arguments.model
    first = beside.Side(
        arguments.url, arguments.model, _key("--api-key-env", arguments.api_key_env)
    )
    second = beside.Side(
        arguments.beside, their_model, _key("--beside-key-env", arguments.beside_key_env)
    )
    try:
        beside.compare(
            first, second, texts, arguments.texts, arguments.concurrency, arguments.seconds
        )
    except ConnectionError as error:
        raise SystemExit(f"addnorm load: {error}") from None


def _key(option: str, variable: str | None) -> dict[str, str]:
    """The header that has the key of this environment variable."""
    if not variable:
        return {}
    if not os.environ.get(variable):
        raise SystemExit(f"addnorm load: {option}: the environment variable {variable} is not set")
    return {"Authorization": f"Bearer {os.environ[variable]}"}


def _fields(arguments: argparse.Namespace) -> dict[str, str]:
    """The fields of each body beside its sequences."""
    return {name: value for name in ("model", "precision") if (value := getattr(arguments, name))}


def _must_be_writable(option: str, path: Path | None) -> None:
    """Leaves no file behind: the measurement may fail."""
    if path is None:
        return
    is_new = not os.path.lexists(path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
    except OSError as error:
        problem = f"{option} {path} cannot be written: {error.strerror}"
        raise SystemExit(f"addnorm load: {problem}") from None
    if is_new:
        path.unlink()


def _run_load(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, bundle: Bundle
) -> None:
    precision = arguments.precision or bundle.manifest.default_precision
    try:
        stream = _stream(arguments, bundle)
    except ValueError as error:
        parser.error(str(error))
    reference = Reference(
        compute_alone(bundle, precision), arguments.tolerance, arguments.most_alone
    )
    if not stream.once:  # a stream that ends may be longer than what will be sent of it
        reference.learn(stream.requests, arguments.profile)
    server = _ours(arguments)
    load = Load(
        arguments.concurrency,
        arguments.seconds,
        arguments.rate,
        arguments.warm_up,
        None,
        arguments.seed,
        (f"Accept: {arguments.accept}",) if arguments.accept else (),
    )
    before = server.cache_counts()
    figures = measure(server, stream, reference, load)
    after = server.cache_counts()
    counts = after.since(before) if before and after else None
    entries = {**asdict(figures), "cache": asdict(counts) if counts else None}
    print(table(entries))
    if notice := None if stream.once else warning(counts, f"--profile {arguments.profile}"):
        print(notice, file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"load": asdict(load), "result": entries}, indent=2) + "\n"
        )
    if figures.num_errors:
        summary = f"{figures.num_errors} of {figures.num_answers} answers were wrong"
        cause = reason(server, stream, figures, bundle, load.headers)
        raise SystemExit(
            f"{summary}: {cause}" if figures.num_errors == figures.num_answers else summary
        )


def reason(
    server: Server, stream: Stream, figures: Result, bundle: Bundle, headers: Sequence[str] = ()
) -> str:
    """figures: of this stream, with errors. A rejection's words need one more request."""
    kinds = ", ".join(figures.errors)
    if WRONG in figures.errors:
        return f"{kinds}: the answers differ from the answers of {bundle.ref} (--bundle); {MODEL}"
    message = ""
    try:
        if any(kind.isdigit() for kind in figures.errors):
            server.ask(stream.requests[0].body, stream.path, headers)
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            message = str(json.loads(text)["error"]["message"])
        except (ValueError, LookupError, TypeError):  # another server's
            message = " ".join(text.split())[:200]
    except (OSError, HTTPException):
        pass
    return (
        f"{kinds}: {message}. The requests were generated for {bundle.ref}; {MODEL}"
        if message
        else kinds
    )


def _ours(arguments: argparse.Namespace) -> Server:
    address = urlsplit(arguments.url)
    server = Server(address.hostname or "127.0.0.1", address.port or 80)
    key = _key("--api-key-env", arguments.api_key_env)
    headers = tuple(f"{name}: {value}" for name, value in key.items())
    return replace(server, pid=arguments.pid, headers=headers)


def _stream(arguments: argparse.Namespace, bundle: Bundle) -> Stream:
    """ValueError if the options contradict each other, or the model allows no such stream."""
    profile, seed, limits = PROFILES[arguments.profile], arguments.seed, bundle.manifest.limits
    if tensors := bundle.manifest.as_it_is:
        if len(tensors) > 1:
            raise ValueError(
                f"{bundle.ref} answers with {len(tensors)} tensors, only models with one"
                " tensor can be compared"
            )
        head = tensors[0].name in bundle.manifest.heads or bundle.rows_are_tokens
        profile = replace(profile, output=tensors[0].name if head else tensors[0].output)
    fields = _fields(arguments)
    if arguments.unique and arguments.zipf is not None:
        raise ValueError(
            "--unique excludes repeated sequences and --zipf needs them: give one of them"
        )
    if arguments.distinct is not None and arguments.zipf is None:
        raise ValueError("--distinct needs --zipf")
    if arguments.requests is not None and arguments.zipf is None and not arguments.unique:
        raise ValueError("--requests needs --zipf or --unique: other streams do not end")
    num_requests = NUM_REQUESTS if arguments.requests is None else arguments.requests
    if arguments.unique:
        return unique(profile, limits, num_requests, seed, fields)
    if arguments.zipf is not None:
        num_distinct = NUM_DISTINCT if arguments.distinct is None else arguments.distinct
        return zipf(profile, limits, num_requests, arguments.zipf, num_distinct, seed, fields)
    return make(profile, limits, seed, fields)


def warning(counts: CacheCounts | None, option: str) -> str | None:
    """The message if a load that repeats its few requests measures the server's cache.

    option: repeats them.
    """
    advice = "Start it with ADDNORM_CACHE_BYTES=0 to measure the model, or send --unique or --zipf."
    if counts is None:
        return (
            f"{option} repeats its sequences. If the server has a cache, these figures measure "
            f"it; its metrics could not be read. {advice}"
        )
    if num_spared := counts.hits + counts.merged:
        return (
            f"{option} repeats its sequences. {num_spared:,} of them were not computed again: "
            f"these figures measure the server's cache. {advice}"
        )
    return None


def table(figures: Mapping[str, object]) -> str:
    """Markdown, a line per figure."""
    lines = ["| figure | value |", "|---|---|"]
    for name, value in figures.items():
        text = "-" if value is None else str(value)
        if isinstance(value, float):
            text = f"{value:,.3f}"
        if isinstance(value, dict):
            text = ", ".join(f"{name} {number}" for name, number in value.items()) or "-"
        lines.append(f"| {name} | {text} |")
    return "\n".join(lines)


def _add_repetition(parser: argparse.ArgumentParser) -> None:
    """The share of the profile's sequences that repeats, and how much of it is computed alone."""
    add = parser.add_argument
    of_zipf = (
        "repeat sequences: draw each from a pool, the i-th with probability proportional to"
        " i^-EXPONENT"
    )
    add("--zipf", type=float, metavar="EXPONENT", help=of_zipf)
    add(
        "--distinct",
        type=_positive,
        help=f"with --zipf: number of sequences in the pool (default: {NUM_DISTINCT:,})",
    )
    add("--unique", action="store_true", help="send no sequence twice")
    of_requests = (
        "with --zipf or --unique: number of requests, generated in advance; the run ends"
        f" after the last (default: {NUM_REQUESTS:,})"
    )
    add("--requests", type=_positive, help=of_requests)
    alone = (
        "compute a random N of the answered sequences alone, instead of all; for each other"
        " sequence, check only that its answers are equal"
    )
    add("--most-alone", type=_positive, metavar="N", help=alone)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="addnorm load",
        description="Load-tests a server, checks every answer and prints a table.",
        epilog="Example: addnorm load --bundle bundles/all-minilm-l6-v2/1 --model "
        "all-minilm-l6-v2 --seconds 5",
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="address of the server")
    of_bundle = (
        "the served bundle, <bundles>/<name>/<version>; required unless --target or --beside"
        " is given"
    )
    add("--bundle", type=Path, help=of_bundle)
    add("--profile", choices=PROFILES, default="small", help="lengths and number of the sequences")
    _add_repetition(parser)
    of_callers = "number of concurrent callers; with --rate the largest number of connections"
    add("--concurrency", type=_positive, default=8, help=of_callers)
    of_rate = "open loop: Poisson arrivals per second; latency is measured from the scheduled time"
    add("--rate", type=_above_zero, help=of_rate)
    add("--seconds", type=_above_zero, default=10.0, help="length of the run (default: 10)")
    add(
        "--warm-up",
        type=_not_negative,
        default=1.0,
        metavar="SECONDS",
        help="part of the run that is not counted (default: 1)",
    )
    of_key = "environment variable with the API key"
    add("--api-key-env", metavar="VARIABLE", help=of_key)
    add("--precision", help="precision of the requests and of the reference")
    add("--model", help="model of the requests; required if the server has several models")
    of_type = "media type of the answers: application/vnd.safetensors or JSON (default: JSON)"
    add("--accept", help=of_type)
    of_bits = (
        f"largest difference allowed, instead of equal bits; use {NAIVE_TOLERANCE:g} for other"
        " servers"
    )
    add("--tolerance", type=float, help=of_bits)
    add("--pid", type=int, help="process id of the server; adds its CPU time and memory")
    add("--seed", type=int, default=0, help="random seed of the requests (default: 0)")
    add("--json", type=Path, help="file for the result")
    _add_other_measurements(parser)
    return parser


def _names_given(parser: argparse.ArgumentParser, words: Sequence[str]) -> set[str]:
    """The options that stand among these words, by their names in what `parser` finds."""
    absent = object()
    blank = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args(words)), absent))
    options = vars(parser.parse_args(words, blank))
    return {name for name, value in options.items() if value is not absent}


def _add_other_measurements(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    of_target = (
        "requests per second: report whether this server can handle this rate, and how many such"
        " machines are needed; answers are neither cached nor compared"
    )
    add("--target", type=_above_zero, metavar="REQUESTS", help=of_target)
    add(
        "--texts",
        type=_positive,
        default=1,
        help="with --target or --beside: texts per request (default: 1)",
    )
    add(
        "--tokens",
        type=_positive,
        default=60,
        help="with --target: average number of tokens per text (default: 60)",
    )
    of_p99 = "with --target: latency limit for 99 of 100 requests (default: 200)"
    add("--p99-ms", type=_above_zero, default=200.0, help=of_p99)
    of_price = "with --target: price of one machine per hour; adds the cost of a million tokens"
    add("--price-per-hour", type=_above_zero, metavar="P", help=of_price)
    add(
        "--beside",
        metavar="URL",
        help="any other server with /v1/embeddings: both get the same texts in turn; the URL may"
        " include the path before /embeddings, such as http://localhost:8080/v3",
    )
    add(
        "--beside-model",
        metavar="NAME",
        help="model name at the --beside server (default: --model)",
    )
    add(
        "--beside-key-env",
        metavar="VARIABLE",
        help="environment variable with the API key of the --beside server",
    )
    of_file = (
        "with --beside: file with one text per line, instead of 256 pieces of Python's"
        " documentation"
    )
    add("--texts-file", type=Path, help=of_file)


def _number(
    kind: type[float], fits: Callable[[float], bool], needed: str
) -> Callable[[str], float]:
    """Reads the number of an option, which must fit."""

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            problem = f"invalid {kind.__name__} value: {text!r}"
            raise argparse.ArgumentTypeError(problem) from None
        if not fits(number):
            raise argparse.ArgumentTypeError(f"must be {needed}, not {text}")
        return number

    return read


_above_zero = _number(float, lambda x: 0 < x < math.inf, "a finite number above 0")
_not_negative = _number(float, lambda x: 0 <= x < math.inf, "a finite number, 0 or more")
_positive = _number(int, lambda x: x >= 1, "at least 1")
