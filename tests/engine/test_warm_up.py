"""The token budget that warm-up chooses: noise chooses none where sizes are about as quick."""

import pytest

from addnorm.service.engine.model import best_budget


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
