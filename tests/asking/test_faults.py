"""A fault costs its own ask only: poisoned asks, hung workers, observers that raise."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest

from addnorm.service.asking.fair_queue import MicroBatch
from addnorm.service.asking.scheduler import Observer, Scheduler
from addnorm.service.engine import heads
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.manifest import Task
from addnorm.service.engine.registry import Models, Selection
from addnorm.service.engine.target import Run, Target
from addnorm.service.errors import NotFinite, RunTimedOut, ServiceError
from addnorm.service.wire.telemetry.metrics import Metrics
from tests.conftest import client_of, inference_of, service_of, serving
from tests.support import web
from tests.support.metrics import value
from tests.support.scheduling import ask_of, batch, echo, gate_of, of_lengths, submit_to, values
from tests.support.waiting import PATIENCE_S, eventually

POISON = 7


def poisoned(batch: Batch) -> Rows:
    if POISON in batch.tokens:
        raise ValueError("poison")
    return echo(batch)


class Hanging:
    """An engine that hangs on a poisoned batch until it is let go."""

    def __init__(self) -> None:
        self.hangs, self.go, self.num_ended = threading.Semaphore(0), threading.Event(), 0

    def __call__(self, batch: Batch) -> Rows:
        if POISON in batch.tokens:
            self.hangs.release()
            self.go.wait()
            self.num_ended += 1
        return echo(batch)


@contextmanager
def scheduling(
    num_workers: int = 1, *observers: Observer, run_timeout_s: float = 20.0
) -> Iterator[Scheduler]:
    scheduler = Scheduler(gate_of(num_workers, 1000), run_timeout_s)
    scheduler.start(observers)
    yield scheduler
    scheduler.close()


@contextmanager
def reserve(scheduler: Scheduler) -> Iterator[None]:
    """The only worker is busy meanwhile, so that what is submitted runs together."""
    engine = Hanging()
    ask = submit_to(scheduler, Target(engine, 1), batch([POISON]), 30)
    engine.hangs.acquire()
    yield
    engine.go.set()
    values(ask)


def test_only_the_poisoned_ask_fails_and_its_mates_are_answered() -> None:
    metrics = Metrics()
    with scheduling(1, metrics) as scheduler:
        target = Target(poisoned, 100, "model")
        with reserve(scheduler):
            mates = [submit_to(scheduler, target, batch([i, i], [i, i, i]), 30) for i in (1, 2)]
            bad = submit_to(scheduler, target, batch([3, 3], [POISON, 3, 3]), 30)
            mates.append(submit_to(scheduler, target, batch([4, 4], [4, 4, 4]), 30))
        assert [values(ask) for ask in mates] == [[[i, i], [i, i, i]] for i in (1, 2, 4)]
        with pytest.raises(ServiceError, match="inference failed: ValueError"):
            bad.entry.future.result(PATIENCE_S)
        # together, then its own share
        assert value(metrics, "addnorm_engine_failures_total", model="model") == 2
        assert eventually(lambda: scheduler.num_busy == 0)
        assert scheduler.num_queued_tokens() == 0


def overflowing(batch: Batch) -> Rows:
    """An engine in which one sequence's overflow reaches the others of its micro-batch."""
    rows = echo(batch)
    if POISON not in batch.tokens:
        return rows
    return Rows(*(np.full_like(part, np.nan) for part in rows))


def test_only_the_ask_whose_rows_are_not_finite_fails() -> None:
    with scheduling(1) as scheduler:
        target = Target(overflowing, 100, "model")
        with reserve(scheduler):
            mates = [submit_to(scheduler, target, batch([i, i]), 30) for i in (1, 2)]
            bad = submit_to(scheduler, target, batch([3, 3], [POISON, 3]), 30)
        assert [values(ask) for ask in mates] == [[[i, i]] for i in (1, 2)]
        with pytest.raises(NotFinite, match=r"^activations of sequence 0 are not finite"):
            bad.entry.future.result(PATIENCE_S)


@pytest.mark.parametrize("output", Rows._fields)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found_in_any_output(output: str, value: float) -> None:
    def broken(batch: Batch) -> Rows:
        rows = echo(batch)
        getattr(rows, output)[-1, -1] = value
        return rows

    with scheduling(1) as scheduler:
        ask = submit_to(scheduler, Target(broken, 100), batch([1, 2], [3, 4]), 30)
        with pytest.raises(NotFinite, match=f"^{output} of sequence 1 are not finite") as failed:
            ask.entry.future.result(PATIENCE_S)
    assert (failed.value.status, failed.value.code) == (500, "not_finite")


