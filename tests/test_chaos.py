"""The storms of `python -m load.chaos`, in short; `make chaos` runs them long."""

import json
from collections import Counter
from pathlib import Path

import pytest

from load.chaos import SCENARIOS, good_bodies
from load.mutants import mutants
from service import bundle as bundle_format

SIZES = {"bodies": 1000, "leavers": 100, "slow": 60}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_storm_hurts_nothing(bundles: Path, name: str) -> None:
    assert SCENARIOS[name].run(notebook_of(bundles), SIZES[name])


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
