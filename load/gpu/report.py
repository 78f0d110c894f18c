"""The report of a run: one JSON file that grows figure by figure, so that a kill loses nothing."""

import json
import os
from pathlib import Path
from typing import Any

FILE = "report.json"


class Report:
    """One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / FILE

    def read(self) -> dict[str, Any]:
        """Parts by name. Empty before the first figure."""
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def put(self, part: str, name: str, value: Any) -> None:
        """A figure of a part, in place of the one that it had."""
        found = self.read()
        found.setdefault(part, {})[name] = value
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1))
        os.replace(partial, self.file)
        if name != "log":
            print(f"{part}  {name}: {_short(value)}", flush=True)

    def forget(self, part: str) -> None:
        """What an earlier run wrote of the part."""
        found = self.read()
        if found.pop(part, None) is not None:
            self.file.write_text(json.dumps(found, indent=1))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
