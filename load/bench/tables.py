"""The tables of the report: contenders beside a baseline, Addnorm beside itself, memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median as middle

from addnorm.load.bench.contenders import (
    BEFORE,
    FP32,
    INFINITY,
    INT8,
    NAIVE,
    ONE_THREAD,
    READY,
    TENSORS,
    TYPED,
)
from addnorm.load.bench.run import Figures
from addnorm.load.bench.sides import LINES, NUM_NAIVE_SWEEP
from addnorm.load.bench.stream import SWEEP_LONGEST
from addnorm.load.stress.findings import table

Rounds = dict[str, list[Figures]]  # `line/who` -> figures of each round
RATES = ("tokens_per_s", "requests_per_s")  # more is better; of all else less
CPU = "server_cpu_s_per_1000_tokens"  # hardly moved by others on the machine
MEASURES = {
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "tokens_per_s": "useful tokens/s",
    "requests_per_s": "requests/s",
    CPU: "CPU s for 1,000 tokens",
}
TITLES = {
    NAIVE: "naive",
    ONE_THREAD: "naive, one thread",
    TYPED: "naive, typed",
    READY: "ready-made answer",
    INFINITY: "Infinity",
    FP32: "Addnorm fp32",
    INT8: "Addnorm int8",
    BEFORE[FP32]: "before, fp32",
    BEFORE[INT8]: "before, int8",
}
COLUMNS = (ONE_THREAD, FP32, INT8, *BEFORE.values())  # beside the baseline's
PROCESSES = {  # who -> the process that answers, where it has another name
    FP32: "Addnorm",
    INT8: "Addnorm",
    **dict.fromkeys(BEFORE.values(), "Addnorm before"),
    **dict.fromkeys(TENSORS.values(), "Addnorm"),
}


@dataclass(frozen=True)
class Row:
    """A load and a measure, of all contenders. Ratios are over the baseline; more is better."""

    title: str
    metric: str
    line: str
    base: str = NAIVE

    def cells(
        self, figures: Rounds, columns: list[str], titles: Mapping[str, str] = TITLES
    ) -> list[str] | None:
        """None if only the baseline was measured, or nothing."""
        of = {who: figures[key] for who in titles if (key := f"{self.line}/{who}") in figures}
        if not set(of) - {self.base}:
            return None
        values = {who: _short(median(rounds, self.metric)) for who, rounds in of.items()}
        base = f"{titles[self.base]}: {values[self.base]}" if self.base in of else "-"
        cells = [self.title, MEASURES[self.metric], base]
        for who in columns:
            ratios = f" ({self._ratios(of, who, self.base)})" if self.base in of else ""
            cells.append(f"{values[who]}{ratios}" if who in of else "-")
        for now, before in _pairs(columns):
            cells.append(self._ratios(of, now, before) if {now, before} <= set(of) else "-")
        return [*cells, f"`{self.line}`"]

    def _ratios(self, of: Rounds, who: str, base: str) -> str:
        if who not in of:
            return ""
        over, under = (who, base) if self.metric in RATES else (base, who)
        return spread(ratios(of[over], of[under], self.metric))


def _pairs(columns: list[str]) -> list[tuple[str, str]]:
    """This checkout and the other, in each precision."""
    return [(now, before) for now, before in BEFORE.items() if before in columns]


ROWS = (
    Row("1 - 4 sequences, 1 caller", "p50_ms", "small-1"),
    Row("one sequence of 512 tokens, 1 caller", "p50_ms", "one-512"),
    Row("1 - 4 sequences, 8 callers", "tokens_per_s", "small-8"),
    Row("the same", "p99_ms", "small-8"),
    Row("the same", CPU, "small-8"),
    Row("1 - 4 sequences, 32 callers", "tokens_per_s", "small-32"),
    Row("the same", "p99_ms", "small-32"),
    Row("32 sequences, 70 % padding, 8 callers", "tokens_per_s", "big"),
    Row("the same", CPU, "big"),
    Row("hidden states as JSON, 8 callers", "tokens_per_s", "hidden"),
    Row("the same, naive with a declared answer type", "tokens_per_s", "hidden", TYPED),
    Row("1 - 4 texts on /v1/embeddings, 8 callers", "tokens_per_s", "texts", INFINITY),
    Row("the same", "p99_ms", "texts", INFINITY),
    Row("the same sequences as token ids", "tokens_per_s", "ids", INFINITY),  # which takes no ids
    Row("a model that costs almost nothing, 32 callers", "requests_per_s", "tiny", READY),
)


@dataclass(frozen=True)
class Ratio:
    """`over` / `under`, pair by pair: Addnorm beside itself, and beside what limits it."""

    title: str
    over: str
    under: str
    metric: str = "tokens_per_s"

    def cells(self, figures: Rounds) -> list[str] | None:
        """None where one of the two was not measured."""
        over, under = figures.get(self.over), figures.get(self.under)
        if not over or not under:
            return None
        shown = " / ".join(_short(median(side, self.metric)) for side in (over, under))
        lines = dict.fromkeys(key.partition("/")[0] for key in (self.over, self.under))
        who = self.over.partition("/")[2].removesuffix("-tensors")
        return [
            self.title,
            TITLES.get(who, who),
            shown,
            spread(ratios(over, under, self.metric)),
            f"`{' '.join(lines)}`",
        ]


def _beside_itself() -> Iterator[Ratio]:
    least, most = SWEEP_LONGEST[0], SWEEP_LONGEST[-1]
    shares = f"{padding_share(most):.0%} padding over {padding_share(least):.0%}"
    of_each = {  # title -> over, under
        "texts over token ids, the same sequences": ("texts/{}", "ids/{}"),
        "hidden states, safetensors over JSON": ("hidden/{}-tensors", "hidden/{}"),
        f"{shares}, 8 callers": (f"longest-{most}/{{}}", f"longest-{least}/{{}}"),
        "70 % padding, served over the engine alone": ("big/{}", "offline/{}"),
        "engine, one thread: 512 tokens over 16 tokens": ("engine-512/{}", "engine-16/{}"),
    }
    for title, (over, under) in of_each.items():
        yield from (Ratio(title, over.format(who), under.format(who)) for who in (FP32, INT8))
    swept = (f"longest-{longest}/{NAIVE}" for longest in (most, least))
    yield Ratio(f"{shares}, {NUM_NAIVE_SWEEP} callers", *swept)
    for line in ("engine-mixed", "engine-16", "engine-512"):
        yield Ratio(f"`{line}`, one thread: int8 over fp32", f"{line}/{INT8}", f"{line}/{FP32}")
    yield Ratio("engine alone over matrix products alone", f"offline/{FP32}", "sgemm/sgemm")


def ratios(over: list[Figures], under: list[Figures], metric: str) -> list[float]:
    """Of each round. A side that was measured once is paired with itself in every round."""
    num = max(len(over), len(under))
    over, under = (side * (num if len(side) == 1 else 1) for side in (over, under))
    pairs = zip(over, under, strict=True)
    return [a[metric] / b[metric] if b[metric] else float("nan") for a, b in pairs]


def spread(values: list[float]) -> str:
    """Median, least - most."""
    extremes = f", {min(values):.2f} - {max(values):.2f}" if len(values) > 1 else ""
    return f"**{middle(values):.2f} x**{extremes}"


def median(rounds: list[Figures], metric: str) -> float:
    return middle(figures[metric] for figures in rounds)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def padding_share(longest: int) -> float:
    """Of the sweep's requests: 32 sequences of 30 tokens on average."""
    return 1 - 30 / longest


