"""Who waits for whom: one queue in simulated time, two workers of 6,000 tokens a second."""

from collections.abc import Callable

import numpy as np
import pytest

from addnorm.service.engine.target import Target
from tests.support.scheduling import gate_of
from tests.support.simulation import Group, Outcome, Simulation, no_rows

RATE = 6000
BUDGET = 256
CAPACITY = 2 * RATE / 75  # requests a second of `mixed`
Lengths = Callable[[np.random.Generator], list[int]]


def target() -> Target:
    made = Target(no_rows, BUDGET)
    made.tokens_per_s = RATE
    return made


def of(*lengths: int) -> Lengths:
    return lambda _: list(lengths)


def mixed(draws: np.random.Generator) -> list[int]:
    """One to four sequences, 75 tokens on average, from 5 to 400."""
    wanted = draws.lognormal(np.log(30) - 0.18, 0.6, int(draws.integers(1, 5)))
    return np.clip(wanted.round(), 1, 128).astype(int).tolist()  # type: ignore[no-any-return]


LONG, TINY = of(*[512] * 8), of(3)


def simulated(*groups: Group, seconds: float = 5) -> dict[str, Outcome]:
    return Simulation(gate_of(2, 65_536), list(groups)).run(seconds)


@pytest.mark.parametrize("small", [TINY, of(30), of(10, 20, 30)], ids=["3", "30", "60"])
@pytest.mark.parametrize("long", [LONG, of(512), of(*[128] * 8)], ids=["8x512", "512", "8x128"])
@pytest.mark.parametrize("model", ["same", "other"])
@pytest.mark.parametrize("callers", [2, 12, 60])
def test_beside_any_backlog_of_long_asks_a_small_one_waits_for_three_micro_batches_at_most(
    small: Lengths, long: Lengths, model: str, callers: int
) -> None:
    its = target()
    seen = simulated(
        Group("long", long, its, callers),
        Group("small", small, its if model == "same" else target()),
    )
    assert len(seen["small"].waits_s) > 30
    assert max(seen["small"].micro_batches) <= 3
    assert max(seen["small"].waits_s) < 3 * 512 / RATE
    assert seen["long"].late == 0


@pytest.mark.parametrize("model", ["same", "other"])
@pytest.mark.parametrize("callers", [12, 40])  # 40 do not fit into the queue
def test_a_tiny_ask_with_a_second_is_not_rejected_beside_long_ones_with_half_a_minute(
    model: str, callers: int
) -> None:
    its = target()
    long, tiny = (
        Group("long", LONG, its, callers),
        Group("tiny", TINY, its if model == "same" else target(), time_s=1),
    )
    seen = simulated(long, tiny)
    assert seen["tiny"].refused == seen["tiny"].late == seen["long"].late == 0
    assert seen["long"].good_tokens > 0.7 * 5 * 2 * RATE


@pytest.mark.parametrize("small", [TINY, of(100)], ids=["3", "100"])
def test_a_long_ask_still_finishes_under_a_flood_of_small_ones(small: Lengths) -> None:
    """Its 4,096 tokens take 0.34 s alone, the 20,000 tokens that wait before it 1.7 s at most."""
    its = target()
    groups = Group("long", LONG, its), Group("small", small, its, callers=200)
    seen = simulated(*groups, seconds=10)
    assert len(seen["long"].waits_s) >= 3
    assert max(seen["long"].waits_s) < 2 * (1.7 + 0.34)
    assert seen["long"].late == seen["small"].late == 0


def test_a_key_with_one_ask_does_not_wait_for_the_hundred_of_another() -> None:
    its = target()
    seen = simulated(Group("many", of(100), its, 100, key="a"), Group("one", of(100), its, key="b"))
    assert max(seen["one"].micro_batches) <= 3
    assert np.median(seen["one"].waits_s) < 0.1 * float(np.median(seen["many"].waits_s))
    assert seen["many"].good_tokens + seen["one"].good_tokens > 0.95 * 5 * 2 * RATE


