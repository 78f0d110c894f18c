"""The figures that documents quote: benchmarks/figures.json, the last kept run of each experiment.

A run writes build/benchmarks/figures.json; `keep` takes it over from there, once somebody has read
it. An entry with `recorded_by` is older than this file: that commit wrote its table into a
document by hand.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.registry import EXPERIMENTS, GROUPS
from benchmarks.report import Report
from benchmarks.tables import table

KEPT = Path("benchmarks/figures.json")  # in the repository
FACTS = ("commit", "machine", "missed", "report")
RATIO = re.compile(r"(\d[\d.,]* x)")
Kept = Mapping[str, Mapping[str, Any]]


def read(path: Path) -> dict[str, Mapping[str, Any]]:
    """Entries by the name of the experiment."""
    return json.loads(path.read_text()) if path.exists() else {}


def keep(names: Sequence[str], report: Report, path: Path) -> None:
    """Takes over the last runs of these experiments and groups. ValueError where there is none."""
    runs, kept = report.read(), read(path)
    for name in (one for asked in names for one in GROUPS.get(asked, (asked,))):
        if name not in runs:
            raise ValueError(f"{name} was not run: `python -m benchmarks {name}`")
        kept[name] = {fact: runs[name][fact] for fact in FACTS}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    os.replace(partial, path)


def report_of(kept: Kept, name: str) -> str:
    """What an experiment found, and where it was measured. Says so where no run of it is kept.
    ValueError if nothing is so called."""
    if name not in kept and name.split()[0] in EXPERIMENTS:
        return f"No run is kept: `python -m benchmarks {name}` makes one."
    entry = _entry(kept, name)
    return f"{entry['report']}\n\n{where(entry)}"


def measured(kept: Kept, name: str) -> str:
    """Where an experiment was measured. For pages that quote a part of what it found."""
    return where(_entry(kept, name))


def table_of(kept: Kept, name: str) -> str:
    """One table of an experiment: `EXPERIMENT / number`, from 1, and ` / column` for one that is
    left out. ValueError if it has fewer tables."""
    experiment, number, *left_out = name.split(" / ")
    paragraphs = _entry(kept, experiment)["report"].split("\n\n")
    tables = [paragraph for paragraph in paragraphs if paragraph.startswith("|")]
    if int(number) > len(tables):
        raise ValueError(f"`{name}`: {experiment} has {len(tables)} tables")
    (columns, _, *rows) = map(_cells, tables[int(number) - 1].splitlines())
    places = [i for i, column in enumerate(columns) if column not in left_out]
    return table([columns[i] for i in places], ([row[i] for i in places] for row in rows))


def where(entry: Mapping[str, Any]) -> str:
    """One sentence: commit and machine."""
    commit = f"commit {entry['commit']}" if "commit" in entry else _by_hand(entry)
    facts = (f"{name.replace('_', ' ')} {_short(fact)}" for name, fact in entry["machine"].items())
    return f"Measured: {'; '.join((commit, *facts))}."


def _short(fact: object) -> str:
    return f"{fact:.3g}" if isinstance(fact, float) else str(fact)


def _by_hand(entry: Mapping[str, Any]) -> str:
    """program: the commit whose program measured it, where the present one measures otherwise."""
    program = f", by the program of commit {entry['program']}" if "program" in entry else ""
    return f"written down by hand in commit {entry['recorded_by']}{program}"


def figure(kept: Kept, name: str) -> str:
    """`EXPERIMENT / words of a row / column`, and ` / ratio` for the one behind a value. Each word
    is a whole cell. ValueError unless there is one such cell."""
    experiment, *words = name.split(" / ")
    is_ratio = words[-1] == "ratio"
    *cells, column = words[:-1] if is_ratio else words
    found = {
        row[column]
        for row in _rows(_entry(kept, experiment)["report"])
        if column in row and set(cells) <= set(row.values())
    }
    if len(found) != 1:
        raise ValueError(f"`{name}`: {len(found)} cells of {experiment}'s tables are so called")
    (cell,) = found
    return _ratio(cell, name) if is_ratio else cell.partition(" (")[0]


OF_RUNS = {
    "report": report_of,
    "measured": measured,
    "table": table_of,
}  # the first word of a block


def experiment_of(block: str) -> str:
    """The experiment whose run a block quotes, by the block's name; empty where it quotes none."""
    kind, _, rest = block.partition(" ")
    run = rest if kind in OF_RUNS else block if " / " in block else ""
    return run.partition(" ")[0]


def _ratio(cell: str, name: str) -> str:
    if found := RATIO.search(cell):
        return found[1]
    raise ValueError(f"`{name}`: there is no ratio in `{cell}`")


def _entry(kept: Kept, name: str) -> Mapping[str, Any]:
    if name not in kept:
        raise ValueError(f"figures.json has no `{name}`: run it, then `--keep {name}`")
    return kept[name]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _rows(markdown: str) -> Iterator[dict[str, str]]:
    """The rows of all its tables, by the names of the columns, without bold and code."""
    columns = list[str]()
    for line in markdown.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [re.sub(r"\*\*|`", "", cell) for cell in _cells(line)]
        if columns and not set(line) <= set("|-: "):
            yield dict(zip(columns, cells, strict=False))
        columns = columns or cells
