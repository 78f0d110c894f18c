"""The tables of the bench: contenders, Addnorm beside itself and beside what limits it, memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from addnorm.load.stream import SWEEP_LONGEST
from benchmarks import tables
from benchmarks.bench.contenders import INFINITY, ONE_THREAD, READY, TENSORS, TYPED
from benchmarks.bench.lines import LINES, OURS
from benchmarks.contender import FP32, INT8, NAIVE
from benchmarks.rounds import NUM_NAIVE_SWEEP, Rounds, median
from benchmarks.tables import BEFORE, CPU, Row, padding_share, ratios, short, spread, table

TITLES = {
    NAIVE: "naive",
    ONE_THREAD: "naive, one thread",
    TYPED: "naive, typed",
    READY: "ready-made answer",
    INFINITY: "Infinity",
    **tables.TITLES,
    f"{BEFORE}{FP32}": "before, fp32",
    f"{BEFORE}{INT8}": "before, int8",
}
PROCESSES = {  # who -> the process that answers, where it has another name
    who: "Addnorm before" if who.startswith(BEFORE) else "Addnorm"
    for who in (*OURS, *TENSORS.values())
}
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
        values = " / ".join(short(median(side, self.metric)) for side in (over, under))
        lines = dict.fromkeys(key.partition("/")[0] for key in (self.over, self.under))
        who = self.over.partition("/")[2].removesuffix("-tensors")
        return [
            self.title,
            TITLES.get(who, who),
            values,
            spread(ratios(over, under, self.metric)),
            f"`{' '.join(lines)}`",
        ]


def _beside_itself() -> Iterator[Ratio]:
    least, greatest = SWEEP_LONGEST[0], SWEEP_LONGEST[-1]
    shares = f"{padding_share(greatest):.0%} padding over {padding_share(least):.0%}"
    of_each = {  # title -> over, under
        "texts over token ids, the same sequences": ("texts/{}", "ids/{}"),
        "hidden states, safetensors over JSON": ("hidden/{}-tensors", "hidden/{}"),
        f"{shares}, 8 callers": (f"longest-{greatest}/{{}}", f"longest-{least}/{{}}"),
        "70 % padding, served over the engine alone": ("big/{}", "offline/{}"),
        "1 - 4 sequences, 32 callers, served over the engine alone": (
            "small-32/{}",
            "offline-small/{}",
        ),
        "engine, one thread: 512 tokens over 16 tokens": ("engine-512/{}", "engine-16/{}"),
    }
    for title, (over, under) in of_each.items():
        yield from (Ratio(title, over.format(who), under.format(who)) for who in (FP32, INT8))
    swept = (f"longest-{longest}/{NAIVE}" for longest in (greatest, least))
    yield Ratio(f"{shares}, {NUM_NAIVE_SWEEP} callers", *swept)
    for line in ("engine-mixed", "engine-16", "engine-512"):
        yield Ratio(f"`{line}`, one thread: int8 over fp32", f"{line}/{INT8}", f"{line}/{FP32}")
    yield Ratio("engine alone over matrix products alone", f"offline/{FP32}", "sgemm/sgemm")


def ratios_table(figures: Rounds) -> str:
    rows = [cells for ratio in _beside_itself() if (cells := ratio.cells(figures))]
    return table(["what", "of", "useful tokens/s", "ratio", "line"], rows) if rows else ""


def memory(figures: Rounds) -> dict[tuple[str, str], float]:
    """Model and process -> the most resident memory that was seen, MiB."""
    peaks: dict[tuple[str, str], float] = {}
    for key, rounds in figures.items():
        line, who = key.split("/")
        for model in (model for model, lines in LINES.items() if line in lines):
            process = model, PROCESSES.get(who, TITLES.get(who, who))
            sizes = [figures["server_rss_mib"] for figures in rounds if "server_rss_mib" in figures]
            peaks[process] = max([*sizes, peaks.get(process, 0.0)])
    return peaks


def memory_table(figures: Rounds) -> str:
    rows = [(process, model, short(mib)) for (model, process), mib in memory(figures).items()]
    return table(["server", "model", "resident memory at most, MiB"], rows) if rows else ""
