"""What was measured, and what a reader sees of it first: highlights and plots on a page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median as middle
from typing import Any

from addnorm.load.measure.contender import FP32, INT8, NAIVE
from addnorm.load.measure.rounds import NUM_NAIVE_SWEEP, Rounds, median
from addnorm.load.measure.run import Figures
from addnorm.load.measure.stream import SWEEP_LONGEST
from addnorm.load.sweep import curves
from addnorm.load.sweep import page as web
from addnorm.load.sweep.tables import TITLES, padding_share, ratios
from addnorm.service.runtime.bundle import Bundle

SHOWN_LONGEST = 100  # of the sweep: 70 % padding


@dataclass(frozen=True)
class Findings:
    """All figures: of each side a list over rounds, of each server a list over open-loop rates."""

    bundle: Bundle
    machine: dict[str, str | int | float]
    figures: Rounds
    points: Rounds
    bits: dict[str, Figures]
    notes: list[str]  # what a reader of the tables must know
    titles: Mapping[str, str] = field(default_factory=lambda: TITLES)
    is_near: bool = False  # answers passed within a tolerance
    warning: str = ""  # why the figures may not be what they seem

    def facts(self) -> dict[str, object]:
        return {
            "machine": self.machine,
            "bundle": self.bundle.ref,
            "notes": self.notes,
            "figures": self.figures,
            "open_loop": self.points,
            "bits": self.bits,
        }

    def titled(self, by_who: Mapping[str, Any]) -> dict[str, Any]:
        return {self.titles[who]: value for who, value in by_who.items()}

    def by_padding(self) -> dict[str, list[tuple[float, list[float]]]]:
        """who -> share of pads, and useful tokens/s of each round, where it was measured."""
        shares: dict[str, list[tuple[float, list[float]]]] = {}
        for longest in SWEEP_LONGEST:
            for who in (NAIVE, FP32, INT8):
                if rounds := self.figures.get(f"longest-{longest}/{who}"):
                    rates = [run["tokens_per_s"] for run in rounds]
                    shares.setdefault(who, []).append((padding_share(longest), rates))
        return shares


def page(title: str, findings: Findings, text: str) -> str:
    """HTML. text: Markdown, which stands below highlights and curves."""
    where = findings.machine
    when = datetime.fromisoformat(str(where["date"]))
    lead = f"{when:%Y-%m-%d %H:%M} UTC, {where['processor']}, {where['cores']} cores"
    highlights, pictures = list(_highlights(findings)), list(_pictures(findings))
    return web.page(title, lead, findings.warning, highlights, pictures, text)


def _pictures(findings: Findings) -> Iterator[web.Picture]:
    if shares := findings.by_padding():
        slow = f"; {findings.titles[NAIVE]}: {NUM_NAIVE_SWEEP} callers" if NAIVE in shares else ""
        yield web.Picture(
            "Throughput against padding",
            f"32 sequences of 30 tokens on average in each request, 8 callers{slow}. Pads are no "
            "useful tokens. A point is the median of the rounds, the bar through it their range.",
            curves.padding_svg(findings.titled(shares)),
        )
    for metric, name in curves.PERCENTILES.items():
        if findings.points:
            yield web.Picture(
                f"Latency against load: {name}",
                "1 to 4 sequences in each request, Poisson arrivals, up to what 32 callers reach. "
                "The time counts from when a request was due.",
                curves.latency_svg(findings.titled(findings.points), metric),
            )


def _highlights(findings: Findings) -> Iterator[tuple[str, str]]:
    """A figure and what it says, of the first precision that was measured."""
    figures, titles = findings.figures, findings.titles
    for who in (FP32, INT8):
        if f"small-1/{who}" not in figures:
            continue
        if padded := figures.get(f"longest-{SHOWN_LONGEST}/{who}"):
            yield _at_padding(padded, figures.get(f"longest-{SHOWN_LONGEST}/{NAIVE}"), titles, who)
        name = titles[who]
        if reached := figures.get(f"small-32/{who}"):
            rate = median(reached, "requests_per_s")
            yield f"{rate:,.0f} / s", f"requests of 1 to 4 sequences, 32 callers; {name}"
        lone = median(figures[f"small-1/{who}"], "p50_ms")
        yield f"{lone:,.3g} ms", f"median time of such a request, one caller; {name}"
        break
    if ours := [findings.bits[who] for who in (FP32, INT8) if who in findings.bits]:
        num = sum(counted["num_answers"] for counted in ours)
        num_right = num - sum(counted["num_errors"] for counted in ours)
        how = "are near" if findings.is_near else "have the bits of"
        yield f"{num_right:,.0f}", f"of {num:,.0f} answers {how} each sequence alone"


def _at_padding(
    ours: list[Figures], base: list[Figures] | None, titles: Mapping[str, str], who: str
) -> tuple[str, str]:
    share = f"at {padding_share(SHOWN_LONGEST):.0%} padding"
    if base is None:
        return f"{median(ours, 'tokens_per_s'):,.0f} / s", f"useful tokens {share}; {titles[who]}"
    times = middle(ratios(ours, base, "tokens_per_s"))
    return (
        f"{times:.1f} x",
        f"the useful tokens per second of {titles[NAIVE]} {share}; {titles[who]}",
    )
