"""What was measured -> a table of ratios (medians of pairs), all figures as JSON, and the plots."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median as middle

from addnorm.load import plots
from addnorm.load.bench.stream import SWEEP_LONGEST
from addnorm.service.runtime.bundle import Bundle

Figures = dict[str, float]
RATES = ("tokens_per_s", "requests_per_s")  # more is better; of all else less
CPU = "server_cpu_s_per_1000_tokens"  # hardly moved by others on the machine


@dataclass(frozen=True)
class Findings:
    """All figures: of each side a list over rounds, of each server a list over open-loop rates."""

    bundle: Bundle
    machine: dict[str, str | int | float]
    figures: dict[str, list[Figures]]
    points: dict[str, list[Figures]]
    bits: dict[str, Figures]


@dataclass(frozen=True)
class Ratio:
    """A line of the table: `over` / `under`, pair by pair. More is better for addnorm in each."""

    title: str
    metric: str
    over: str
    under: str

    def line(self, figures: dict[str, list[Figures]]) -> str | None:
        """Markdown; None where one of the two was not measured."""
        over, under = figures.get(self.over), figures.get(self.under)
        if not over or not under:
            return None
        over, under = _paired(over, under)
        ratios = [a[self.metric] / b[self.metric] for a, b in zip(over, under, strict=True)]
        scatter = f"{min(ratios):.2f} - {max(ratios):.2f}, {len(ratios)}"
        shown = [_short(median(side, self.metric)) for side in (over, under)]
        names = f"{self.over} / {self.under}"
        cells = (self.title, self.metric, names, " / ".join(shown), f"**{middle(ratios):.2f}**")
        return f"| {' | '.join(cells)} | {scatter} |"


# title, metric, line: what is compared with the naive server
AGAINST_NAIVE = (
    ("`big`, concurrency 8", "tokens_per_s", "big"),
    ("`big`, concurrency 8", CPU, "big"),
    ("`small`, concurrency 1", "p50_ms", "small-1"),
    ("`small`, concurrency 8", "tokens_per_s", "small-8"),
    ("`small`, concurrency 8", "p99_ms", "small-8"),
    ("`small`, concurrency 8", CPU, "small-8"),
    ("`small`, concurrency 32", "tokens_per_s", "small-32"),
    ("`small`, concurrency 32", "p99_ms", "small-32"),
    ("`hidden`, concurrency 8", "tokens_per_s", "hidden"),
)
# title, metric, over, under: ours beside each other and beside the two ceilings
CEILINGS = (
    ("tiny model, concurrency 32: over HTTP alone", "requests_per_s", "tiny/addnorm", "tiny/ready"),
    ("served `big` over the engine offline", "tokens_per_s", "big/addnorm", "offline/addnorm"),
    ("served `big` over the engine offline", "tokens_per_s", "big/int8", "offline/int8"),
    (
        "engine offline over matrices alone (fp32)",
        "tokens_per_s",
        "offline/addnorm",
        "sgemm/sgemm",
    ),
)


def _ratios() -> list[Ratio]:
    return [
        *_against_naive("addnorm"),
        *_against_naive("int8"),
        *(_padding(who) for who in ("addnorm", "int8", "naive")),
        *(Ratio(*line) for line in CEILINGS),
    ]


def _against_naive(who: str) -> Iterator[Ratio]:
    for title, metric, line in AGAINST_NAIVE:
        sides = (f"{line}/{who}", f"{line}/naive")
        yield Ratio(title, metric, *(sides if metric in RATES else reversed(sides)))
    ours, typed = f"hidden/{who}", "hidden/typed"
    yield Ratio("`hidden`, over naive with declared types", "tokens_per_s", ours, typed)
    yield Ratio("`hidden`, safetensors over JSON", "tokens_per_s", f"{ours}-tensors", ours)


def _padding(who: str) -> Ratio:
    """The sweep's end with most padding over that with least."""
    least, most = SWEEP_LONGEST[0], SWEEP_LONGEST[-1]
    shares = f"{padding_share(most):.0%} padding over {padding_share(least):.0%}"
    title = f"{shares}, concurrency {2 if who == 'naive' else 8}"
    return Ratio(title, "tokens_per_s", f"longest-{most}/{who}", f"longest-{least}/{who}")


def _paired(over: list[Figures], under: list[Figures]) -> tuple[list[Figures], list[Figures]]:
    """A side that was measured once is paired with itself in every round."""
    rounds = max(len(over), len(under))
    return over * (rounds if len(over) == 1 else 1), under * (rounds if len(under) == 1 else 1)


def median(rounds: list[Figures], metric: str) -> float:
    return middle(figures[metric] for figures in rounds)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def padding_share(longest: int) -> float:
    """Of the sweep's requests: 32 sequences of 30 tokens on average."""
    return 1 - 30 / longest


def write(folder: Path, findings: Findings) -> str:
    """bench.json, bench.md and the plots into `folder`. -> the text of bench.md"""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "machine": findings.machine,
        "bundle": findings.bundle.ref,
        "figures": findings.figures,
        "open_loop": findings.points,
        "bits": findings.bits,
    }
    (folder / "bench.json").write_text(json.dumps(facts, indent=1) + "\n")
    text = _markdown(findings)
    (folder / "bench.md").write_text(text)
    if findings.points:
        plots.latency(folder / "latency.png", findings.points)
    if shares := _by_padding(findings.figures):
        plots.padding(folder / "padding.png", shares)
    return text


def _by_padding(figures: dict[str, list[Figures]]) -> dict[str, list[tuple[float, float]]]:
    """who -> (share of pads, useful tokens/s) over the sweep, where it was measured."""
    shares: dict[str, list[tuple[float, float]]] = {}
    for longest in SWEEP_LONGEST:
        for who in ("naive", "addnorm", "int8"):
            if rounds := figures.get(f"longest-{longest}/{who}"):
                shares.setdefault(who, []).append(
                    (padding_share(longest), median(rounds, "tokens_per_s"))
                )
    return shares


def _markdown(findings: Findings) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in findings.machine.items())
    lines = [
        f"{findings.bundle.ref}; {facts}",
        "",
        "| load | measure | of | values | ratio | least - most, pairs |",
        "|---|---|---|---|---|---|",
    ]
    lines += [line for ratio in _ratios() if (line := ratio.line(findings.figures))]
    for who, counted in findings.bits.items():
        num_right = counted["num_answers"] - counted["num_errors"]
        shown = f"{num_right:,.0f} of {counted['num_answers']:,.0f}"
        lines.append(
            f"| answers under load | the bits of each sequence alone | {who} | {shown} | | |"
        )
    return "\n".join(lines) + "\n"
