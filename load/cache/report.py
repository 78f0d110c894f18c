"""The pairs -> tables of ratios, and the goals that were missed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from addnorm.load import plots
from addnorm.load.cache.pairs import Pair, Traffic
from addnorm.load.stress.findings import table

MIN_ZIPF_RATE = 2.0  # useful tokens/s, cache on over cache off
MAX_ZIPF_P50 = 0.5
MIN_UNIQUE_RATE = 0.98
NUM_RESAMPLES = 10_000  # of the bootstrap
COUNTED = {  # a field of Result -> what it is called
    "tokens_per_s": "useful tokens/s",
    "p50_ms": "p50 of a request",
    "p99_ms": "p99 of a request",
    "server_cpu_s_per_1000_tokens": "CPU time for a useful token",
}


@dataclass(frozen=True)
class Measured:
    """Both kinds of traffic, the distinct sequences in them, and how many were computed alone."""

    zipf: Traffic
    unique: Traffic
    num_sequences: int
    num_alone: int

    @property
    def pairs(self) -> list[Pair]:
        return [*self.zipf.pairs, *self.unique.pairs]

    @property
    def num_errors(self) -> int:
        return sum(pair.on.num_errors + pair.off.num_errors for pair in self.pairs)

    def warm(self, metric: str) -> list[float]:
        """Ratios of the pairs with repeats. Without the first, which is cold, if there are more."""
        ratios = self.zipf.ratios(metric)
        return ratios[1:] or ratios

    def facts(self) -> dict[str, object]:
        return {
            "num_sequences": self.num_sequences,
            "num_alone": self.num_alone,
            "zipf": self.zipf.facts(),
            "unique": self.unique.facts(),
        }

    def plot(self, path: Path) -> None:
        rates = {
            "cache off": [pair.off.tokens_per_s for pair in self.zipf.pairs],
            "cache on": [pair.on.tokens_per_s for pair in self.zipf.pairs],
        }
        plots.cache(path, rates, self.unique.ratios("tokens_per_s"), MIN_UNIQUE_RATE)


def markdown(where: dict[str, str | int | float], measured: Measured) -> str:
    """Each pair with repeats, then the medians of both kinds of traffic."""
    facts = ", ".join(f"{name} {value}" for name, value in where.items())
    of_pairs = table(
        ["pair", "hits", "tokens/s, off -> on", "ratio", "p50 ms, off -> on", "ratio"],
        [(_name(number), *_cells(pair)) for number, pair in enumerate(measured.zipf.pairs)],
    )
    medians = table(
        ["traffic", "cache on over cache off", "median", "95 % of it", "range", "pairs"],
        [
            (name, meaning, *_spread(ratios(metric)))
            for name, ratios in (("repeats", measured.warm), ("all new", measured.unique.ratios))
            for metric, meaning in COUNTED.items()
        ],
    )
    return "\n\n".join([facts, of_pairs, medians, _checked(measured)])


def _name(number: int) -> str:
    return f"{number + 1}, warm" if number else "1, cold"


def _cells(pair: Pair) -> tuple[str, ...]:
    return (
        "-" if pair.hit_rate is None else f"{pair.hit_rate:.0%}",
        f"{pair.off.tokens_per_s:,.0f} -> {pair.on.tokens_per_s:,.0f}",
        f"{pair.ratio('tokens_per_s'):.2f}",
        f"{pair.off.p50_ms:.1f} -> {pair.on.p50_ms:.1f}",
        f"{pair.ratio('p50_ms'):.2f}",
    )


def _spread(ratios: Sequence[float]) -> tuple[str, ...]:
    """The median, its interval, the extremes, the number of pairs."""
    if not ratios:
        return "-", "-", "-", "0"
    low, high = interval(ratios)
    extremes = f"{min(ratios):.3f} - {max(ratios):.3f}"
    return f"**{median(ratios):.3f}**", f"{low:.3f} - {high:.3f}", extremes, str(len(ratios))


def _median(ratios: Sequence[float]) -> float:
    """Not a number if no answers were right: then that is the goal that was missed."""
    return median(ratios) if ratios else float("nan")


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, by the bootstrap."""
    draws = np.random.default_rng(seed)
    resamples = draws.choice(np.array(values), (NUM_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(resamples, axis=1), [2.5, 97.5])
    return float(low), float(high)


def _checked(measured: Measured) -> str:
    num_answers = sum(pair.on.num_answers + pair.off.num_answers for pair in measured.pairs)
    return (
        f"{num_answers:,} answers, {measured.num_errors:,} of them not right. All answers to a "
        "sequence, of both servers, were compared bit for bit. Of "
        f"{measured.num_sequences:,} sequences {measured.num_alone:,} were computed alone too."
    )


def missed(measured: Measured) -> list[str]:
    """The goals that were missed, a sentence each."""
    rate, p50 = _median(measured.warm("tokens_per_s")), _median(measured.warm("p50_ms"))
    unique_rate = _median(measured.unique.ratios("tokens_per_s"))
    goals = {
        f"{measured.num_errors} answers were not right": measured.num_errors > 0,
        f"repeats: {rate:.2f} x the tokens/s, at least {MIN_ZIPF_RATE}": rate < MIN_ZIPF_RATE,
        f"repeats: {p50:.2f} x the p50, at most {MAX_ZIPF_P50}": p50 > MAX_ZIPF_P50,
        f"all new: {unique_rate:.3f} x the tokens/s, at least {MIN_UNIQUE_RATE}": (
            unique_rate < MIN_UNIQUE_RATE
        ),
    }
    return [goal for goal, is_missed in goals.items() if is_missed]
