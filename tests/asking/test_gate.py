"""The gate: keys share what is held, small requests always find space, and all is given back."""

import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import FairQueue
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.rows import AskedRows
from addnorm.service.errors import (
    DeadlineNotMet,
    Expired,
    Overloaded,
    ResponsesFull,
    TooManyAtOnce,
)
from tests.support.scheduling import of_lengths

LIMIT = 9_000_000


@pytest.fixture
def gate() -> Gate:
    return Gate(FairQueue(), {"bodies": LIMIT, "responses": LIMIT})


def weigh(gate: Gate, ask: Ask, answer_s: float, num_bytes: int = 0) -> None:
    """Nothing of it must be computed."""
    ask.num_bytes, ask.answer_s = num_bytes, answer_s
    ask.rows = AskedRows(of_lengths(), ("every",))
    gate.weigh(ask, ask.started)


def is_granted(gate: Gate, holdings: Ask, num_bytes: int) -> bool:
    try:
        gate.hold(holdings, "bodies", num_bytes)
    except Overloaded:
        return False
    return True


def fill(gate: Gate, num_bytes: int, key: str = "") -> int:
    """Such requests hold bodies until one is refused -> the bytes held for them."""
    before = gate.total["bodies"]
    while is_granted(gate, Ask(key=key), num_bytes):
        assert gate.total["bodies"] <= LIMIT
    return gate.total["bodies"] - before


def test_one_key_alone_may_hold_nearly_all(gate: Gate) -> None:
    assert fill(gate, 100_000, "many") == 8_000_000


def test_whoever_holds_much_is_rejected_before_whoever_holds_little(gate: Gate) -> None:
    fill(gate, 100_000, "many")
    assert fill(gate, 100_000, "other") == 800_000
    assert fill(gate, 10_000, "third") > 80_000
    assert gate.total["bodies"] < LIMIT


@pytest.mark.parametrize("key", ["", "many", "other"])
@pytest.mark.parametrize("each", [100_000, 1_000_000, 7_999_999])
def test_a_small_request_finds_space_beside_large_ones_of_any_key(
    gate: Gate, key: str, each: int
) -> None:
    fill(gate, each, "many" if key else "")
    gate.hold(Ask(key=key), "bodies", 10_000)


def test_small_requests_of_one_key_leave_space_to_other_keys(gate: Gate) -> None:
    for each in (100_000, 10_000, 1000):
        fill(gate, each, "many")
    assert gate.total["bodies"] < LIMIT
    gate.hold(Ask(key="other"), "bodies", 10_000)


def test_a_request_that_grows_counts_as_a_whole(gate: Gate) -> None:
    """Many small pieces are no small request."""
    held = fill(gate, 100_000)
    growing, num_bytes = Ask(), 1000
    while is_granted(gate, growing, num_bytes):
        assert gate.total["bodies"] <= LIMIT
        num_bytes += 1000
    assert gate.total["bodies"] - held < 20_000


def test_a_request_alone_may_hold_more_than_the_limit(gate: Gate) -> None:
    alone, other = Ask(key="a"), Ask(key="b")
    with gate.admit(alone):
        for num_bytes in (2 * LIMIT, 2 * LIMIT + 1000):
            gate.hold(alone, "bodies", num_bytes)
        gate.hold(other, "bodies", 0)
        gate.hold(other, "responses", 1)
        with pytest.raises(Overloaded):
            gate.hold(other, "bodies", 1)
    gate.hold(other, "bodies", 1)


def test_all_that_a_request_holds_is_given_back_and_leaves_no_trace_of_its_key(gate: Gate) -> None:
    holdings = Ask(key="a")

    def fail() -> None:
        with gate.admit(holdings):
            gate.hold(holdings, "bodies", 1000)
            gate.hold(holdings, "bodies", 10)
            gate.keep(holdings, "responses", 3 * LIMIT)
            assert (gate.total["requests"], gate.total["bodies"]) == (1, 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(gate.total.values())
    assert not any(gate._by_key.values())


def test_what_is_rejected_is_not_held_and_says_when_to_come_back(gate: Gate) -> None:
    fill(gate, 1_000_000)
    large = Ask()
    gate.hold(large, "bodies", 1000)
    with pytest.raises(Overloaded) as full:
        gate.hold(large, "bodies", 2_001_000)
    assert full.value.message == (
        "overloaded: bodies in progress hold 8,001,000 bytes, this request needs 2,000,000 more,"
        " the limit is 9,000,000, of which a caller leaves 1/9 to the other callers; retry in 1 s"
    )
    assert (full.value.code, full.value.retry_after_s) == ("bodies_full", 1)
    assert gate.total["bodies"] == 8_001_000


def test_a_keys_own_limit_of_requests(gate: Gate) -> None:
    first, second = Ask(key="a"), Ask(key="a")
    with gate.admit(first, max_requests=1):
        with pytest.raises(
            TooManyAtOnce, match="1 requests in progress, its limit is 1; retry in 1 s"
        ):
            gate.admit(second, max_requests=1).__enter__()
        with gate.admit(Ask(key="b"), max_requests=1), gate.admit(second):
            pass
    with gate.admit(second, max_requests=1):
        pass


def test_of_other_keys_answers_only_as_much_comes_before_as_a_key_is_given_itself(
    gate: Gate,
) -> None:
    def before_s(key: str) -> float:
        return gate.before_s("answer_s", key, 3.0)

    many, one = (Ask(key="many"), Ask(key="many")), Ask(key="one")
    with gate.admit(many[0]), gate.admit(many[1]):
        weigh(gate, many[0], answer_s=100.0)
        weigh(gate, many[1], answer_s=20.0)
        assert (before_s("one"), before_s("many")) == (3.0, 120.0)
        with gate.admit(one):
            weigh(gate, one, answer_s=5.0)
            assert (before_s("one"), before_s("many")) == (5.0 + 8.0, 120.0 + 5.0)
    assert (before_s("one"), before_s("many")) == (0.0, 0.0)


def test_an_answer_that_would_be_late_is_not_begun() -> None:
    """Answers before it are a reason to come back later; its own time is not."""
    gate = Gate(FairQueue(), {"responses": LIMIT}, num_encoders=2)
    first, second = Ask(timeout_s=10.0), Ask(timeout_s=10.0)
    with pytest.raises(Expired, match=r"takes about 10\.5 s, the deadline is in 10 s") as late:
        weigh(gate, first, answer_s=10.5)
    assert late.value.retry_after_s is None
    weigh(gate, first, num_bytes=7, answer_s=9.0)
    with pytest.raises(DeadlineNotMet, match=r"take 4\.5 s, this one about 6 s more") as after:
        weigh(gate, second, answer_s=6.0)
    assert after.value.retry_after_s == 4.5
    assert after.value.message.endswith("; retry in 5 s")
    with pytest.raises(ResponsesFull):
        weigh(gate, second, num_bytes=2 * LIMIT, answer_s=0.0)
    assert (gate.total["responses"], gate.total["answer_s"]) == (7, 9.0)
    weigh(gate, second, answer_s=5.5)
    assert gate.total["answer_s"] == 14.5
