"""Answers of two processors to the same questions: how many numbers there are, and how many have
other bits. Knows only the files that the worker wrote."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from addnorm.service.engine.outputs import OUTPUTS
from benchmarks.processors import questions
from benchmarks.processors.worker import REFUSED

# fields that are new in each answer, or tell of the version of onnxruntime
NOT_COMPARED = ("id", "created", "system_fingerprint")


@dataclass
class Count:
    compared: int = 0
    unequal: int = 0

    def add(self, compared: int, unequal: int) -> None:
        self.compared += compared
        self.unequal += unequal


@dataclass
class Compared:
    """One bundle in one precision on one processor.

    outputs: by name. not_invariant: outputs whose rows alone differ from the same rows in company,
    on this processor. refused: why it does not load there.
    """

    outputs: dict[str, Count] = field(default_factory=dict)
    not_invariant: set[str] = field(default_factory=set)
    refused: str = ""

    @property
    def total(self) -> Count:
        total = Count()
        for count in self.outputs.values():
            total.add(count.compared, count.unequal)
        return total

    @property
    def unequal(self) -> dict[str, int]:
        """Numbers that differ, by the name of the output; without outputs that are equal."""
        return {name: count.unequal for name, count in self.outputs.items() if count.unequal}


def compare(reference: Path, folder: Path, precision: str) -> Compared:
    """The answers in `folder` beside those in `reference`."""
    if (folder / REFUSED).exists():
        return Compared(refused=(folder / REFUSED).read_text())
    comparison = Compared()
    for file in sorted(reference.glob(f"{precision}-*.json")):
        for name, value, other_value in outputs(file, folder / file.name):
            comparison.outputs.setdefault(name, Count()).add(*_unequal(value, other_value))
    for index in questions.ALONE:
        comparison.not_invariant |= {*_other_in_company(folder, precision, index)}
    return comparison


def precisions(folder: Path) -> list[str]:
    """Precisions that were asked for, fp32 first."""
    return sorted({file.name.partition("-")[0] for file in folder.glob("*.json")})


def outputs(expected_file: Path, actual_file: Path) -> Iterator[tuple[str, Any, Any]]:
    """Names of outputs, or of fields of an answer, with the values of both."""
    here, there = orjson.loads(expected_file.read_bytes()), orjson.loads(actual_file.read_bytes())
    question = expected_file.stem.partition("-")[2]
    for name in sorted(here.keys() | there.keys()):
        if name not in NOT_COMPARED:
            is_in_both = name in here.keys() & there.keys() and name not in ("data", "results")
            yield name if is_in_both else question, here.get(name), there.get(name)


def _unequal(expected: Any, actual: Any) -> tuple[int, int]:
    """Numbers, and how many of them differ in a bit: all of them where the words around them do."""
    (numbers, words), (other_numbers, other_words) = leaves(expected), leaves(actual)
    if len(numbers) != len(other_numbers) or words != other_words:
        return max(len(numbers), len(other_numbers)), max(len(numbers), len(other_numbers), 1)
    return len(numbers), int(
        np.count_nonzero(numbers.view(np.int64) != other_numbers.view(np.int64))
    )


def leaves(value: Any) -> tuple[np.ndarray[Any, np.dtype[np.float64]], list[Any]]:
    """The numbers of a JSON value, and what is no number, both in order."""
    numbers, words = list[float](), list[Any]()
    _collect(value, numbers, words)
    return np.array(numbers, np.float64), words


def _collect(value: Any, numbers: list[float], words: list[Any]) -> None:
    if isinstance(value, Mapping):
        for name, part in value.items():
            words.append(name)
            _collect(part, numbers, words)
    elif isinstance(value, list):
        for part in value:
            _collect(part, numbers, words)
    else:
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        (numbers if is_number else words).append(value)


def _other_in_company(folder: Path, precision: str, index: int) -> Iterator[str]:
    """Outputs of a sequence that differ from its row among others, where both were asked for. Those
    of a lens begin with a layer, and are left out."""
    names = questions.ragged(precision), questions.alone(precision, index)
    files = [folder / f"{name}.json" for name in names]
    if not all(file.exists() for file in files):
        return
    together, alone = (orjson.loads(file.read_bytes()) for file in files)
    of_lens = {kind.name for kind in OUTPUTS.known if kind.is_of_lens}
    for name, value in alone.items():
        has_rows = isinstance(value, list) and name not in of_lens
        if has_rows and _unequal(value[0], together[name][index])[1]:
            yield name
