"""Bulk requests have the bits of any other, and fill no queue. Their time follows their size. They
are rejected before anything is computed, dropped with their caller, and counted."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addnorm.service.asking.answer import QUICK_BYTES
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.limits import check
from addnorm.service.engine.outputs import Activations, Output, Pooled
from addnorm.service.engine.registry import Models
from addnorm.service.errors import ClientGone, DeadlineNotMet, InvalidInput
from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import Service
from addnorm.service.settings import Settings
from tests.conftest import service_of
from tests.support.asks import ask_for
from tests.support.waiting import eventually, runs_held_up, until

LENGTHS = [1 + 7 * number % 23 for number in range(400)]
ROWS = [[1 + (5 * row + column) % 40 for column in range(size)] for row, size in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def models(small: Path) -> Models:
    """Several micro-batches are made of it: warm-up may choose a larger budget."""
    return load_all(small, Settings(worker_threads=2, token_budget=128))


@pytest.fixture
def target(models: Models) -> Iterator[Any]:
    """Its rate is as it was afterwards."""
    target = models.find("gpt").target(None)
    before = target.tokens_per_s
    yield target
    target.tokens_per_s = before


@contextmanager
def service(models: Models, **changed: Any) -> Iterator[Service]:
    """One that takes more than 64 tokens for a bulk request."""
    changed = {"worker_threads": 2, "max_queue_tokens": 64, "cache_bytes": 0, **changed}
    made = service_of(models, **changed)
    try:
        yield made
    finally:
        made.close()


def asked(models: Models, output: Output[Any], rows: list[list[int]] = ROWS, **fields: Any) -> Ask:
    return ask_for(models.find("gpt"), rows, output, encode=values, **fields)


def values(ask: Ask) -> list[Any]:
    (value,) = ask.values.values()
    return [np.array(own) for own in value.for_json()]  # type: ignore[attr-defined]


def run(on: Service, ask: Ask) -> Any:
    with on.gate.admit(ask):
        return asyncio.run(on.answers.answer(ask))


def is_bulk(on: Service, ask: Ask) -> bool:
    ask.target = ask.model.target(None)
    return on.gate.is_bulk(ask, time.monotonic())


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
@pytest.mark.parametrize("output", [Pooled(), Activations()])
def test_a_bulk_request_has_the_bits_of_any_other(
    models: Models, output: Output[Any], cache_bytes: int
) -> None:
    with service(models, max_queue_tokens=65_536) as whole:
        assert not is_bulk(whole, asked(models, output))
        expected = run(whole, asked(models, output))
    with service(models, cache_bytes=cache_bytes) as bulk:
        assert is_bulk(bulk, asked(models, output))
        for _ in range(2):  # the second time from the cache
            for own, others in zip(run(bulk, asked(models, output)), expected, strict=True):
                assert own.tobytes() == others.tobytes()


def test_what_is_slow_here_is_a_bulk_request_too(models: Models) -> None:
    """A client that always sends 1,000 texts must get an answer from slow models."""
    with service(models, max_queue_tokens=65_536, timeout_s=1e-6) as slow:
        assert is_bulk(slow, asked(models, Pooled(), ROWS[:2]))
        # one sequence cannot leave a worker to others
        assert not is_bulk(slow, asked(models, Pooled(), ROWS[:1]))


@pytest.mark.parametrize(
    ("own_s", "expected"), [(14, False), (16, True), (599, True), (601, False)]
)
def test_from_a_quarter_of_the_deadline_to_that_of_bulk_it_is_one(
    models: Models, target: Any, own_s: float, expected: bool
) -> None:
    ask = asked(models, Pooled(), ROWS[:2])
    with service(models, max_queue_tokens=65_536, timeout_s=60, bulk_timeout_s=600) as on:
        num_workers = on.gate.queue.num_bulk_workers(time.monotonic())
        target.tokens_per_s = ask.batch.num_tokens / own_s / num_workers
        assert is_bulk(on, ask) is expected


def test_it_takes_no_space_in_the_queue(models: Models) -> None:
    async def ask(on: Service) -> int:
        work = asyncio.create_task(on.answers.answer(asked(models, Pooled())))
        with runs_held_up(models, "gpt") as go:
            most = 0
            await until(lambda: on.scheduler.num_busy == 2)
            most = on.scheduler.num_queued_tokens()
            go.set()
        await work
        return most

    with service(models) as on:
        assert asyncio.run(ask(on)) == 0


def test_the_rest_is_dropped_when_the_caller_leaves(models: Models) -> None:
    async def leave(on: Service, ask: Ask) -> None:
        with runs_held_up(models, "gpt") as go:
            work = asyncio.create_task(on.answers.answer(ask))
            await until(lambda: on.scheduler.num_busy)
            assert on.gate.total["responses"]
            ask.leave()
            with pytest.raises(ClientGone):
                await work
            go.set()

    with service(models) as on:
        ask = asked(models, Pooled())
        with on.gate.admit(ask):
            asyncio.run(leave(on, ask))
        assert eventually(lambda: not on.scheduler.num_busy)
        assert on.scheduler.num_queued_tokens() == 0
        assert not any(on.gate.total.values())


def test_its_deadline_follows_its_size_at_the_measured_speed(models: Models, target: Any) -> None:
    def timeout_s(on: Service, timeout_s: float, is_callers: bool = False) -> float:
        deadline = {"timeout_s": timeout_s, "is_callers": is_callers}
        run(on, ask := asked(models, Pooled(), **deadline))
        return ask.timeout_s

    target.tokens_per_s = sum(LENGTHS) / 20  # of one of two workers
    with service(models) as on:
        assert timeout_s(on, 1.0) == pytest.approx(4 * 1.2 * 10, rel=0.1)
        target.tokens_per_s = 1e9
        assert timeout_s(on, 30.0) == 30
        target.tokens_per_s = sum(LENGTHS) / 20
        assert timeout_s(on, 60.0, is_callers=True) == 60
    target.tokens_per_s = sum(LENGTHS) / 20
    with service(models, bulk_timeout_s=31.0) as on:
        assert timeout_s(on, 30.0) == 31


@pytest.mark.parametrize("is_callers", [False, True])
def test_its_deadline_counts_the_answer_that_takes_longer_than_others_may(
    models: Models, target: Any, is_callers: bool
) -> None:
    """Writing takes 40 s: more than the 30 s that others have."""
    ask = asked(models, Activations(), ROWS, timeout_s=30.0, is_callers=is_callers)
    with service(models) as on:
        rate = on.answers.costs[""].writing(ask)
        check(ask, on.settings)
        assert ask.num_bytes > QUICK_BYTES
        rate.add(ask.num_bytes, 40.0, is_done=True)
        if is_callers:
            with pytest.raises(DeadlineNotMet, match=r"the answer would take 4\d(\.\d)? s"):
                run(on, ask)
            assert not any(on.gate.total.values())
        else:
            run(on, ask)
            assert ask.timeout_s > 4 * 40


@pytest.mark.parametrize("is_callers", [True, False])
def test_what_cannot_end_in_time_is_rejected_before_anything_is_computed(
    models: Models, target: Any, is_callers: bool
) -> None:
    target.tokens_per_s = sum(LENGTHS) / 2000
    timeout_s = 600 if is_callers else 30
    ask = asked(models, Pooled(), timeout_s=timeout_s, is_callers=is_callers)
    with service(models) as on, runs_held_up(models, "gpt"):  # a run would never end
        with pytest.raises(DeadlineNotMet, match="send less at once") as rejected:
            run(on, ask)
        assert rejected.value.status == 429
        assert rejected.value.retry_after_s == 1
        assert on.scheduler.num_busy == 0
        assert not any(on.gate.total.values())


def test_what_others_take_comes_on_top(models: Models, target: Any) -> None:
    async def ask_two(on: Service) -> None:
        with runs_held_up(models, "gpt") as go:
            first = asyncio.create_task(on.answers.answer(asked(models, Pooled(), timeout_s=200)))
            await until(lambda: on.scheduler.num_busy)
            with pytest.raises(DeadlineNotMet) as rejected:
                await on.answers.answer(asked(models, Pooled(), timeout_s=20))
            assert rejected.value.retry_after_s >= 10
            go.set()
        await first

    target.tokens_per_s = sum(LENGTHS) / 20
    with service(models) as on:
        asyncio.run(ask_two(on))


def test_what_can_never_be_held_is_refused(models: Models) -> None:
    ask = asked(models, Activations(), [[1] * 60] * 100, answer_bytes=10)
    too_much = pytest.raises(InvalidInput, match=r"would take \d+ MiB, the limit is 2: send less")
    with service(models, max_pending_response_bytes=2 * 2**20) as on, too_much:
        run(on, ask)
