"""Proofs that take minutes run where `-m` names them, and where what they need is there."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.registry import Proof
from tests.support import opt_in


def item(*marks: str) -> Any:
    return SimpleNamespace(iter_markers=lambda: [SimpleNamespace(name=name) for name in marks])


@pytest.mark.parametrize(
    ("asked", "kept"), [("", [0]), ("mutants", [0, 1]), ("families or lens", [0, 2]), ("cuda", [0])]
)
def test_a_proof_is_selected_by_its_own_mark_alone(asked: str, kept: list[int]) -> None:
    every, left_out = [item("parametrize"), item("mutants"), item("families")], list[Any]()
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    items = list(every)
    config: Any = SimpleNamespace(getoption=lambda _: asked, hook=hook)
    opt_in.deselect(config, items)
    assert items == [every[index] for index in kept]
    assert len(items) + len(left_out) == len(every)


def test_a_proof_without_its_needs_is_skipped_in_words() -> None:
    proofs = {"mutants": Proof("a test", 1, ("build/no-such-thing/ready",))}
    with pytest.raises(pytest.skip.Exception, match="run `make build/no-such-thing/ready`"):
        opt_in.skip_if_absent(item("mutants"), proofs)
    opt_in.skip_if_absent(item("parametrize"), proofs)
