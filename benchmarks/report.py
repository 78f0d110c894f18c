"""One report of all experiments: figures.json has the last run of each, report.md shows them."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnxruntime

from addnorm.service.engine.device.processor import processor
from benchmarks.findings import Findings

DIRTY = "-dirty"


class Report:
    """One process writes at a time."""

    def __init__(self, folder: Path, checkout: Path = Path()) -> None:
        """checkout: whose commit is noted."""
        self._folder, self._checkout = folder, checkout
        folder.mkdir(parents=True, exist_ok=True)
        self._where = machine()  # before the run: how busy it was

    @property
    def file(self) -> Path:
        return self._folder / "figures.json"

    def read(self) -> dict[str, Any]:
        """Experiments by name. Empty before the first."""
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def add(self, name: str, findings: Findings) -> str:
        """Puts it in place of an earlier run, and draws its plots. -> its Markdown"""
        entry = {
            "commit": commit(self._checkout),
            "machine": self._where,
            "missed": list(findings.missed),
            "report": findings.markdown(),
            "figures": findings.figures,
        }
        entries = {**self.read(), name: entry}
        for file, draw in findings.plots.items():
            draw(self._folder / file)
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(entries, indent=1) + "\n")
        os.replace(partial, self.file)
        text = "\n".join(_section(*pair) for pair in entries.items())
        (self._folder / "report.md").write_text(text)
        return _section(name, entry)


def machine() -> dict[str, str | int | float]:
    """Where, when, and how busy it was before the run began: figures of two machines cannot be
    compared."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": processor().name,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "vnni": "yes" if processor().has_vnni else "no",  # without VNNI int8 gains little
        "onnxruntime": onnxruntime.__version__,
    }


def _section(name: str, entry: dict[str, Any]) -> str:
    machine = ", ".join(f"{fact} {value}" for fact, value in entry["machine"].items())
    return f"## {name}\n\ncommit {entry['commit'] or 'unknown'}, {machine}\n\n{entry['report']}\n"


def commit(checkout: Path) -> str:
    """The commit of the checkout, as `git describe` names it; ends with DIRTY where files differ
    from it. Empty where git does not know."""
    command = ["git", "-C", str(checkout), "describe", "--always", f"--dirty={DIRTY}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commits_since(commit: str, paths: Sequence[str], checkout: Path) -> int | None:
    """The number of commits after this one that changed the files and folders. None where git has
    no such commit, as in a shallow clone."""
    revisions = f"{commit.removesuffix(DIRTY)}..HEAD"
    command = ["git", "-C", str(checkout), "rev-list", "--count", revisions, "--", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def last_change(paths: Sequence[str], checkout: Path) -> float:
    """When a commit last changed the files and folders, in seconds since 1970. Now where git does
    not know."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%ct", "--", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout) if done.stdout.strip() else time.time()
