"""Mixed traffic for long, every answer checked: memory and tail latency must not move."""

from collections.abc import Iterator
from itertools import cycle, product
from statistics import median
from time import monotonic

from addnorm.load.measure.check import Reference, alone
from addnorm.load.measure.run import Load, Result, measure
from addnorm.load.measure.stream import PROFILES, Stream, make
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from benchmarks import processes
from benchmarks.findings import Findings, Options, figures_table

TURN_S = 5.0
MIN_ROUNDS = 3  # one to warm up, two to compare
MIX = ("small", "hidden", "long", "big")
MAX_GROWTH = 1.05  # of resident memory, second half over first
MAX_DRIFT = 1.25  # of p99: other work on the machine moves it by as much


Turn = tuple[str, Stream, Reference]


def turns(bundle: Bundle) -> list[Turn]:
    """Each profile in each precision, with the right answers."""
    references = {
        precision: Reference(alone(bundle, precision)) for precision in bundle.manifest.precisions
    }
    made = []
    for profile, (precision, reference) in product(MIX, references.items()):
        stream = make(PROFILES[profile], bundle.manifest.limits, fields={"precision": precision})
        reference.learn(stream.requests, f"{profile} {precision}")
        made.append((f"{profile} {precision}", stream, reference))
    return made


def soak(server: Server, mix: list[Turn], seconds: float) -> Iterator[tuple[str, Result]]:
    """Whole rounds of all turns. The first round warms the server up, and is not given back."""
    started, turn_s = monotonic(), min(TURN_S, seconds / MIN_ROUNDS / len(mix))
    for number, (name, stream, reference) in enumerate(cycle(mix)):
        is_over = monotonic() - started > seconds and number >= MIN_ROUNDS * len(mix)
        if number % len(mix) == 0 and is_over:
            return
        result = measure(server, stream, reference, Load(8, turn_s, warm_up_s=0.0), progress=False)
        if number >= len(mix):
            yield name, result


def run(options: Options) -> Findings:
    mix = turns(options.bundle)
    with processes.addnorm(options.bundle) as server:
        return findings(list(soak(server, mix, 60 * options.minutes)))


def findings(results: list[tuple[str, Result]]) -> Findings:
    half = len(results) // 2
    rss = [_rss_mib(part) for part in (results[:half], results[half:])]
    drifts = {
        name: _p99_ms(results[half:], name) / _p99_ms(results[:half], name)
        for name in dict(results)
    }
    num_wrong = sum(result.num_errors for _, result in results)
    shown = {
        "answers": sum(result.num_answers for _, result in results),
        "answers that are not right": num_wrong,
        "memory in the first half, MiB": rss[0],
        "memory in the second half": rss[1],
        "second half over first": rss[1] / rss[0],
        **{f"p99 of {name}, second half over first": drift for name, drift in drifts.items()},
    }
    drift = median(drifts.values())
    missed = {
        f"{num_wrong} answers were not right": num_wrong > 0,
        f"memory grew over {MAX_GROWTH}": rss[1] > MAX_GROWTH * rss[0],
        f"p99 drifted by {drift:.2f} in the median, at most {MAX_DRIFT}": drift > MAX_DRIFT,
    }
    return Findings(
        figures_table(shown), [goal for goal, is_missed in missed.items() if is_missed], shown
    )


def _rss_mib(results: list[tuple[str, Result]]) -> float:
    return median(result.server_rss_mib or 0.0 for _, result in results)


def _p99_ms(results: list[tuple[str, Result]], name: str) -> float:
    return median(result.p99_ms for turn, result in results if turn == name)
