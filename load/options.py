"""The options of `addnorm load`."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from addnorm.load.measure.check import NAIVE_TOLERANCE
from addnorm.load.measure.stream import PROFILES

DESCRIPTION = "Loads a server, checks every answer, and prints a table."
NUM_DISTINCT = 50_000
NUM_REQUESTS = 20_000
OF_ONE_LOAD = (
    *("profile", "zipf", "distinct", "unique", "requests", "most_alone", "concurrency", "rate"),
    *("seconds", "warm_up", "seed"),
)
OF_A_TARGET = ("tokens", "p99_ms")
OF_A_COMPARISON = ("beside_model", "beside_key_env", "texts_file")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="addnorm load",
        description=DESCRIPTION,
        epilog="Example: addnorm load --bundle bundles/all-minilm-l6-v2/1 --model "
        "all-minilm-l6-v2 --seconds 5",
    )
    found.add_argument("--url", default="http://127.0.0.1:8000")
    found.add_argument(
        "--bundle",
        type=Path,
        help="what the server serves: <bundles>/<name>/<version>; needed unless --target is given",
    )
    found.add_argument("--profile", choices=PROFILES, default="small")
    _add_repeats(found)
    found.add_argument(
        "--concurrency", type=_positive, default=8, help="callers; with --rate the most connections"
    )
    found.add_argument(
        "--rate",
        type=_above_zero,
        help="open loop: Poisson arrivals a second; latency from the intended time",
    )
    found.add_argument("--seconds", type=_above_zero, default=10.0)
    found.add_argument("--warm-up", type=_not_negative, default=1.0, metavar="SECONDS")
    found.add_argument(
        "--api-key-env", metavar="VARIABLE", help="environment variable that holds the API key"
    )
    found.add_argument("--precision", help="sent in each body, and that of the reference")
    found.add_argument("--model", help="sent in each body; needed where several models are served")
    found.add_argument(
        "--accept",
        help="media type of the answers: application/vnd.safetensors, or JSON by default",
    )
    found.add_argument(
        "--tolerance",
        type=float,
        help=f"instead of equal bits; {NAIVE_TOLERANCE:g} for other servers",
    )
    found.add_argument(
        "--pid", type=int, help="the server's process, to read its CPU time and memory"
    )
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--json", type=Path, help="where to write the result")
    _add_other_measurements(found)
    return found


def names_given(parser: argparse.ArgumentParser, words: Sequence[str]) -> set[str]:
    """The options that stand among these words, by their names in what `parser` finds."""
    absent = object()
    blank = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args(words)), absent))
    found = vars(parser.parse_args(words, blank))
    return {name for name, value in found.items() if value is not absent}


def _add_other_measurements(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--target",
        type=_above_zero,
        metavar="REQUESTS",
        help="a second: says whether this server holds them, and how many machines would; answers"
        " are computed, never cached, and not compared",
    )
    add("--texts", type=_positive, default=1, help="of --target and --beside: in a request (1)")
    add("--tokens", type=_positive, default=60, help="of --target: of a text, on average (60)")
    add(
        "--p99-ms",
        type=_above_zero,
        default=200.0,
        help="of --target: what 99 of 100 requests may take (200)",
    )
    add(
        "--beside",
        metavar="URL",
        help="another server of /v1/embeddings, of any make: both get the same texts in turn; the"
        " URL may have the path before /embeddings, such as http://localhost:8080/v3",
    )
    add("--beside-model", metavar="NAME", help="the model's name there; that of --model without")
    add("--beside-key-env", metavar="VARIABLE", help="as --api-key-env, for that server")
    add(
        "--texts-file",
        type=Path,
        help="of --beside: a text a line, in place of 256 pieces of Python's documentation",
    )


def _add_repeats(parser: argparse.ArgumentParser) -> None:
    """The share of the profile's sequences that repeats, and how much of it is computed alone."""
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


def _above_zero(text: str) -> float:
    if not 0 < (number := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number above 0, not {text}")
    return number


def _not_negative(text: str) -> float:
    if not 0 <= (number := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number, 0 or more, not {text}")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
