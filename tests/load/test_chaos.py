"""Some scenarios of `python -m addnorm.load.stress`, in short; `make chaos` runs them long."""

import json
from collections import Counter
from pathlib import Path

import pytest

from addnorm.load.stress.requests.mutants import mutants
from addnorm.load.stress.scenarios.overload import overload
from addnorm.load.stress.scenarios.storms import STORMS, good_bodies
from addnorm.service.runtime import bundle as bundle_format

SIZES = {"bodies": 1000, "leavers": 100, "slow": 60}


@pytest.mark.parametrize("name", STORMS)
def test_a_storm_hurts_nothing(bundles: Path, name: str) -> None:
    assert STORMS[name](notebook_of(bundles), SIZES[name])


def test_an_overloaded_server_answers_right_or_refuses_and_says_when(bundles: Path) -> None:
    figures, missed = overload(bundle_format.read(bundles / "minilm" / "1"), seconds=4)
    assert figures["refusals without Retry-After"] == 0
    assert not [words for words in missed if words.startswith("answers")]
    assert (
        figures["goodput over capacity, tokens"] > 0.4
    )  # `make chaos` asks for more, on a quiet machine
    assert sum(value for name, value in figures.items() if name.startswith("refused")) > 100


def notebook_of(root: Path) -> bundle_format.Bundle:
    return bundle_format.read(root / "notebook" / "1")


def test_mutants_are_the_same_each_time_and_mostly_bad(bundles: Path) -> None:
    good = good_bodies(notebook_of(bundles))
    first, again = (list(mutants(good, 500, seed=3)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 350
    kinds: Counter[str] = Counter()
    for body in first:
        try:
            kinds["good" if json.loads(body) in good else "other JSON"] += 1
        except ValueError:
            kinds["no JSON"] += 1
    assert min(kinds["other JSON"], kinds["no JSON"]) > 100
