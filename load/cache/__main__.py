"""`python -m addnorm.load.cache --bundle BUNDLE`: what the cache brings, and what it costs.

Two servers of the bundle, cache on and cache off, get the same requests one after the other:
repeats by Zipf's law, then sequences that are all new. All answers of both are compared. Writes
load/report/cache.*.
"""

import argparse
import sys
from pathlib import Path

from addnorm.load import servers
from addnorm.load.bench import pool
from addnorm.load.bench.check import Reference, alone
from addnorm.load.bench.run import Load, measure
from addnorm.load.bench.stream import PROFILES
from addnorm.load.cache import report
from addnorm.load.cache.pairs import Traffic, run
from addnorm.load.cache.report import Measured
from addnorm.load.machine import machine
from addnorm.load.stress.findings import Findings
from addnorm.service.runtime import bundle as bundles
from addnorm.service.settings import Settings

PROFILE = PROFILES["small"]
NUM_WARM_UP = 50  # requests that both servers get before; the cache knows none of the others yet
MOST_ALONE = 50  # sequences of a part that are computed alone
# servers that choose their budgets at warm-up may choose different ones: up to 6 % of speed
ALIKE = {"ADDNORM_TOKEN_BUDGET": "256"}
DEFAULT_CACHE_BYTES = Settings.model_fields["cache_bytes"].default


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    where = machine()
    measured = _measured(arguments)
    seen = {
        "machine": where,
        "bundle": str(arguments.bundle),
        "cache_bytes": arguments.cache_bytes,
        "exponent": arguments.zipf,
        "distinct": arguments.distinct,
        "concurrency": arguments.concurrency,
        **measured.facts(),
    }
    findings = Findings(
        report.markdown(where, measured), report.missed(measured), seen, measured.plot
    )
    print(findings.write(arguments.out, "cache"))
    if findings.missed:
        sys.exit(1)


def _measured(arguments: argparse.Namespace) -> Measured:
    bundle = bundles.read(arguments.bundle)
    limits, seed = bundle.manifest.limits, arguments.seed
    fields = {"precision": arguments.precision} if arguments.precision else {}
    precision = arguments.precision or bundle.manifest.default_precision
    reference = Reference(alone(bundle, precision), most_alone=MOST_ALONE)
    num_repeating = arguments.rounds * arguments.requests
    repeating = pool.zipf(
        PROFILE, limits, num_repeating, arguments.zipf, arguments.distinct, seed, fields
    )
    num_new = arguments.unique_rounds * arguments.unique_requests
    new = pool.unique(PROFILE, limits, num_new, seed, fields, repeating.requests)
    sent = [*repeating.requests, *new.requests]
    warm_up = pool.unique(PROFILE, limits, NUM_WARM_UP, seed + 1, fields, sent)
    zipf = Traffic("repeats", repeating.parts(arguments.requests))
    unique = Traffic("all new", new.parts(arguments.unique_requests))
    cached = servers.addnorm(bundle, **ALIKE, ADDNORM_CACHE_BYTES=str(arguments.cache_bytes))
    with cached as on, servers.addnorm(bundle, **ALIKE) as off:
        for server in (on, off):
            measure(server, warm_up, reference, Load(8, 60.0, warm_up_s=0.0), progress=False)
        for traffic in (zipf, unique):
            run(traffic, on, off, reference, arguments.concurrency)
    return Measured(zipf, unique, *reference.coverage(sent))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.cache", description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, required=True, help="what both serve: <bundles>/<name>/<version>")
    add("--precision", help="sent in each body (the bundle's default)")
    add("--zipf", type=float, default=1.0, metavar="EXPONENT", help="of the repeats (1.0)")
    add("--distinct", type=int, default=50_000, help="sequences that repeat (50,000)")
    add("--rounds", type=int, default=8, help="pairs with repeats; the first one is cold (8)")
    add("--requests", type=int, default=1000, help="of each (1,000)")
    add("--unique-rounds", type=int, default=60, help="pairs without any repeat (60)")
    add("--unique-requests", type=int, default=100, help="of each (100)")
    add("--concurrency", type=int, default=8, help="callers (8)")
    add("--cache-bytes", type=int, default=DEFAULT_CACHE_BYTES, help="ADDNORM_CACHE_BYTES")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("load/report"), help="folder of the report (load/report)")
    return parser


if __name__ == "__main__":
    main()
