"""`python -m addnorm.load.bench --bundle BUNDLE --padded PADDED`: Addnorm beside a naive server.

Naive, addnorm fp32 and addnorm int8 are measured in turn (A B C A B C ...). Every answer is
checked. Writes load/report/.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from addnorm.load.bench import report
from addnorm.load.bench.report import Figures
from addnorm.load.bench.run import Load
from addnorm.load.bench.sides import (
    Contender,
    Side,
    closed_sides,
    start,
    tensor_sides,
    tiny_sides,
    typed_side,
)
from addnorm.load.machine import machine
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

FRACTIONS = (
    0.1,
    0.25,
    0.5,
    0.75,
    0.9,
    1.0,
)  # of addnorm's own capacity: the loads of the open loop
SATURATED_MS = 1000.0  # median latency from which more load says nothing new
NUM_BITS = 2000  # answers that must have been compared bit for bit in the end
RUN_S = (0.4, 5.0)  # least and most seconds of one run
MIN_OPEN_S = 1.0  # of one open-loop run: fewer arrivals have no percentiles
MIN_ROUNDS = 3  # aimed at; `--minutes` wins


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


def interleave(sides: list[Side], budget_s: float, clock: Clock) -> dict[str, list[Figures]]:
    """Rounds over all sides, as many as fit, at least one. -> key -> figures of each round."""
    least, most = RUN_S
    run_s = min(most, max(least, budget_s / MIN_ROUNDS / len(sides)))
    figures: dict[str, list[Figures]] = {side.key: [] for side in sides}
    end = clock.left_s() - budget_s
    while True:
        before = clock.left_s()
        for side in sides:
            clock.show(f"round {len(figures[sides[0].key])}: {side.key}")
            if not (side.once and figures[side.key]):
                figures[side.key].append(side.measure(run_s))
        if 2 * clock.left_s() - before < end:
            return figures


def open_loops(
    contenders: list[Contender], capacity: float, budget_s: float, clock: Clock
) -> dict[str, list[Figures]]:
    """Latency at growing shares of `capacity` (requests/s), until a contender is saturated."""
    seconds = max(MIN_OPEN_S, budget_s / len(FRACTIONS) / len(contenders))
    points: dict[str, list[Figures]] = {contender.name: [] for contender in contenders}
    for fraction in FRACTIONS:
        for contender in contenders:
            known = points[contender.name]
            clock.show(f"open loop at {fraction:.0%}: {contender.name}")
            if not (known and known[-1]["p50_ms"] > SATURATED_MS):
                rate = fraction * capacity
                known.append({"rate": rate, **contender.run("small", Load(64, seconds, rate))})
    return points


def bits(
    contenders: list[Contender], so_far: dict[str, list[Figures]], clock: Clock
) -> dict[str, Figures]:
    """How many answers of addnorm were compared bit for bit, and how many were not right."""
    counted = {}
    for contender in contenders[1:]:
        keys = [
            key
            for key in so_far
            if key.endswith(f"/{contender.name}") and not key.startswith("tiny")
        ]
        runs = [figures for key in keys for figures in so_far[key]]
        num_missing = NUM_BITS - int(sum(run.get("num_answers", 0) for run in runs))
        if num_missing > 0:
            clock.show(f"{num_missing} more answers: {contender.name}")
            load = Load(32, max(RUN_S[0], clock.left_s() / 2), num_answers=num_missing)
            runs.append(contender.run("small", load))
        sums = {
            name: sum(run.get(name, 0) for run in runs) for name in ("num_answers", "num_errors")
        }
        counted[contender.name] = sums
    return counted


def main() -> None:
    arguments = _parser().parse_args()
    bundle, padded = _same_model(arguments.bundle, arguments.padded)
    where = machine()
    clock = Clock(60 * arguments.minutes)
    with ExitStack() as stack:
        clock.show("starting servers")
        contenders = start(stack, bundle, padded)
        typed = typed_side(stack, contenders[0], padded)
        tiny = tiny_sides(stack, bundles.read(arguments.tiny)) if arguments.tiny else ()
        sides = [
            side
            for side in (*closed_sides(contenders), typed, *tensor_sides(contenders), *tiny)
            if _is_wanted(side.line, arguments.only)
        ]
        figures = interleave(sides, 0.75 * clock.left_s(), clock)
        points: dict[str, list[Figures]] = {}
        if "small-32/addnorm" in figures and _is_wanted("open", arguments.only):
            capacity = report.median(figures["small-32/addnorm"], "requests_per_s")
            points = open_loops(contenders, capacity, 0.7 * clock.left_s(), clock)
        counted = bits(
            contenders, figures | {f"open/{who}": runs for who, runs in points.items()}, clock
        )
    clock.close()
    print(report.write(arguments.out, report.Findings(bundle, where, figures, points, counted)))
    if any(run.get("num_errors") for runs in (*figures.values(), *points.values()) for run in runs):
        raise SystemExit("some answers were not right: see bench.json")


def _same_model(packed: Path, padded: Path) -> tuple[Bundle, Bundle]:
    """Both bundles, one model in two layouts: else the ratios would say nothing."""
    ours, theirs = bundles.read(packed), bundles.read(padded)
    for bundle, layout in ((ours, "packed"), (theirs, "padded")):
        if bundle.manifest.layout != layout:
            raise SystemExit(
                f"{bundle.path} has layout {bundle.manifest.layout}:"
                f" export it with --layout {layout}"
            )
    if ours.manifest.source != theirs.manifest.source:
        raise SystemExit(
            f"{packed} and {padded} are of different models:"
            f" {ours.manifest.source}, {theirs.manifest.source}"
        )
    return ours, theirs


def _is_wanted(line: str, only: list[str] | None) -> bool:
    return not only or any(line.startswith(wanted) for wanted in only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.bench", description=__doc__)
    parser.add_argument(
        "--bundle", type=Path, required=True, help="<bundles>/<name>/<version>, layout packed"
    )
    parser.add_argument(
        "--padded",
        type=Path,
        required=True,
        help="the same model in layout padded, for the naive server",
    )
    parser.add_argument(
        "--tiny", type=Path, help="a bundle of the preset notebook: what the server itself costs"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="about how long to measure; one round at least"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="LINE", help="big small hidden offline sgemm longest tiny open"
    )
    parser.add_argument("--out", type=Path, default=Path("load/report"))
    return parser


if __name__ == "__main__":
    main()
