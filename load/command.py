"""`addnorm load --url URL --bundle BUNDLE`: loads a server, checks every answer, prints a table."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from addnorm.load.bench import pool
from addnorm.load.bench.check import NAIVE_TOLERANCE, Reference, alone
from addnorm.load.bench.run import Load, measure
from addnorm.load.bench.stream import PROFILES, Stream, make
from addnorm.load.servers import CacheCounts, Server
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.manifest import Limits

NUM_DISTINCT = 50_000
NUM_REQUESTS = 20_000


def load(options: Sequence[str]) -> None:
    """Loads a server, and exits with code 1 if an answer was wrong."""
    parser = _parser()
    arguments = parser.parse_args(options)
    bundle = bundles.read(arguments.bundle)
    precision = arguments.precision or bundle.manifest.default_precision
    try:
        stream = _stream(arguments, bundle.manifest.limits)
    except ValueError as error:
        parser.error(str(error))
    reference = Reference(alone(bundle, precision), arguments.tolerance, arguments.most_alone)
    if not stream.once:  # a stream that ends may be longer than what will be sent of it
        reference.learn(stream.requests, arguments.profile)
    address = urlsplit(arguments.url)
    server = Server(address.hostname or "127.0.0.1", address.port or 80, arguments.pid)
    load = _load(arguments)
    before = server.cache_counts()
    result = measure(server, stream, reference, load)
    after = server.cache_counts()
    counts = after.since(before) if before and after else None
    seen = {**asdict(result), "cache": asdict(counts) if counts else None}
    print(table(seen))
    if said := warning(stream, counts):
        print(said, file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"load": asdict(load), "result": seen}, indent=2) + "\n"
        )
    if result.num_errors:
        raise SystemExit(f"{result.num_errors} of {result.num_answers} answers were not right")


def _stream(arguments: argparse.Namespace, limits: Limits) -> Stream:
    """ValueError if the options contradict each other, or the limits allow no such stream."""
    profile, seed = PROFILES[arguments.profile], arguments.seed
    fields = {name: value for name in ("model", "precision") if (value := getattr(arguments, name))}
    if arguments.unique and arguments.zipf is not None:
        raise ValueError("--unique repeats no sequence, --zipf does: give one of them")
    if arguments.distinct is not None and arguments.zipf is None:
        raise ValueError("--distinct is of --zipf")
    if arguments.requests is not None and arguments.zipf is None and not arguments.unique:
        raise ValueError("--requests is of --zipf and --unique: other streams do not end")
    num_requests = NUM_REQUESTS if arguments.requests is None else arguments.requests
    if arguments.unique:
        return pool.unique(profile, limits, num_requests, seed, fields)
    if arguments.zipf is not None:
        num_distinct = NUM_DISTINCT if arguments.distinct is None else arguments.distinct
        return pool.zipf(profile, limits, num_requests, arguments.zipf, num_distinct, seed, fields)
    return make(profile, limits, seed, fields)


def _load(arguments: argparse.Namespace) -> Load:
    headers = (f"Accept: {arguments.accept}",) if arguments.accept else ()
    return Load(
        arguments.concurrency,
        arguments.seconds,
        arguments.rate,
        arguments.warm_up,
        None,
        arguments.seed,
        headers,
    )


def warning(stream: Stream, counts: CacheCounts | None) -> str | None:
    """That a stream which repeats its few requests measures the server's cache, if it does."""
    if stream.once:
        return None
    advice = "Set ADDNORM_CACHE_BYTES=0 to measure the model, or send --unique or --zipf."
    if counts is None:
        return (
            "This profile repeats its sequences. If the server has a cache, these figures measure "
            f"it; its metrics could not be read. {advice}"
        )
    if num_spared := counts.hits + counts.merged:
        return (
            f"This profile repeats its sequences. {num_spared:,} of them were not computed again: "
            f"these figures measure the server's cache. {advice}"
        )
    return None


def table(figures: Mapping[str, object]) -> str:
    """Markdown, a line per figure."""
    lines = ["| figure | value |", "|---|---|"]
    return "\n".join(
        [*lines, *(f"| {name} | {_shown(value)} |" for name, value in figures.items())]
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "-"
    return "-" if value is None else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="addnorm load",
        description=__doc__,
        epilog="Example: addnorm load --bundle bundles/notebook/1 --seconds 5",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument(
        "--bundle",
        type=Path,
        required=True,
        help="what the server serves: <bundles>/<name>/<version>",
    )
    parser.add_argument("--profile", choices=PROFILES, default="small")
    _add_repeats(parser)
    parser.add_argument(
        "--concurrency", type=int, default=8, help="callers; with --rate the most connections"
    )
    parser.add_argument(
        "--rate",
        type=float,
        help="open loop: Poisson arrivals a second; latency from the intended time",
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--precision", help="sent in each body, and that of the reference")
    parser.add_argument("--model", help="sent in each body; needed where several models are served")
    parser.add_argument(
        "--accept",
        help="media type of the answers: application/vnd.safetensors, or JSON by default",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help=f"instead of equal bits; {NAIVE_TOLERANCE:g} for other servers",
    )
    parser.add_argument(
        "--pid", type=int, help="the server's process, to read its CPU time and memory"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the result")
    return parser


def _add_repeats(parser: argparse.ArgumentParser) -> None:
    """What of the profile's sequences repeats, and how much of it is computed alone."""
    parser.add_argument(
        "--zipf",
        type=float,
        metavar="EXPONENT",
        help="repeats: every sequence is drawn from a pool, the i-th with i^-EXPONENT",
    )
    parser.add_argument(
        "--distinct", type=_positive, help=f"sequences in the pool of --zipf ({NUM_DISTINCT:,})"
    )
    parser.add_argument("--unique", action="store_true", help="no sequence is sent twice")
    parser.add_argument(
        "--requests",
        type=_positive,
        help=f"of --zipf and --unique, made in advance; the last ends the run ({NUM_REQUESTS:,})",
    )
    parser.add_argument(
        "--most-alone",
        type=_positive,
        metavar="N",
        help="compute so many of the answered sequences, drawn by a seed, instead of all; the "
        "answers to each of the others must be equal",
    )


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
