"""Sides measured in turn -> ratios beside a baseline, and the goals that were missed."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median as middle

from addnorm.load.run import OF_KIND
from benchmarks.findings import Findings, Options
from benchmarks.rounds import Clock, Rounds, Side, interleave, prepare
from benchmarks.tables import Row, contenders_table, is_rate, ratios


@dataclass(frozen=True)
class Goal:
    """A ratio over the baseline, by its median over the rounds. More is better."""

    line: str
    who: str
    base: str
    metric: str
    least: float

    def misses(self, figures: Rounds) -> Iterator[str]:
        """Nothing where it was not measured."""
        keys = [f"{self.line}/{who}" for who in (self.who, self.base)]
        if not all(figures.get(key) for key in keys):
            return
        over, under = keys if is_rate(self.metric) else reversed(keys)
        values = ratios(figures[over], figures[under], self.metric)
        if not values or not middle(values) >= self.least:
            text = f"{middle(values):.3f} x" if values else "nothing"
            yield (
                f"{self.line}, {self.metric}: {self.who} is {text} over {self.base}, "
                f"at least {self.least} x is wanted"
            )


def measure(sides: Sequence[Side], options: Options, max_rounds: int | None = None) -> Rounds:
    """Rounds of the sides that are wanted, in the minutes that are granted."""
    os.environ.pop("OMP_NUM_THREADS", None)  # the peers' own default is a thread for each core
    if not (wanted := [side for side in sides if options.wants(side.line)]):
        return {}
    clock = Clock(60 * options.minutes)
    prepare(wanted, clock)
    rounds = interleave(wanted, clock.left_s(), clock, max_rounds)
    clock.close()
    return rounds


def compare(
    figures: Rounds, rows: Sequence[Row], titles: Mapping[str, str], goals: Sequence[Goal] = ()
) -> Findings:
    num_rounds = max(map(len, figures.values()), default=0)
    note = (
        f"Rounds: {num_rounds}. The figures are medians. In brackets the ratio of the pairs, over "
        "the baseline: **median**, least - most; more is better."
    )
    missed = [sentence for goal in goals for sentence in goal.misses(figures)]
    missed += _not_right(figures)
    return Findings(f"{note}\n\n{contenders_table(figures, rows, titles)}", missed, figures)


def _not_right(figures: Rounds) -> Iterator[str]:
    """A sentence for each side whose answers were not all right."""
    for side, runs in figures.items():
        counts = Counter[str]()
        for run in runs:
            counts.update({kind: int(run[kind]) for kind in run if kind.startswith(OF_KIND)})
        if counts:
            kinds = ((kind.removeprefix(OF_KIND), number) for kind, number in counts.items())
            words = ", ".join(f"{number} {_in_words(kind)}" for kind, number in kinds)
            yield f"{side}: {counts.total()} answers were not right: {words}"


def _in_words(kind: str) -> str:
    if kind == "504":
        return "late (504)"
    return f"refused with {kind}" if kind.isdigit() else kind
