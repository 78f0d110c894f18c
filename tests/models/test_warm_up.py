"""Warm-up chooses the token budget by what the engine can do, not by what else the machine does."""

import pytest

from addnorm.service.models.registry import rates, smallest_good
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.runtime.manifest import Limits
from tests.support.scheduling import echo

LIMITS = Limits(max_positions=64, vocab_size=100)


class Machine:
    """An engine and its clock: 10 ms a run, 0.1 ms a token; twice that for `slow` (from, to)."""

    def __init__(self, slow: tuple[float, float] = (0, 0)) -> None:
        self.now, self.slow = 0.0, slow

    def run(self, batch: Batch) -> Rows:
        begins, ends = self.slow
        self.now += (0.01 + batch.num_tokens * 1e-4) * (2 if begins <= self.now < ends else 1)
        return echo(batch)

    def budget(self, seconds: float) -> int:
        return smallest_good(rates(self.run, LIMITS, seconds, lambda: self.now))


@pytest.mark.parametrize("begins", [0, 0.05, 0.1, 0.2, 0.3, 0.5])
def test_a_slow_spell_changes_nothing(begins: float) -> None:
    """A quarter of a second in which something else runs, wherever it falls."""
    assert Machine((begins, begins + 0.25)).budget(1.5) == Machine().budget(1.5)


def test_time_is_kept() -> None:
    """A warm-up ends when its time is up, and every engine runs once at least."""
    for seconds in (0, 0.05, 0.3, 0.75):
        machine = Machine()
        machine.budget(seconds)
        assert 0 < machine.now <= max(seconds, 0.03)
