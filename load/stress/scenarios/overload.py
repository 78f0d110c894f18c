"""`python -m addnorm.load.stress.scenarios.overload --bundle BUNDLE`: several times what the server can do, open loop, with a deadline.

It must keep doing what it can, answer what it accepts in time, and refuse the rest at once, saying when to come back.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from addnorm.load import servers
from addnorm.load.bench.check import Reference, alone
from addnorm.load.bench.run import Load, Result, measure
from addnorm.load.bench.stream import PROFILES, make
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.settings import usable_cores

REFUSALS = {"429", "503", "504"}
TIMES = 5.0  # the server's capacity
DEADLINE_MS = 1000
CONNECTIONS = 1024  # more than ever wait: the client must not be what limits
MIN_GOODPUT = (
    0.8  # of what the client leaves: docs/performance.md has what was seen, this is well below it
)
LATE = 1.05  # of the deadline: answers are written and read after it was met
MAX_GROWTH = 1.05  # of resident memory


def overload(
    bundle: Bundle, seconds: float, times: float = TIMES
) -> tuple[dict[str, float], list[str]]:
    """Figures, and in words what they miss."""
    reference = Reference(alone(bundle, "fp32"))
    stream = make(PROFILES["small"], bundle.manifest.limits, fields={"precision": "fp32"})
    reference.learn(stream)
    closed = Load(32, min(10.0, seconds), warm_up_s=2.0)
    with servers.addnorm(bundle) as server:
        before = measure(server, stream, reference, closed, progress=False)
        load = Load(
            CONNECTIONS,
            seconds,
            times * before.requests_per_s,
            headers=(f"X-Request-Timeout-Ms: {DEADLINE_MS}",),
        )
        early = measure(
            server, stream, reference, replace(load, seconds=0.2 * seconds), progress=False
        )
        flood = measure(server, stream, reference, load, progress=False)
        after = measure(
            server, stream, reference, closed, progress=False
        )  # the machine may not be what it was
    capacity = (before.tokens_per_s + after.tokens_per_s) / 2
    left = (usable_cores() - _client_cores(flood)) / (usable_cores() - _client_cores(before))
    goodput = flood.tokens_per_s / capacity
    figures = {
        "capacity, tokens/s": capacity,
        "capacity before, requests/s": before.requests_per_s,
        "offered, requests/s": load.rate or 0.0,
        "answered with 200": flood.num_answers - flood.num_errors,
        **{f"refused with {status}": number for status, number in flood.errors.items()},
        "goodput over capacity, tokens": goodput,
        "cores that the client takes": _client_cores(flood),
        "goodput over what that leaves": goodput / left,
        "p99 of the accepted, ms": flood.p99_ms,
        "deadline, ms": DEADLINE_MS,
        "refusals without Retry-After": flood.num_without_when,
        "memory over a fifth of the flood": (flood.server_rss_mib or 0)
        / (early.server_rss_mib or 1),
    }
    missed = {
        f"answers that are neither right nor a refusal: {flood.errors}": not set(flood.errors)
        <= REFUSALS,
        f"goodput below {MIN_GOODPUT} of what the client leaves": goodput / left < MIN_GOODPUT,
        "p99 of the accepted beyond the deadline": flood.p99_ms > LATE * DEADLINE_MS,
        "refusals without Retry-After": flood.num_without_when > 0,
        f"memory grew over {MAX_GROWTH}": figures["memory over a fifth of the flood"] > MAX_GROWTH,
    }
    return figures, [words for words, is_missed in missed.items() if is_missed]


def _client_cores(result: Result) -> float:
    """What this process takes from the server, where both share a machine."""
    return result.client_cpu_ms_per_request * result.num_answers / 1000 / result.wall_s


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m addnorm.load.stress.scenarios.overload", description=__doc__
    )
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=TIMES, help="the server's own capacity")
    arguments = parser.parse_args()
    figures, missed = overload(bundles.read(arguments.bundle), arguments.seconds, arguments.times)
    for name, value in figures.items():
        print(f"{name:32s} {value:10,.2f}")
    if missed:
        sys.exit("; ".join(missed))


if __name__ == "__main__":
    main()