def memory(figures: Rounds) -> dict[tuple[str, str], float]:
    """Model and process -> the most resident memory that was seen, MiB."""
    most: dict[tuple[str, str], float] = {}
    for key, rounds in figures.items():
        line, who = key.split("/")
        if line in LINES:
            process = LINES[line].model, PROCESSES.get(who, TITLES.get(who, who))
            seen = [figures["server_rss_mib"] for figures in rounds if "server_rss_mib" in figures]
            most[process] = max([*seen, most.get(process, 0.0)])
    return most


def contenders_table(
    figures: Rounds, rows: Sequence[Row] = ROWS, titles: Mapping[str, str] = TITLES
) -> str:
    """The last column names the line. A column in which nothing was measured is left out."""
    measured = {key.partition("/")[2] for key in figures}
    columns = [who for who in COLUMNS if who in measured]
    found = [cells for row in rows if (cells := row.cells(figures, columns, titles))]
    beside = [f"{now}, now over before" for now, _ in _pairs(columns)]
    names = ["load", "measure", "baseline", *(titles[who] for who in columns), *beside, "line"]
    kept = [i for i in range(len(names)) if any(cells[i] != "-" for cells in found)]
    lines = [[cells[i] for i in kept] for cells in found]
    return table([names[i] for i in kept], lines) if found else ""


def open_loop_table(points: Rounds, titles: Mapping[str, str] = TITLES) -> str:
    """Latency against load, the figures of the picture."""
    rows = [
        (
            titles[who],
            _short(load["rate"]) if load["rate"] else "a lone caller",
            *(_short(load[metric]) for metric in ("p50_ms", "p99_ms")),
        )
        for who, loads in points.items()
        for load in loads
    ]
    return table(["server", "requests offered per second", "p50, ms", "p99, ms"], rows)


def ratios_table(figures: Rounds) -> str:
    rows = [cells for ratio in _beside_itself() if (cells := ratio.cells(figures))]
    return table(["what", "of", "useful tokens/s", "ratio", "line"], rows) if rows else ""


def memory_table(figures: Rounds) -> str:
    rows = [(process, model, _short(mib)) for (model, process), mib in memory(figures).items()]
    return table(["server", "model", "resident memory at most, MiB"], rows) if rows else ""
