"""The options of `addnorm load run`, `load hold` and `load beside`. Imports no package of the extra
`load`, so that `--help` needs none."""

from pathlib import Path
from typing import Any

from addnorm.service.loading import addresses
from addnorm.service.options import Parser, above_zero, not_negative, positive

# of `load.stream`, which imports much
PROFILES = (
    "small", "big", "hidden", "long", "one-512", "tiny", "same", "longest-60", "longest-100",
    "longest-200", "longest-350", "longest-500",
)  # fmt: skip
NUM_DISTINCT = 50_000
NUM_REQUESTS = 20_000
NAIVE_TOLERANCE = 1e-3  # of a padded graph on these loads; ours has none
HERE = "http://127.0.0.1:8000"
OF_KEY = "environment variable with the API key"


def load_parser() -> Parser:
    parser = Parser(
        "load",
        "run|hold|beside ...",
        "Measures running servers. `addnorm load run --help` and so on list the options of each.",
        "run bundles/all-minilm-l6-v2/1 --seconds 5",
    )
    # argparse names the program of each by what stands before it
    kind: Any = lambda prog, **options: Parser(**options)  # noqa: E731
    commands = parser.add_subparsers(dest="measurement", required=True, parser_class=kind)
    _add_run(
        commands.add_parser(
            "run",
            command="load run",
            arguments="MODEL[@PRECISION]",
            description="Loads a server, checks every answer and prints a table.",
            example="bundles/all-minilm-l6-v2/1 --seconds 5",
            help="load a server, check every answer, print a table",
        )
    )
    _add_hold(
        commands.add_parser(
            "hold",
            command="load hold",
            arguments="URL[#NAME][@PRECISION] --target REQUESTS",
            description="Reports whether a server can handle so many requests per second, and how"
            " many such machines are needed. Answers are neither cached nor compared.",
            example=f"{HERE} --target 250 --texts 4 --tokens 30",
            help="report how many machines a number of requests per second needs",
        )
    )
    _add_beside(
        commands.add_parser(
            "beside",
            command="load beside",
            arguments="A B",
            description="Sends the same texts to two servers of /v1/embeddings in turn, of which"
            " either may be of any make, and compares their speed. `addnorm compare` compares"
            " their vectors.",
            example=f"{HERE}#my-model@fp32 http://127.0.0.1:8080/v3#theirs",
            help="compare the speed of two servers of any make",
        )
    )
    return parser


def _add_run(parser: Parser) -> None:
    add = parser.add_argument
    of_model = (
        "the served model, as for `serve`, which is loaded here to compute the right answers;"
        " PRECISION: of the requests too"
    )
    add("model", metavar=addresses.METAVAR, help=of_model)
    of_url = (
        f"the server (default: {HERE}); #NAME: what it calls the model, if not as its bundle does"
    )
    add("--url", default=HERE, metavar="URL[#NAME]", help=of_url)
    add(
        "--profile",
        choices=PROFILES,
        default="small",
        help="lengths and number of the sequences (default: small)",
    )
    repeated = parser.add_mutually_exclusive_group().add_argument
    of_zipf = (
        "repeat sequences: draw each from a pool, the i-th with probability proportional to"
        " i^-EXPONENT"
    )
    repeated("--zipf", type=float, metavar="EXPONENT", help=of_zipf)
    repeated("--unique", action="store_true", help="send no sequence twice")
    of_distinct = f"with --zipf: number of sequences in the pool (default: {NUM_DISTINCT:,})"
    add("--distinct", type=positive, metavar="N", help=of_distinct)
    of_requests = (
        "with --zipf or --unique: number of requests, generated in advance; the run ends after the"
        f" last (default: {NUM_REQUESTS:,})"
    )
    add("--requests", type=positive, metavar="N", help=of_requests)
    alone = (
        "compute a random N of the answered sequences alone, instead of all; for each other"
        " sequence, check only that its answers are equal"
    )
    add("--most-alone", type=positive, metavar="N", help=alone)
    of_callers = (
        "number of concurrent callers; with --rate the largest number of connections (default: 8)"
    )
    add("--concurrency", type=positive, default=8, metavar="N", help=of_callers)
    of_rate = "open loop: Poisson arrivals per second; latency is measured from the scheduled time"
    add("--rate", type=above_zero, metavar="REQUESTS", help=of_rate)
    of_length = "length of the run (default: 10)"
    add("--seconds", type=above_zero, default=10.0, metavar="S", help=of_length)
    of_warm_up = "part of the run that is not counted (default: 1)"
    add("--warm-up", type=not_negative, default=1.0, metavar="S", help=of_warm_up)
    of_type = "media type of the answers: application/vnd.safetensors or JSON (default: JSON)"
    add("--accept", metavar="TYPE", help=of_type)
    of_bits = (
        f"largest difference allowed, instead of equal bits; use {NAIVE_TOLERANCE:g} for other"
        " servers"
    )
    add("--tolerance", type=float, metavar="X", help=of_bits)
    of_pid = "process id of the server; adds its CPU time and memory"
    add("--pid", type=int, metavar="N", help=of_pid)
    of_seed = "random seed of the requests (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=of_seed)
    add("--api-key-env", metavar="VARIABLE", help=OF_KEY)
    add("--json", type=Path, metavar="FILE", help="file for the result")
    parser.set_defaults(refuse=parser.error)
    addresses.add_options(parser)


def _add_hold(parser: Parser) -> None:
    add = parser.add_argument
    add("server", metavar="URL[#NAME][@PRECISION]", help="a server, and one of its models")
    of_target = "requests per second"
    add("--target", type=above_zero, required=True, metavar="REQUESTS", help=of_target)
    of_texts = "texts per request (default: 1)"
    add("--texts", type=positive, default=1, metavar="N", help=of_texts)
    of_tokens = "average number of tokens per text (default: 60)"
    add("--tokens", type=positive, default=60, metavar="N", help=of_tokens)
    of_p99 = "latency limit for 99 of 100 requests (default: 200)"
    add("--p99-ms", type=above_zero, default=200.0, metavar="MS", help=of_p99)
    of_price = "price of one machine per hour; adds the cost of a million tokens"
    add("--price-per-hour", type=above_zero, metavar="P", help=of_price)
    add("--api-key-env", metavar="VARIABLE", help=OF_KEY)


def _add_beside(parser: Parser) -> None:
    add = parser.add_argument
    of_side = (
        "URL[#NAME][@PRECISION]; the URL may include the path before /embeddings, such as"
        " http://localhost:8080/v3"
    )
    add("a", metavar="A", help=of_side)
    add("b", metavar="B", help="the same of the other server")
    of_file = "file with one text per line (default: 256 pieces of Python's documentation)"
    add("--texts-file", type=Path, metavar="FILE", help=of_file)
    of_texts = "texts per request (default: 1)"
    add("--texts", type=positive, default=1, metavar="N", help=of_texts)
    of_callers = "number of concurrent callers (default: 8)"
    add("--concurrency", type=positive, default=8, metavar="N", help=of_callers)
    of_length = "length of the measurement (default: 10)"
    add("--seconds", type=above_zero, default=10.0, metavar="S", help=of_length)
    for_both = f"{OF_KEY} of A; given again: of B"
    add("--api-key-env", action="append", default=[], metavar="VARIABLE", help=for_both)
