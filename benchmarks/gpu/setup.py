"""What all parts of a run are told, and the file that their figures go to."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from addnorm.service.environment import read_settings
from addnorm.service.settings import Settings

FILE = "parts.json"


class Report:
    """A JSON file that grows figure by figure: a kill loses nothing."""

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


@dataclass(frozen=True)
class Setup:
    out: Path
    provider: Literal["cpu", "cuda"]
    shapes: Sequence[str]
    seconds: float  # of one measurement
    num_compositions: int  # of batches that invariance is measured over, for each shape

    @property
    def bundles(self) -> Path:
        return self.out / "bundles"

    @property
    def report(self) -> Report:
        return Report(self.out)

    def settings(self) -> Settings:
        """The environment's, but for the provider."""
        return read_settings(provider=self.provider)


def words(setup: Setup) -> list[str]:
    """For the command line of a part."""
    numbers = str(setup.seconds), str(setup.num_compositions)
    return [str(setup.out), setup.provider, *numbers, *setup.shapes]


def read(out: str, provider: Literal["cpu", "cuda"], *rest: str) -> Setup:
    """The setup that `words` has written into a command line."""
    seconds, num_compositions, *shapes = rest
    return Setup(Path(out), provider, shapes, float(seconds), int(num_compositions))
