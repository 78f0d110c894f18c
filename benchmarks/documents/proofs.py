"""The table of all proofs: which pages rest on each, and when its last kept run was."""

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.documents import figures
from benchmarks.registry import ALL, EXPERIMENTS, PROOFS
from benchmarks.tables import table

BLOCK = re.compile(r"<!-- begin: ([^>\n]+?) -->")
# pages that say which proof to run, and rest on none
NO_CLAIMS = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
OF_CLIENTS = "clients"  # the block that lists what `client_packages` asserts


def proofs_table(runs: figures.Kept, pages: Sequence[Path], root: Path) -> str:
    commands = {name: f"python -m benchmarks {name}" for name in EXPERIMENTS}
    commands |= {name: f"pytest -m {name}" for name in PROOFS}
    rows = []
    for name, proof in ALL.items():
        claims = (f"[{page.stem}]({page.relative_to(root)})" for page in pages_of(name, pages))
        last = "-"
        if name in runs:
            commit, date = runs[name]["commit"], runs[name]["machine"]["date"][:10]
            last = f"{date}, {commit}{figures.OLD if runs[name].get('is_old') else ''}"
        command, minutes = f"`{commands[name]}`", f"{proof.minutes:g}"
        rows.append((command, proof.summary, ", ".join(claims), minutes, last))
    return table(("command", "shows", "claimed in", "min", "last kept run"), rows)


def pages_of(name: str, pages: Sequence[Path]) -> list[Path]:
    """The pages that quote its figures or name its command."""
    return [page for page in pages if page.name not in NO_CLAIMS and _rests_on(page, name)]


def _rests_on(page: Path, name: str) -> bool:
    text = page.read_text()
    blocks = BLOCK.findall(text)
    if name in (experiment for block in blocks for experiment in figures.experiments_of(block)):
        return True
    command = (
        rf"pytest -m {name}\b" if name in PROOFS else rf"python -m benchmarks (?:[a-z-]+ )*{name}\b"
    )
    return bool(re.search(command, text)) or (name == "client_packages" and OF_CLIENTS in blocks)
