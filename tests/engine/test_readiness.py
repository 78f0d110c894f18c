"""Readiness: known-answer tests go through queue and workers, and name the model that fails."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addnorm.service.asking.readiness import Readiness
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.target import Target
from addnorm.service.errors import Overloaded
from addnorm.service.server.wiring import Service
from tests.conftest import client_of, inference_of
from tests.support.scheduling import ask_of, echo, of_lengths, submit_to
from tests.support.waiting import PATIENCE_S, eventually


@contextmanager
def inferring(root: Path, **changed: Any) -> Iterator[Service]:
    own = {"worker_threads": 1, "run_timeout_s": 10 * PATIENCE_S, "token_budget": 128}
    inference = inference_of(root, **own | changed)
    yield inference
    inference.close()


@pytest.fixture
def notebooks(notebook: Path) -> Path:
    return notebook.parent.parent


def target_of(inference: Service) -> Target:
    return inference.models.find("notebook").target("fp32")


def readiness_of(inference: Service, timeout_s: float = 0.3) -> Readiness:
    return Readiness(inference.models, inference.scheduler, timeout_s, fresh_s=0)


def patient(inference: Service) -> Readiness:
    """For answers, however slow the machine."""
    return readiness_of(inference, PATIENCE_S)


def wrong(readiness: Readiness) -> str:
    return "; ".join(what for _, what in asyncio.run(readiness.find_failures()))


def test_a_model_that_answers_otherwise_or_fails_or_hangs_is_named_until_it_is_well(
    notebooks: Path,
) -> None:
    go = threading.Event()

    def another(batch: Batch) -> Rows:
        return Rows(*(part + np.float32(1) for part in right(batch)))

    def fails(batch: Batch) -> Rows:
        raise ValueError("broken")

    def hangs(batch: Batch) -> Rows:
        go.wait()
        return right(batch)

    unanswered = "notebook/1 fp32 does not answer its known-answer test"
    with inferring(notebooks) as inference:
        target, readiness = target_of(inference), readiness_of(inference)
        right = target.run
        for run, said in (
            (right, ""),
            (another, "notebook/1 fp32 does not give its known answer"),
            (fails, f"{unanswered}: inference failed: ValueError"),
        ):
            target.run = target.run_on_all_cores = run
            assert wrong(patient(inference)) == said
        target.run = target.run_on_all_cores = hangs
        for _ in range(3):  # one known-answer test hangs, no more are sent after it
            assert wrong(readiness) == f"{unanswered} within 0.3 s"
        assert inference.scheduler.num_queued_tokens() == 0
        go.set()
        assert eventually(lambda: inference.scheduler.num_busy == 0)
        target.run = target.run_on_all_cores = right
        assert wrong(patient(inference)) == ""


def test_a_known_answer_test_that_can_have_no_answer_is_asked_again(notebooks: Path) -> None:
    taken, go = threading.Event(), threading.Event()

    def hangs(batch: Batch) -> Rows:
        taken.set()
        go.wait()
        return right(batch)

    def has_no_memory(batch: Batch) -> Rows:
        raise MemoryError

    with inferring(notebooks) as inference:
        target, readiness = target_of(inference), patient(inference)
        right = target.run
        target.run = target.run_on_all_cores = has_no_memory
        assert wrong(readiness).endswith("does not answer its known-answer test: MemoryError")
        target.run = target.run_on_all_cores = hangs
        left = readiness_of(inference, 0.1)
        assert "within 0.1 s" in wrong(left)
        assert taken.wait(PATIENCE_S)
        left._asked[target].future.cancel()
        assert wrong(left).endswith("does not answer its known-answer test: CancelledError")
        go.set()
        lost = ask_of(target, of_lengths(1))  # no worker will ever take it
        lost.future = Future()
        readiness._asked[target] = lost
        assert wrong(readiness) == wrong(patient(inference)) == ""


def test_no_free_worker_thread_is_not_ready_and_a_new_one_is(notebooks: Path) -> None:
    go, hung = threading.Event(), threading.Event()

    def hangs(batch: Batch) -> Rows:
        hung.set()
        go.wait()
        return echo(batch)

    with inferring(notebooks, run_timeout_s=5.0) as inference:
        submit_to(inference.scheduler, Target(hangs, 100), of_lengths(3), 30)
        assert hung.wait(PATIENCE_S)
        readiness = readiness_of(inference)
        assert "does not answer its known-answer test within 0.3 s" in wrong(readiness)
        inference.scheduler.run_timeout_s = 0.2  # from the watchdog's next tick on
        assert eventually(lambda: wrong(patient(inference)) == "")
        go.set()


def test_a_full_queue_is_ready(notebooks: Path) -> None:
    """Whatever came first: it is answered after one micro-batch."""
    taken, turns = threading.Semaphore(0), threading.Semaphore(0)

    def slow(batch: Batch) -> Rows:
        taken.release()
        turns.acquire(timeout=PATIENCE_S)
        return echo(batch)

    def num_asks(scheduler: Scheduler) -> int:
        return len(scheduler.gate.queue.asks)

    with inferring(notebooks, max_queue_tokens=1000) as inference:
        target = Target(slow, 10)
        jobs = [submit_to(inference.scheduler, target, of_lengths(900), 600)]
        assert taken.acquire(timeout=PATIENCE_S)
        jobs += [submit_to(inference.scheduler, target, of_lengths(10), 600) for _ in range(94)]
        with pytest.raises(Overloaded):
            submit_to(inference.scheduler, target_of(inference), of_lengths(60), 600)
        for num_waiting in (94, 93, 92):
            with ThreadPoolExecutor(1) as callers:
                answer = callers.submit(wrong, patient(inference))
                # the known-answer test is one more
                assert eventually(lambda n=num_waiting: num_asks(inference.scheduler) == n + 1)
                turns.release()  # the micro-batch that runs ends; the next one of these waits
                assert answer.result(PATIENCE_S) == ""
            assert taken.acquire(timeout=PATIENCE_S)
        for job in jobs:
            job.future.cancel()
        turns.release()


def test_many_callers_share_one_known_answer_test_a_second(notebooks: Path) -> None:
    with inferring(notebooks) as inference:
        target, asked = target_of(inference), list[int]()
        right = target.run

        def record(batch: Batch) -> Rows:
            asked.append(len(batch))
            time.sleep(0.05)
            return right(batch)

        target.run = target.run_on_all_cores = record

        async def together() -> None:
            readiness = inference.readiness
            assert readiness._fresh_s == 1
            readiness._fresh_s = PATIENCE_S
            first = asyncio.create_task(readiness.check())
            await asyncio.sleep(0.02)
            first.cancel()  # a caller that leaves takes nobody along
            await asyncio.gather(*(readiness.check() for _ in range(50)))
            await readiness.check()
            assert asked == [1]
            readiness._fresh_s = 0.05
            await asyncio.sleep(0.1)
            await readiness.check()
            assert asked == [1, 1]

        asyncio.run(together())


def test_the_routes_say_what_is_wrong_and_livez_stays_alive(small: Path) -> None:
    with (
        inferring(small) as inference,
        client_of(inference) as client,
    ):
        target = inference.models.find("gpt").target("fp32")
        zeros = lambda batch: Rows(*(part * 0 for part in echo(batch)))  # noqa: E731
        target.run = target.run_on_all_cores = zeros
        for path in ("/readyz", "/v2/health/ready", "/v2/models/gpt/ready"):
            answer = client.get(path)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert "gpt/1 fp32 does not give its known answer" in answer.text
            assert "notebook" not in answer.text
        assert client.get("/v2/models/notebook/ready").status_code == 200
        assert client.get("/livez").status_code == client.get("/v2/health/live").status_code == 200


def test_livez_fails_once_so_many_runs_hang_that_only_a_new_process_helps(notebooks: Path) -> None:
    go = threading.Event()

    def hangs(batch: Batch) -> Rows:
        go.wait()
        return echo(batch)

    with (
        inferring(notebooks, run_timeout_s=0.1) as inference,
        client_of(inference) as c,
    ):
        target, num_workers = Target(hangs, 1), inference.scheduler.num_workers
        for _ in range(4 * num_workers - 1):
            submit_to(inference.scheduler, target, of_lengths(1), 60)
        assert eventually(lambda: inference.scheduler.num_hung == 4 * num_workers - 1)
        assert c.get("/livez").status_code == 200
        submit_to(inference.scheduler, target, of_lengths(1), 60)
        assert eventually(lambda: inference.scheduler.num_hung == 4 * num_workers)
        for path in ("/livez", "/v2/health/live"):
            answer = c.get(path)
            assert answer.status_code == 503
            assert f"{4 * num_workers} session runs hang" in answer.text
        assert f"addnorm_worker_threads_hung {4 * num_workers}.0" in c.get("/metrics").text
        go.set()
        assert eventually(lambda: inference.scheduler.num_hung == 0)
        assert c.get("/livez").status_code == 200
