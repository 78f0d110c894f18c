"""Proofs that take minutes run where `-m` names them, and where what they need is there."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.registry import Proof
from tests.support import opt_in
from tests.support.beside import Row, largest


def item(*marks: str) -> Any:
    return SimpleNamespace(iter_markers=lambda: [SimpleNamespace(name=name) for name in marks])


@pytest.mark.parametrize(
    ("asked", "kept"),
    [("", [0]), ("mutants", [0, 1]), ("misread or gliner", [0, 2]), ("cuda", [0])],
)
def test_a_proof_is_selected_by_its_own_mark_alone(asked: str, kept: list[int]) -> None:
    every, left_out = [item("parametrize"), item("mutants"), item("misread")], list[Any]()
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    items = list(every)
    config: Any = SimpleNamespace(getoption=lambda _: asked, hook=hook)
    opt_in.deselect(config, items)
    assert items == [every[index] for index in kept]
    assert len(items) + len(left_out) == len(every)


def test_a_proof_without_its_needs_is_skipped_in_words() -> None:
    proofs = {"mutants": Proof("a test", 1, ("build/no-such-thing/ready",))}
    with pytest.raises(pytest.skip.Exception, match="run `make build/no-such-thing/ready`"):
        opt_in.allow(item("mutants"), proofs)
    opt_in.allow(item("parametrize"), proofs)


@pytest.mark.parametrize("place", range(3))
def test_what_is_no_number_is_near_to_nothing(place: int) -> None:
    """Python's `max` passes over it, unless it comes first."""
    gaps = [0.0, 0.0, 0.0]
    assert Row("bert", "fp32", *largest([(0.0, 0.0, 0.0), (0.0, 1e-5, 0.0)]), 0).passed
    gaps[place] = math.nan
    assert not Row("bert", "fp32", *largest([(0.0, 0.0, 0.0), gaps]), 0).passed
