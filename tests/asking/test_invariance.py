"""The invariance check: served rows are computed again, alone, when nothing waits."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from addnorm.service.asking.invariance import MAX_KEPT, InvarianceCheck
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Target
from addnorm.service.wire.telemetry.metrics import Metrics
from tests.conftest import client_of, service_of
from tests.support.metrics import samples, value
from tests.support.scheduling import batch, echo, gate_of, of_lengths, submit_to
from tests.support.waiting import PATIENCE_S, eventually


def crowded(batch: Batch) -> Rows:
    """Each row is off by what its batch has co-batched."""
    return Rows(*(part + np.float32(len(batch) - 1) / 4 for part in echo(batch)))


def without_norms(batch: Batch) -> Rows:
    """Rows of a module that is served as it is have no norms."""
    no_norms = np.zeros((batch.num_tokens, 0), np.float32)
    return Rows(crowded(batch).activations, no_norms, no_norms)


@contextmanager
def probing(
    metrics: Metrics, share: float = 1.0, is_idle: Callable[[], bool] | None = None
) -> Iterator[Scheduler]:
    scheduler = Scheduler(gate_of(1, 10_000))
    probe = InvarianceCheck(share, is_idle or scheduler.is_idle, metrics.count_invariance_check)
    scheduler.start((metrics, probe))
    yield scheduler
    scheduler.close()
    probe.close()


def counted(metrics: Metrics, what: str) -> float | None:
    return value(metrics, f"addnorm_invariance_{what}_total", model="model")


def ask(scheduler: Scheduler, target: Target, batch: Batch) -> None:
    submit_to(scheduler, target, batch, 30).entry.future.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("engine", "violations", "difference"),
    [(echo, 0, 0.0), (crowded, 3, 0.5), (without_norms, 3, 0.5)],
)
def test_rows_that_depend_on_neighbours_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
    engine: Callable[[Batch], Rows],
    violations: int,
    difference: float,
) -> None:
    metrics = Metrics()
    with probing(metrics) as scheduler:
        ask(scheduler, Target(engine, 100, "model"), batch([1], [2, 3], [4, 5, 6]))
        assert eventually(lambda: counted(metrics, "checks") == 3)
    assert counted(metrics, "violations") == violations
    assert metrics.differences["model"] == difference
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == (
        violations > 0
    )


def test_a_sequence_is_computed_again_with_its_token_types() -> None:
    def types(batch: Batch) -> Rows:
        column = np.zeros(batch.num_tokens) if batch.types is None else batch.types
        return Rows(*[column[:, None].astype(np.float32)] * 3)

    typed = Batch.of([np.array([5, 6]), np.array([7])], [np.array([0, 1]), np.array([1])])
    metrics = Metrics()
    with probing(metrics) as scheduler:
        ask(scheduler, Target(types, 100, "model"), typed)
        assert eventually(lambda: counted(metrics, "checks") == 2)
    assert counted(metrics, "violations") == 0


def test_an_engine_that_is_not_exact_may_differ_a_little() -> None:
    def nearly(batch: Batch) -> Rows:
        return Rows(*(part + np.float32(len(batch)) * np.float32(1e-5) for part in echo(batch)))

    metrics = Metrics()
    with probing(metrics) as scheduler:
        ask(scheduler, Target(nearly, 100, "model", exact=False), batch([1], [2, 3]))
        assert eventually(lambda: counted(metrics, "checks") == 2)
    assert counted(metrics, "violations") == 0
    assert 0 < metrics.differences["model"] < 1e-4


def test_a_server_that_is_never_idle_drops_samples_and_keeps_few() -> None:
    metrics, ran = Metrics(), list[int]()

    def record(batch: Batch) -> Rows:
        ran.append(len(batch))
        return echo(batch)

    with probing(metrics, is_idle=lambda: False) as scheduler:
        for _ in range(3 * MAX_KEPT):
            ask(scheduler, Target(record, 100, "model"), of_lengths(2, 3))
    assert counted(metrics, "checks") is None
    assert ran == [2] * 3 * MAX_KEPT


def test_only_the_share_asked_for_is_probed() -> None:
    metrics = Metrics()
    with probing(metrics, share=1e-12) as scheduler:
        ask(scheduler, Target(crowded, 100, "model"), of_lengths(2, 3))
    assert counted(metrics, "checks") is None


def test_live_micro_batches_of_a_real_model_keep_the_promise(few: Models) -> None:
    inference = service_of(few, invariance_check_share=1.0)
    bodies = [
        {"model": "gpt", "input_ids": [[i] * n for n in range(3, 9)], "outputs": ["pooled"]}
        for i in range(1, 20)
    ]
    with (
        client_of(inference) as client,
        ThreadPoolExecutor(4) as callers,
    ):

        def got(name: str) -> float:
            return samples(client.get("/metrics").text).get((name, (("model", "gpt"),)), 0.0)

        assert {client.post("/v1/infer", json=body).status_code for body in bodies} == {200}
        assert all(
            answer.status_code == 200
            for answer in callers.map(lambda b: client.post("/v1/infer", json=b), bodies)
        )

        def checked() -> bool:
            """A busy server drops samples: it may need more of them."""
            assert client.post("/v1/infer", json=bodies[0]).status_code == 200
            return got("addnorm_invariance_checks_total") >= 20

        assert eventually(checked)
        assert (
            got("addnorm_invariance_violations_total")
            == got("addnorm_invariance_max_difference")
            == 0
        )
