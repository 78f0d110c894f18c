"""What was measured -> tables of ratios (medians of pairs), all figures as JSON, and the curves."""

import json
from pathlib import Path

from addnorm.load import curves
from addnorm.load.bench import overview
from addnorm.load.bench.overview import Findings
from addnorm.load.bench.run import Figures
from addnorm.load.bench.tables import (
    TITLES,
    contenders_table,
    memory_table,
    open_loop_table,
    ratios_table,
)


def write(folder: Path, findings: Findings) -> str:
    """bench.json, bench.md, bench.html and the plots into `folder`. -> the text of bench.md"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(findings.facts(), indent=1) + "\n")
    text = markdown(findings)
    (folder / "bench.md").write_text(text)
    (folder / "bench.html").write_text(
        overview.page("Addnorm beside other servers", findings, text)
    )
    if findings.points:
        curves.latency(folder / "latency.png", findings.titled(findings.points))
    if shares := findings.by_padding():
        curves.padding(folder / "padding.png", findings.titled(shares))
    return text


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
        open_loop_table(findings.points),
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
