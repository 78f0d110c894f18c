"""The token budget that warm-up chooses: noise chooses none where sizes are about as quick, and
that of the version that runs is taken only where the new one is as quick by its manifest."""

from types import SimpleNamespace
from typing import Any

import pytest

from addnorm.service.engine.batch import Batch
from addnorm.service.engine.manifest import File, Limits, Manifest, OwnTensor
from addnorm.service.engine.model import Model, best_budget


@pytest.mark.parametrize(
    ("rates", "budget"),
    [
        ({128: 93, 256: 100, 512: 98, 1024: 90}, 256),
        ({128: 97, 256: 100, 512: 106, 1024: 104}, 256),  # what 512 brings is within noise
        ({128: 101, 256: 100, 512: 98}, 128),
        ({128: 65, 256: 100, 512: 131, 1024: 155}, 1024),  # a run's fixed cost is most of it
        ({128: 65, 256: 100, 512: 131, 1024: 140}, 512),
        ({128: 100}, 128),  # there was time for no more
    ],
)
def test_a_budget_is_chosen_that_is_clearly_better(rates: dict[int, float], budget: int) -> None:
    assert best_budget(rates) == budget


WIDE, NARROW = (
    OwnTensor(name="activations", of="token", width=width, row_shape=(width,)) for width in (8, 4)
)
AUTHORS_GRAPH = Manifest.model_construct(
    config={},
    as_it_is=(WIDE,),
    limits=Limits(max_positions=64, vocab_size=100),
    precisions={"fp32": "model.onnx"},
    files={"model.onnx": File(sha256="", num_bytes=1000)},
)


class FixedCost:
    """An engine whose runs all take a second by its clock, so more tokens are quicker."""

    budgets = (32, 64)

    def __init__(self) -> None:
        self.seconds = 0.0

    def clock(self) -> float:
        return self.seconds

    def compute(self, batch: Batch) -> SimpleNamespace:
        self.seconds += 1.0
        return SimpleNamespace(not_finite=lambda: None)


def version(manifest: Manifest, token_budget: int) -> Model:
    """A version of a model that has only what warm-up reads."""
    model: Any = Model.__new__(Model)
    model.bundle = SimpleNamespace(manifest=manifest, ref="own/1")
    model.engines, model.token_budget = {"fp32": FixedCost()}, 0
    model.targets = {"fp32": SimpleNamespace(token_budget=token_budget, tokens_per_s=7.0)}
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("changes", "budget"),
    [
        ({}, 16),
        ({"files": {"model.onnx": File(sha256="of other weights", num_bytes=1000)}}, 16),
        ({"files": {"model.onnx": File(sha256="of more layers", num_bytes=2000)}}, 64),
        ({"as_it_is": (NARROW,)}, 64),
        ({"limits": Limits(max_positions=128, vocab_size=100)}, 64),
        ({"as_it_is": None, "config": {"n_layers": 2}}, 64),
    ],
)
def test_the_budget_of_the_version_before_is_taken_only_where_both_are_as_quick(
    changes: dict[str, Any], budget: int
) -> None:
    new = version(AUTHORS_GRAPH.model_copy(update=changes), 32)
    new.warm_up(version(AUTHORS_GRAPH, 16))
    assert new.targets["fp32"].token_budget == budget
    assert (new.targets["fp32"].tokens_per_s == 7.0) == (budget == 16)
