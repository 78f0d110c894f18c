"""`python -m addnorm.load.stress.scenarios.soak --bundle BUNDLE --minutes 20`: mixed traffic for long, every answer checked.

Turns through profiles and precisions; prints how memory and tail latency moved between the first half and the second.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from statistics import median
from time import monotonic

from addnorm.load import servers
from addnorm.load.bench.check import Reference, alone
from addnorm.load.bench.run import Load, Result, measure
from addnorm.load.bench.stream import PROFILES, Stream, make
from addnorm.load.servers import Server
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

TURN_S = 5.0
MIX = ("small", "hidden", "long", "big")
MAX_GROWTH = 1.05  # of resident memory, second half over first
MAX_DRIFT = 1.25  # of p99: other work on the machine moves it by as much


Turn = tuple[str, Stream, Reference]


def turns(bundle: Bundle) -> list[Turn]:
    """Each profile in each precision, its right answers known."""
    references = {
        precision: Reference(alone(bundle, precision)) for precision in bundle.manifest.precisions
    }
    made = []
    for profile, (precision, reference) in product(MIX, references.items()):
        stream = make(PROFILES[profile], bundle.manifest.limits, fields={"precision": precision})
        reference.learn(stream, f"{profile} {precision}")
        made.append((f"{profile} {precision}", stream, reference))
    return made


def soak(server: Server, mix: list[Turn], seconds: float) -> Iterator[tuple[str, Result]]:
    """Turn after turn, whole rounds of all, the first as a warm-up not given back."""
    started = monotonic()
    for number, (name, stream, reference) in enumerate(cycle(mix)):
        if number % len(mix) == 0 and monotonic() - started > seconds:
            return
        result = measure(server, stream, reference, Load(8, TURN_S, warm_up_s=0.0), progress=False)
        if number >= len(mix):
            yield name, result


def report(results: list[tuple[str, Result]]) -> list[str]:
    """Prints the figures. -> in words what they miss"""
    half = len(results) // 2
    first, second = results[:half], results[half:]
    rss = [median(result.server_rss_mib or 0.0 for _, result in part) for part in (first, second)]
    drifts = {
        name: median(r.p99_ms for n, r in second if n == name)
        / median(r.p99_ms for n, r in first if n == name)
        for name in dict(results)
    }
    num_answers = sum(result.num_answers for _, result in results)
    num_errors = sum(result.num_errors for _, result in results)
    print(f"answers {num_answers}, not right {num_errors}")
    print(f"memory, MiB: first half {rss[0]:.0f}, second {rss[1]:.0f}, ratio {rss[1] / rss[0]:.3f}")
    for name, drift in drifts.items():
        print(f"p99 of {name}: second half over first {drift:.2f}")
    missed = {
        f"{num_errors} answers were not right": num_errors > 0,
        f"memory grew over {MAX_GROWTH}": rss[1] > MAX_GROWTH * rss[0],
        f"p99 drifted over {MAX_DRIFT} in the median": median(drifts.values()) > MAX_DRIFT,
    }
    return [words for words, is_missed in missed.items() if is_missed]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m addnorm.load.stress.scenarios.soak", description=__doc__
    )
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20.0)
    arguments = parser.parse_args()
    bundle = bundles.read(arguments.bundle)
    mix = turns(bundle)
    with servers.addnorm(bundle) as server:
        results = list(soak(server, mix, 60 * arguments.minutes))
    if missed := report(results):
        sys.exit("; ".join(missed))


if __name__ == "__main__":
    main()
