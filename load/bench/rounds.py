"""Sides measured in turn (A B C A B C ...) within the time that was granted."""

import time

from tqdm import tqdm

from addnorm.load.bench.contenders import FP32, INT8, NAIVE, Contenders
from addnorm.load.bench.run import Figures, Load
from addnorm.load.bench.sides import Side
from addnorm.load.bench.tables import Rounds, median

FRACTIONS = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)  # of a contender's own capacity: loads of the open loop
SATURATED_MS = 1000.0  # median latency from which more load says nothing new
NUM_BITS = 2000  # answers that must have been compared bit for bit in the end
RUN_S = (0.4, 5.0)  # least and most seconds of one run
MIN_ARRIVALS = 30  # of one open-loop run: fewer have no percentiles
MIN_ROUNDS = 5  # aimed at; the time that was granted wins


class Clock:
    """The time that is left of what was granted, and a bar of it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        shape = "{n}/{total} s |{bar}| {desc}"
        self._bar = tqdm(total=round(seconds), unit="s", bar_format=shape, disable=None)

    def left_s(self) -> float:
        return self._end - time.monotonic()

    def show(self, what: str) -> None:
        self._bar.n = min(self._bar.total, self._bar.total - int(self.left_s()))
        self._bar.set_description_str(what)

    def close(self) -> None:
        self._bar.close()


def prepare(sides: list[Side], clock: Clock) -> None:
    """Starts servers and computes right answers: none of it is timed."""
    for side in sides:
        clock.show(f"preparing {side.key}")
        side.prepare()


def interleave(sides: list[Side], budget_s: float, clock: Clock) -> Rounds:
    """Rounds over all sides, as many as fit, at least one. -> key -> figures of each round."""
    least, most = RUN_S
    run_s = min(most, max(least, budget_s / MIN_ROUNDS / len(sides)))
    figures: Rounds = {side.key: [] for side in sides}
    end = clock.left_s() - budget_s
    while True:
        before = clock.left_s()
        for side in sides:
            clock.show(f"round {len(figures[sides[0].key])}: {side.key}")
            if not (side.once and figures[side.key]):
                figures[side.key].append(side.measure(run_s))
        if 2 * clock.left_s() - before < end:
            return figures


def open_loops(preset: Contenders, figures: Rounds, budget_s: float, clock: Clock) -> Rounds:
    """Latency from a lone caller, at rate 0, to each contender's capacity, which is what 32 callers
    reach (closed loop). A contender whose median is past SATURATED_MS gets no more load."""
    capacity = {
        who: rate
        for who in (NAIVE, FP32, INT8)
        if who in preset and (rate := median(figures[f"small-32/{who}"], "requests_per_s")) > 0
    }
    loads = [(who, share * of_all) for share in FRACTIONS for who, of_all in capacity.items()]
    if not loads:
        return {}  # nobody gave a right answer
    num_arrivals = max(MIN_ARRIVALS, budget_s / sum(1 / rate for _, rate in loads))
    points = {who: [_lone(figures[f"small-1/{who}"])] for who in capacity}
    for who, rate in loads:
        clock.show(f"open loop, {rate:.0f} requests/s: {who}")
        if points[who][-1]["p50_ms"] < SATURATED_MS:
            load = Load(64, num_arrivals / rate, rate)
            points[who].append({"rate": rate, **preset[who].run("small", load)})
    return points


def _lone(rounds: list[Figures]) -> Figures:
    return {"rate": 0.0, **{name: median(rounds, name) for name in ("p50_ms", "p99_ms")}}


def bits(preset: Contenders, so_far: Rounds, clock: Clock) -> dict[str, Figures]:
    """How many answers of Addnorm were compared bit for bit, and how many were not right."""
    counted = {}
    for who in (FP32, INT8):
        if who not in preset:
            continue
        counted[who] = compared(who, so_far)
        num_missing = NUM_BITS - int(counted[who]["num_answers"])
        if num_missing > 0:
            clock.show(f"{num_missing} more answers: {who}")
            load = Load(32, max(RUN_S[0], clock.left_s() / 2), num_answers=num_missing)
            more = {f"bits/{who}": [preset[who].run("small", load)]}
            counted[who] = compared(who, so_far | more)
    return counted


def compared(who: str, so_far: Rounds) -> Figures:
    """How many of its answers were compared, and how many were not right."""
    keys = [key for key in so_far if key.endswith(f"/{who}") and not key.startswith("tiny")]
    runs = [figures for key in keys for figures in so_far[key]]
    return {name: sum(run.get(name, 0) for run in runs) for name in ("num_answers", "num_errors")}
