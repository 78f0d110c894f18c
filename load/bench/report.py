"""What was measured -> tables of ratios (medians of pairs), all figures as JSON, and the plots."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from addnorm.load import plots
from addnorm.load.bench.contenders import FP32, INT8, NAIVE
from addnorm.load.bench.run import Figures
from addnorm.load.bench.stream import SWEEP_LONGEST
from addnorm.load.bench.tables import (
    TITLES,
    Rounds,
    contenders_table,
    median,
    memory_table,
    padding_share,
    ratios_table,
)
from addnorm.service.runtime.bundle import Bundle


@dataclass(frozen=True)
class Findings:
    """All figures: of each side a list over rounds, of each server a list over open-loop rates."""

    bundle: Bundle
    machine: dict[str, str | int | float]
    figures: Rounds
    points: Rounds
    bits: dict[str, Figures]
    notes: list[str]  # what a reader of the tables must know


def write(folder: Path, findings: Findings) -> str:
    """bench.json, bench.md and the plots into `folder`. -> the text of bench.md"""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "machine": findings.machine,
        "bundle": findings.bundle.ref,
        "notes": findings.notes,
        "figures": findings.figures,
        "open_loop": findings.points,
        "bits": findings.bits,
    }
    (folder / "bench.json").write_text(json.dumps(facts, indent=1) + "\n")
    text = markdown(findings)
    (folder / "bench.md").write_text(text)
    if findings.points:
        plots.latency(folder / "latency.png", _titled(findings.points))
    if shares := _by_padding(findings.figures):
        plots.padding(folder / "padding.png", _titled(shares))
    return text


def _titled(by_who: dict[str, Any]) -> dict[str, Any]:
    return {TITLES[who]: value for who, value in by_who.items()}


def _by_padding(figures: Rounds) -> dict[str, list[tuple[float, float]]]:
    """who -> (share of pads, useful tokens/s) over the sweep, where it was measured."""
    shares: dict[str, list[tuple[float, float]]] = {}
    for longest in SWEEP_LONGEST:
        for who in (NAIVE, FP32, INT8):
            if rounds := figures.get(f"longest-{longest}/{who}"):
                shares.setdefault(who, []).append(
                    (padding_share(longest), median(rounds, "tokens_per_s"))
                )
    return shares


def markdown(findings: Findings) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in findings.machine.items())
    num_rounds = max(map(len, findings.figures.values()), default=0)
    paragraphs = [
        f"{findings.bundle.ref}; {facts}",
        f"Medians of {num_rounds} rounds. In brackets the ratio of the pairs, over the baseline: "
        "**median**, least - most; more is better. `make bench ONLY=...` measures a row alone, by "
        "its last column; `ONLY=open` makes the picture of latencies.",
        *findings.notes,
        contenders_table(findings.figures),
        ratios_table(findings.figures),
        memory_table(findings.figures),
        *(_bits(who, counted) for who, counted in findings.bits.items()),
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _bits(who: str, counted: Figures) -> str:
    num_right = counted["num_answers"] - counted["num_errors"]
    return (
        f"{TITLES[who]}: {num_right:,.0f} of {counted['num_answers']:,.0f} answers under load have "
        "the bits of each sequence alone."
    )
