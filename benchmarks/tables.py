"""Tables of what was measured: contenders beside a baseline, latency against load."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median as middle

from addnorm.load.run import Figures
from benchmarks.contender import FP32, INT8, NAIVE
from benchmarks.rounds import Rounds, median

CPU = "server_cpu_s_per_1000_tokens"  # hardly moved by others on the machine
MEASURES = {
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "tokens_per_s": "useful tokens/s",
    "requests_per_s": "requests/s",
    "texts_per_s": "texts/s",
    CPU: "CPU s for 1,000 tokens",
}
TITLES = {NAIVE: "naive", FP32: "Addnorm fp32", INT8: "Addnorm int8"}
BEFORE = "before-"  # begins the name of what another checkout serves


@dataclass(frozen=True)
class Row:
    """A load and a measure, of all contenders. Ratios are over the baseline; more is better."""

    title: str
    metric: str
    line: str
    base: str = NAIVE

    def cells(
        self, figures: Rounds, columns: Sequence[str], titles: Mapping[str, str] = TITLES
    ) -> list[str] | None:
        """None if only the baseline was measured, or nothing."""
        of = {who: figures[key] for who in titles if (key := f"{self.line}/{who}") in figures}
        base = self.base
        if not set(of) - {base}:
            return None
        values = {who: short(median(rounds, self.metric)) for who, rounds in of.items()}
        baseline = f"{titles[base]}: {values[base]}" if base in of else "-"
        cells = [self.title, MEASURES.get(self.metric, self.metric), baseline]
        for who in columns:
            ratio = f" ({spread(self.ratios(of, who, base))})" if base in of else ""
            cells.append(f"{values[who]}{ratio}" if who in of else "-")
        for now, before in pairs(columns):
            both = {now, before} <= set(of)
            cells.append(spread(self.ratios(of, now, before)) if both else "-")
        return [*cells, f"`{self.line}`"]

    def ratios(self, of: Mapping[str, list[Figures]], who: str, base: str) -> list[float]:
        """Ratios of `who` to `base`, one for each round. More is better. of: figures by side."""
        if not {who, base} <= set(of):
            return []
        over, under = (who, base) if is_rate(self.metric) else (base, who)
        return ratios(of[over], of[under], self.metric)


def is_rate(metric: str) -> bool:
    """True if more of it is better. Of all else, less is."""
    return metric.endswith("_per_s")


def pairs(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Contenders of this checkout, and the same of the other."""
    return [(who, f"{BEFORE}{who}") for who in columns if f"{BEFORE}{who}" in columns]


def ratios(over: list[Figures], under: list[Figures], metric: str) -> list[float]:
    """Ratios for each round in which both were measured. A side that was measured once is paired
    with itself in every round."""
    num = max(len(over), len(under))
    over, under = (side * (num if len(side) == 1 else 1) for side in (over, under))
    rounds = zip(over, under, strict=True)
    both = ((a[metric], b[metric]) for a, b in rounds if metric in a and metric in b)
    return [a / b if b else nan for a, b in both]


def spread(values: Sequence[float]) -> str:
    """Median, least - most."""
    if not values:
        return "-"
    extremes = f", {min(values):.2f} - {max(values):.2f}" if len(values) > 1 else ""
    return f"**{middle(values):.2f} x**{extremes}"


def short(value: float) -> str:
    if isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def padding_share(longest: int) -> float:
    """The share of pads in the requests of `longest-N`: 32 sequences of 30 tokens on average."""
    return 1 - 30 / longest


def contenders_table(
    figures: Rounds, rows: Sequence[Row], titles: Mapping[str, str] = TITLES
) -> str:
    """A column for each contender that is no baseline; the last one names the line. A column in
    which nothing was measured is left out."""
    measured = {key.partition("/")[2] for key in figures}
    bases = {row.base for row in rows}
    columns = [who for who in titles if who in measured - bases]
    cell_rows = [cells for row in rows if (cells := row.cells(figures, columns, titles))]
    beside = [f"{now}, now over before" for now, _ in pairs(columns)]
    names = ["load", "measure", "baseline", *(titles[who] for who in columns), *beside, "line"]
    places = [i for i in range(len(names)) if any(cells[i] != "-" for cells in cell_rows)]
    lines = [[cells[i] for i in places] for cells in cell_rows]
    return table([names[i] for i in places], lines) if cell_rows else ""


def open_loop_table(points: Rounds, titles: Mapping[str, str] = TITLES) -> str:
    """Latency against load, the figures of the picture."""
    rows = [
        (
            titles[who],
            short(load["rate"]) if load["rate"] else "a lone caller",
            *(short(load[metric]) for metric in ("p50_ms", "p99_ms")),
        )
        for who, loads in points.items()
        for load in loads
    ]
    return table(["server", "requests offered per second", "p50, ms", "p99, ms"], rows)


def bullets(entries: Iterable[tuple[str, object, str]]) -> str:
    """A Markdown list of names, with what is said of each in brackets, and what each means."""
    return "\n".join(
        f"- {name} ({aside}): {text}" if aside != "" else f"- {name}: {text}"
        for name, aside, text in entries
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
