"""What every scenario is given, and what it gives back: tables as Markdown, and missed goals."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from addnorm.service.runtime.bundle import Bundle


@dataclass(frozen=True)
class Options:
    """One scenario's part of the command line."""

    bundle: Bundle
    tiny: Bundle | None = None
    size: int = 0  # requests, callers or swaps
    seconds: float = 0.0
    callers: int = 16
    seed: int = 0
    only: tuple[str, ...] = ()
    url: str | None = None  # of a server that runs already
    worktree: Path | None = None  # of the server's code; None: this one's
    before: Path | None = None  # the JSON of an earlier run

    @property
    def smallest(self) -> Bundle:
        return self.tiny or self.bundle


@dataclass(frozen=True)
class Findings:
    """tables: Markdown. missed: one sentence a goal. seen: what `before` reads in a later run."""

    tables: str
    missed: Sequence[str] = ()
    seen: object = None
    plot: Callable[[Path], None] | None = None

    def markdown(self, name: str) -> str:
        goals = [f"- missed: {goal}" for goal in self.missed] or ["No goal was missed."]
        return "\n".join([f"## {name}", "", self.tables, "", *goals, ""])

    def write(self, folder: Path, name: str) -> str:
        """`<name>.md`, `.json` and `.png`, as far as there are any. -> the Markdown"""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(text := self.markdown(name))
        if self.seen is not None:
            (folder / f"{name}.json").write_text(json.dumps(self.seen, indent=1) + "\n")
        if self.plot:
            self.plot(folder / f"{name}.png")
        return text


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def figures(values: Mapping[str, object]) -> str:
    """A table with a row per figure."""
    rows = [
        (name, f"{value:,.2f}" if isinstance(value, float) else value)
        for name, value in values.items()
    ]
    return table(["figure", "value"], rows)
