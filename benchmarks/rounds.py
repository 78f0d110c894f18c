"""Sides measured in turn within the time that was granted: a round is one run of each."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import nan
from statistics import median as middle

from tqdm import tqdm

from addnorm.load.run import OF_KIND, Figures, Load
from benchmarks.contender import FP32, INT8, NAIVE, Contender, Contenders, Line

FRACTIONS = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)  # of a contender's own capacity: loads of the open loop
SATURATED_MS = 1000.0  # median latency from which more load says nothing new
RUN_S = 0.4, 5.0  # least and most of one run
MIN_ARRIVALS = 30  # of one open-loop run: fewer have no percentiles
MIN_ROUNDS = 5  # aimed at; the time that was granted wins
NUM_NAIVE_SWEEP = 2  # eight callers would each wait a minute for its answer to 94 % padding

Rounds = dict[str, list[Figures]]  # `line/who` -> figures of each round


class Clock:
    """The time that is left of what was granted, and a bar of it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        shape = "{n}/{total} s |{bar}| {desc}"
        self._bar = tqdm(total=round(seconds), unit="s", bar_format=shape, disable=None)

    def left_s(self) -> float:
        return self._end - time.monotonic()

    def show(self, text: str) -> None:
        self._bar.n = min(self._bar.total, self._bar.total - int(self.left_s()))
        self._bar.set_description_str(text)

    def close(self) -> None:
        self._bar.close()


@dataclass(frozen=True)
class Side:
    """A subject under a load, which is measured in each round."""

    line: str  # the load
    who: str
    measure: Callable[[float], Figures]  # seconds -> figures
    prepare: Callable[[], object] = lambda: None  # all that must not be timed
    once: bool = False  # too slow for every round

    @property
    def key(self) -> str:
        return f"{self.line}/{self.who}"


def sides_of(contenders: Contenders, lines: Mapping[str, Line]) -> list[Side]:
    """These loads on the contenders that they name, as far as those are there."""
    return [
        _side(name, line, contenders[who])
        for name, line in lines.items()
        for who in line.who
        if who in contenders
    ]


def _side(name: str, line: Line, contender: Contender) -> Side:
    is_slow = name.startswith("longest") and contender.name == NAIVE
    num_callers = NUM_NAIVE_SWEEP if is_slow else line.num_callers
    return Side(
        name,
        contender.name,
        lambda seconds: contender.run(line.traffic, Load(num_callers, seconds)),
        lambda: contender.prepare(line.traffic),
        once=is_slow,
    )


def prepare(sides: Sequence[Side], clock: Clock) -> None:
    """Starts servers and computes right answers: none of it is timed."""
    for side in sides:
        clock.show(f"preparing {side.key}")
        side.prepare()


def interleave(
    sides: Sequence[Side],
    budget_s: float,
    clock: Clock,
    max_rounds: int | None = None,
) -> Rounds:
    """Measures as many rounds as fit, at least one, at most `max_rounds`. The side that is last in
    one round is first in the next."""
    least_s, most_s = RUN_S
    run_s = min(most_s, max(least_s, budget_s / MIN_ROUNDS / len(sides)))
    figures: Rounds = {side.key: [] for side in sides}
    end = clock.left_s() - budget_s
    for number in count(1):
        before = clock.left_s()
        for side in sides if number % 2 else reversed(sides):
            clock.show(f"round {number}: {side.key}")
            if not (side.once and figures[side.key]):
                figures[side.key].append(side.measure(run_s))
        if number == max_rounds or 2 * clock.left_s() - before < end:
            break
    return figures


def open_loops(
    contenders: Contenders,
    figures: Rounds,
    budget_s: float,
    clock: Clock,
) -> Rounds:
    """Latency from a lone caller, at rate 0, to each contender's capacity, which is what 32 callers
    reach (closed loop). A contender whose median is past SATURATED_MS gets no more load."""
    capacity = {
        who: rate
        for who in (NAIVE, FP32, INT8)
        if who in contenders and (rate := median(figures[f"small-32/{who}"], "requests_per_s")) > 0
    }
    loads = [(who, share * of_all) for share in FRACTIONS for who, of_all in capacity.items()]
    if not loads:
        return {}  # nobody gave a right answer
    num_arrivals = max(MIN_ARRIVALS, budget_s / sum(1 / rate for _, rate in loads))
    points = {}
    for who in capacity:
        lone = {name: median(figures[f"small-1/{who}"], name) for name in ("p50_ms", "p99_ms")}
        points[who] = [{"rate": 0.0, **lone}]
    for who, rate in loads:
        clock.show(f"open loop, {rate:.0f} requests/s: {who}")
        if points[who][-1]["p50_ms"] < SATURATED_MS:
            load = Load(64, num_arrivals / rate, rate)
            points[who].append({"rate": rate, **contenders[who].run("small", load)})
    return points


def median(rounds: list[Figures], metric: str) -> float:
    """Not a number where no round has the metric."""
    values = [figures[metric] for figures in rounds if metric in figures]
    return middle(values) if values else nan


def count_answers(who: str, so_far: Rounds) -> Figures:
    """Numbers of its answers that were compared, and that were not right, by kind too."""
    keys = [key for key in so_far if key.endswith(f"/{who}") and not key.startswith("tiny")]
    runs = [figures for key in keys for figures in so_far[key]]
    counts = (
        "num_answers",
        "num_errors",
        *{kind for run in runs for kind in run if kind.startswith(OF_KIND)},
    )
    return {name: sum(run.get(name, 0) for run in runs) for name in counts}