def test_a_key_with_one_long_ask_waits_half_as_long_as_twelve_of_another() -> None:
    its = target()
    seen = simulated(Group("many", LONG, its, 12, key="a"), Group("one", LONG, its, key="b"))
    assert np.median(seen["one"].waits_s) < float(np.median(seen["many"].waits_s)) / 2


def test_keys_that_always_have_work_get_equal_shares_whatever_they_send() -> None:
    its, slow = target(), target()
    slow.tokens_per_s = RATE / 4
    groups = (
        Group("a", LONG, its, 10, key="a"),
        Group("b", of(30), its, 100, key="b"),
        Group("c", of(30), slow, 50, key="c"),
    )
    seen = simulated(*groups, seconds=20)
    seconds = [
        seen[name].good_tokens / rate for name, rate in (("a", RATE), ("b", RATE), ("c", RATE / 4))
    ]
    assert max(seconds) < 1.3 * min(seconds)


def flooded(*groups: Group, late: float = 0.01) -> dict[str, Outcome]:
    """What holds for each of them, whatever the others do."""
    seen = simulated(*groups, seconds=10)
    assert sum(outcome.good_tokens for outcome in seen.values()) > 0.95 * 10 * 2 * RATE
    assert all(outcome.late < late for outcome in seen.values())
    assert all(outcome.sizes > 0.9 for outcome in seen.values())
    return seen


def flood(name: str, its: Target, times: float = 5, key: str = "", begins_s: float = 0) -> Group:
    return Group(name, mixed, its, rate=times * CAPACITY, time_s=1, key=key, begins_s=begins_s)


@pytest.mark.parametrize("deadline_s", [1, 2])
def test_a_flood_costs_neither_goodput_nor_deadlines_nor_the_large_asks_nor_much_reading(
    deadline_s: float,
) -> None:
    """One worker of 1,000 tokens a second, offered five times as much in asks of 60 tokens."""
    its = Target(no_rows, 100)
    its.tokens_per_s = 1000

    def three(draws: np.random.Generator) -> list[int]:
        return draws.integers(1, 40, 3).tolist()  # type: ignore[no-any-return]

    group = Group("flood", three, its, rate=5 * 1000 / 60, time_s=deadline_s)
    seen = Simulation(gate_of(1, 10_000), [group]).run(20)["flood"]
    assert seen.good_tokens > 0.95 * 20 * 1000
    assert seen.late < 0.01
    assert seen.sizes > 0.9
    assert seen.read < 0.2


@pytest.mark.parametrize("by", ["model", "key"])
def test_a_flood_of_one_model_or_key_rejects_nobody_of_another(by: str) -> None:
    one, other = (target(), target()) if by == "model" else [target()] * 2
    key = "b" if by == "key" else ""
    seen = flooded(flood("flood", one), flood("few", other, times=0.1, key=key))
    assert seen["few"].refused == 0
    assert max(seen["few"].waits_s) < 0.5
    assert (
        by == "model" or seen["flood"].read < 0.2
    )  # the model stands in the body, the key before it


@pytest.mark.parametrize("by", ["model", "key"])
def test_two_floods_share_the_worker_threads_and_each_keeps_its_promises(by: str) -> None:
    one, other = (target(), target()) if by == "model" else [target()] * 2
    key = "b" if by == "key" else ""
    # when the second comes, what the first was promised with all workers takes twice as long
    seen = flooded(flood("first", one), flood("second", other, key=key, begins_s=5), late=0.02)
    assert all(outcome.read < 0.2 for outcome in seen.values())
    assert 0.8 < seen["second"].good_tokens / (5 * RATE) < 1.1  # half of the workers, once it comes


@pytest.mark.parametrize("seed", range(3))
def test_mixed_sizes_fill_micro_batches_as_before(seed: int) -> None:
    """0.787 with 32 callers and 0.782 past capacity are what the order of arrival alone gave."""
    its = target()
    for group, least in ((Group("callers", mixed, its, 32), 0.78), (flood("flood", its), 0.77)):
        simulation = Simulation(gate_of(2, 65_536), [group], seed)
        simulation.run(10)
        assert float(np.mean(simulation.fill)) > least
        assert simulation.busy_s > 0.99 * 2 * 10
