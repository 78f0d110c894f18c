"""Byte budgets: keys share them, and small requests always find space."""

import pytest

from addnorm.service.errors import Overloaded
from addnorm.service.scheduling.byte_budget import ByteBudget, Reservation

LIMIT = 9_000_000


def fill(budget: ByteBudget, num_bytes: int, key: str = "") -> int:
    """Reserves such requests until one is refused -> the bytes held for them."""
    before = budget.num_bytes
    while is_granted(budget.reserve(0, key), num_bytes):
        assert budget.num_bytes <= LIMIT
    return budget.num_bytes - before


def is_granted(reservation: Reservation, num_bytes: int) -> bool:
    try:
        reservation.grow(num_bytes)
    except Overloaded:
        return False
    return True


def test_one_key_alone_may_hold_nearly_all() -> None:
    assert fill(ByteBudget("bodies", LIMIT), 100_000, "many") == 8_000_000


def test_whoever_holds_much_is_rejected_before_whoever_holds_little() -> None:
    budget = ByteBudget("bodies", LIMIT)
    fill(budget, 100_000, "many")
    assert fill(budget, 100_000, "other") == 800_000
    assert fill(budget, 10_000, "third") > 80_000
    assert budget.num_bytes < LIMIT


@pytest.mark.parametrize("key", ["", "many", "other"])
@pytest.mark.parametrize("each", [100_000, 1_000_000, 7_999_999])
def test_a_small_request_finds_space_beside_large_ones_of_any_key(key: str, each: int) -> None:
    budget = ByteBudget("bodies", LIMIT)
    fill(budget, each, "many" if key else "")
    budget.reserve(10_000, key)


def test_small_requests_of_one_key_leave_space_to_other_keys() -> None:
    budget = ByteBudget("bodies", LIMIT)
    for each in (100_000, 10_000, 1000):
        fill(budget, each, "many")
    assert budget.num_bytes < LIMIT
    budget.reserve(10_000, "other")


def test_a_request_that_grows_counts_as_a_whole() -> None:
    """Many small pieces are no small request."""
    budget = ByteBudget("bodies", LIMIT)
    fill(budget, 100_000)
    growing, held = budget.reserve(0), budget.num_bytes
    while is_granted(growing, 1000):
        assert budget.num_bytes <= LIMIT
    assert budget.num_bytes - held < 20_000


def test_a_request_alone_may_be_larger_than_the_limit() -> None:
    budget = ByteBudget("bodies", LIMIT)
    with budget.reserve(2 * LIMIT, "a") as alone:
        alone.grow(1000)
        budget.reserve(0, "b")
        with pytest.raises(Overloaded):
            budget.reserve(1, "b")
    assert budget.num_bytes == 0
    budget.reserve(1, "b")


def test_what_is_given_back_leaves_no_trace_of_its_key() -> None:
    budget = ByteBudget("bodies", LIMIT)
    with budget.reserve(1000, "a") as first, budget.reserve(0, "b"):
        first.keep(LIMIT)
    assert (budget.num_bytes, len(budget._by_key)) == (0, 0)


def test_a_reservation_that_is_released_gives_its_bytes_back_once() -> None:
    budget = ByteBudget("bodies", LIMIT)
    with budget.reserve(1000, "a") as reservation:
        reservation.release()
        assert budget.num_bytes == 0
    assert budget.num_bytes == 0
