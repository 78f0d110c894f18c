"""What all parts of a run are told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from addnorm.load.gpu.report import Report
from addnorm.service.settings import Settings, read_settings


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