def test_a_caller_is_told_which_of_its_sequences_overflowed(small: Path) -> None:
    inference = inference_of(small)
    target = inference.models.find("gpt").target(None)

    def overflow_last(batch: Batch) -> Rows:
        rows = echo(batch)
        for part in rows.span(batch.offsets[-2], batch.offsets[-1]):
            part[:] = np.inf
        return rows

    target.run = target.run_on_all_cores = overflow_last
    ids, mask = [[1, 2, 0], [0, 0, 0], [4, 5, 6]], [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    with serving(inference) as url:
        body = {"model": "gpt", "input_ids": ids, "attention_mask": mask}
        answer = web.post(f"{url}/v1/infer", json=body)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "not_finite"
    assert "activations of sequence 2 are" in answer.json()["error"]["message"]


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e18, LARGEST / 4])
def test_vectors_of_any_finite_length_are_normalized(scale: float) -> None:
    vectors = np.array([[3, -4], [0, 0], [0.5, 1]], np.float32) * np.float32(scale)
    unit = heads.unit(vectors)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), [1, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(unit[0], [0.6, -0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("pooled", {}),  # their sum overflows
        ("logits", {}),
        ("logits", {"logits": {"positions": "all", "top_k": 2}}),
        ("logits", {"logits": {"positions": "last", "top_k": 2}}),
    ],
)
def test_finite_rows_whose_output_overflows_fail_their_ask_alone(
    small: Path, output: str, options: dict[str, object]
) -> None:
    inference = inference_of(small)
    model = inference.models.find("gpt")
    target, run = model.target(None), model.engine(None).run

    def huge(batch: Batch) -> Rows:
        rows = run(batch)
        for start, end in pairwise(batch.offsets):
            if POISON in batch.tokens[start:end]:
                rows.activations[start:end] = LARGEST
        return rows

    target.run = target.run_on_all_cores = huge
    with serving(inference) as url:
        for ids, status in (([[1, 2], [3], [POISON, 4, 5]], 500), ([[1, 2], [3]], 200)):
            body = {"model": "gpt", "input_ids": ids, "outputs": [output], **options}
            answer = web.post(f"{url}/v1/infer", json=body)
            assert answer.status_code == status, answer.text
            if status == 500:
                error = answer.json()["error"]
                assert error["code"] == "not_finite"
                assert error["message"].startswith(f"{output} of sequence 2 are not f"[:28])


def test_rows_that_do_not_fit_their_sequences_fail_the_ask_and_not_the_worker_thread() -> None:
    engines: list[Callable[[Batch], Rows]] = [
        lambda batch: echo(batch).span(0, batch.num_tokens - 1),
        lambda batch: echo(batch)._replace(norm_rstd=np.zeros((0, 1), np.float32)),
    ]
    with scheduling() as scheduler:
        for engine in engines:
            ask = submit_to(scheduler, Target(engine, 100), batch([1, 2], [3]), 30)
            with pytest.raises(ServiceError, match="inference failed: AssertionError"):
                ask.entry.future.result(PATIENCE_S)
        assert values(submit_to(scheduler, Target(echo, 100), batch([8]), 30)) == [[8]]


class Breaking(Target):
    """Breaks the queue when it looks at the rate for the last time that it may."""

    def __init__(self, run: Run, num_looks: int) -> None:
        self.num_looks = num_looks
        super().__init__(run, 100)

    @property  # type: ignore[override]
    def tokens_per_s(self) -> float | None:
        self.num_looks -= 1
        if self.num_looks == 0:
            raise KeyError("of the queue")
        return self._rate

    @tokens_per_s.setter
    def tokens_per_s(self, rate: float | None) -> None:
        self._rate = rate


@pytest.mark.parametrize("what", ["ends", "fails", "hangs"])
def test_an_error_of_the_queue_ends_no_thread_and_leaves_no_ask_waiting(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it is raised: in each round the queue looks once more before it breaks."""
    num_broken, engine = 0, Hanging()
    run = {"ends": echo, "fails": poisoned, "hangs": engine}[what]
    with scheduling(run_timeout_s=2.0) as scheduler:
        for num_looks in count(1):
            target, scheduler.run_timeout_s = Breaking(run, num_looks), 2.0
            with reserve(scheduler):
                scheduler.submit_first(first := ask_of(target, batch([4])))
                asks = [first]
                for sequences in ([[3, 3]], [[POISON], [2, 2]]):
                    with suppress(KeyError):
                        asks.append(submit_to(scheduler, target, batch(*sequences), 30))
            if what == "hangs":
                scheduler.run_timeout_s = 0.1
            errors = [ask.entry.future.exception(PATIENCE_S) for ask in asks]
            # a slow machine is no hanging engine; the watchdog sleeps a tenth of it
            scheduler.run_timeout_s = 20.0
            num_broken += any("KeyError" in str(error) for error in errors)
            assert eventually(lambda: scheduler.num_busy == 0)
            assert scheduler.num_queued_tokens() == target.num_tokens == 0
            assert values(submit_to(scheduler, Target(echo, 100), batch([8]), 30)) == [[8]]
            if target.num_looks > 0:
                break
        engine.go.set()
    assert num_broken > 1
    assert "the queue failed" in caplog.text


def test_an_observer_that_raises_costs_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def on_computed(self, micro: MicroBatch, rows: Rows) -> None:
            raise RuntimeError("cannot count")

    metrics = Metrics()
    with scheduling(1, Broken(), metrics) as scheduler:
        for token in (8, 9):
            ask = submit_to(scheduler, Target(echo, 100, "model"), batch([token]), 30)
            assert values(ask) == [[token]]
    assert "cannot count" in caplog.text
    assert value(metrics, "addnorm_micro_batch_tokens_count", model="model") == 2


def test_a_worker_thread_that_hangs_is_replaced_and_its_late_result_is_ignored() -> None:
    metrics, engine = Metrics(), Hanging()
    with scheduling(1, metrics, run_timeout_s=0.1) as scheduler:
        target = Target(engine, 3)
        stuck = submit_to(
            scheduler, target, batch([POISON], [1, 1, 1]), 30
        )  # its other sequence waits
        assert engine.hangs.acquire(timeout=PATIENCE_S)
        # a slow machine is no hanging engine
        stuck.entry.future.add_done_callback(
            lambda _: setattr(scheduler, "run_timeout_s", PATIENCE_S)
        )
        next_one = submit_to(scheduler, target, batch([8, 8]), 30)
        with pytest.raises(RunTimedOut, match=r"did not end within 0\.1 s"):
            stuck.entry.future.result(PATIENCE_S)
        assert values(next_one) == [[8, 8]]
        assert value(metrics, "addnorm_worker_threads_replaced_total") == 1
        measured = target.tokens_per_s
        engine.go.set()
        assert eventually(lambda: engine.num_ended == 1)
        time.sleep(0.05)
        assert target.tokens_per_s == measured
        assert scheduler.num_busy == scheduler.num_queued_tokens() == 0
        assert values(submit_to(scheduler, target, batch([9]), 30)) == [[9]]


def test_mates_answered_before_a_retry_hangs_keep_their_answers() -> None:
    engine = Hanging()

    def fail_together(batch: Batch) -> Rows:
        if len(batch) > 1:
            raise ValueError("together")
        return engine(batch)

    with scheduling(1, run_timeout_s=2.0) as scheduler:
        target = Target(fail_together, 100)
        with reserve(scheduler):
            asks = [submit_to(scheduler, target, batch([token]), 30) for token in (1, POISON, 2)]
        assert values(asks[0]) == [[1]]
        scheduler.run_timeout_s = 0.2
        for ask in asks[1:]:
            with pytest.raises(RunTimedOut):
                ask.entry.future.result(PATIENCE_S)
        engine.go.set()


def test_closing_does_not_wait_for_worker_threads_that_hang() -> None:
    engine = Hanging()
    scheduler = Scheduler(gate_of(1, 1000), PATIENCE_S)
    scheduler.start()
    accepted = submit_to(scheduler, Target(echo, 100), of_lengths(1), 30)
    assert eventually(accepted.entry.future.done)
    scheduler.run_timeout_s = 0.2
    for _ in range(500):  # 100 s, if it waited for each
        submit_to(scheduler, Target(engine, 1), batch([POISON]), 30)
    started = time.monotonic()
    scheduler.close()
    assert time.monotonic() - started < 20
    assert values(accepted) == [[1]]
    engine.go.set()


def test_a_wall_clock_that_jumps_moves_no_deadline(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ahead_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    body = {"model": "notebook", "input_ids": [[1, 3, 4]], "outputs": ["pooled"]}
    inference = inference_of(small, worker_threads=1)
    slow = threading.Event()
    with (
        client_of(inference) as client,
        ThreadPoolExecutor() as callers,
    ):
        expected = client.post("/v1/infer", json=body).json()
        target = inference.models.find("notebook").target("fp32")
        run, taken = target.run, threading.Event()

        def waits(batch: Batch) -> Rows:
            taken.set()
            slow.wait(PATIENCE_S)
            return run(batch)

        target.run = target.run_on_all_cores = waits
        for jump_s in (86_400.0, -86_400.0):
            taken.clear()
            slow.clear()
            under_way = callers.submit(client.post, "/v1/infer", json=body)
            assert taken.wait(PATIENCE_S)
            waiting = callers.submit(client.post, "/v1/infer", json=body)
            assert eventually(lambda: inference.scheduler.num_queued_tokens() == 3)
            ahead_s = jump_s
            time.sleep(0.2)  # the loop ticks in the new time
            slow.set()
            answers = [one.result(PATIENCE_S) for one in (under_way, waiting)]
            answers.append(client.post("/v1/infer", json=body))
            assert [answer.json() for answer in answers] == [expected] * 3
            assert client.get("/readyz").status_code == 200


def test_the_traceback_of_an_error_of_ours_names_its_request(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Models):
        def meant(
            self, ref: str | None, task: Task | None = None, of_request: bool = False
        ) -> Selection:
            raise TypeError("a mistake of ours")

    with (
        serving(service_of(Broken(few.all()))) as url,
        web.client(base_url=url, headers={"x-request-id": "the-one"}) as client,
    ):
        answer = client.post("/v1/infer", json={"input_ids": [[1]]})
    assert answer.status_code == 500
    assert "internal server error (request id the-one)" in answer.text
    assert "TypeError" not in answer.text
    assert "TypeError: a mistake of ours" in caplog.text
    assert "POST /v1/infer, request the-one" in caplog.text
