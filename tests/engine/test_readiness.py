"""Readiness: known-answer tests go through queue and workers, and name the model that fails. Once
the cause is gone the server is ready again, by its checks alone."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from addnorm.service.asking.ask import QueueEntry
from addnorm.service.asking.readiness import Readiness
from addnorm.service.asking.scheduler import TICKS, Scheduler
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Run, Target
from addnorm.service.errors import NotReady, Overloaded, StartupError
from addnorm.service.loading.loader import load
from addnorm.service.loading.repository import Repository, pause_s
from addnorm.service.server.wiring import Service
from addnorm.service.settings import Settings
from benchmarks.stress.copies import republish
from tests.conftest import OWN, client_of, inference_of
from tests.support.bundles import flip
from tests.support.scheduling import ask_of, echo, gate_of, of_lengths, submit_to
from tests.support.waiting import PATIENCE_S, eventually

NOW = 0.0  # how long a model must be idle
CHECKS = 5  # in so many the server must be ready again


@contextmanager
def inferring(root: Path, **changed: Any) -> Iterator[Service]:
    settings = {"worker_threads": 1, "run_timeout_s": 10 * PATIENCE_S, "token_budget": 128}
    inference = inference_of(root, **settings | changed)
    yield inference
    inference.close()


@pytest.fixture
def notebooks(notebook: Path) -> Path:
    return notebook.parent.parent


def target_of(inference: Service) -> Target:
    return inference.models.find("notebook").target("fp32")


def readiness_of(inference: Service, timeout_s: float = 0.3) -> Readiness:
    retry = inference.repository.retry
    return Readiness(inference.models, inference.scheduler, retry, timeout_s, fresh_s=0)


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
        left._open_tests[target].entry.future.cancel()
        assert wrong(left).endswith("does not answer its known-answer test: CancelledError")
        go.set()
        lost = ask_of(target, of_lengths(1))  # no worker will ever take it
        lost.entry = QueueEntry(0, 0.0, [], 0, 1, 0)
        readiness._open_tests[target] = lost
        assert wrong(readiness) == wrong(patient(inference)) == ""


def test_no_free_worker_thread_is_not_ready_and_a_new_one_is(notebooks: Path) -> None:
    go, hung = threading.Event(), threading.Event()

    def hangs(batch: Batch) -> Rows:
        hung.set()
        go.wait()
        return echo(batch)

    with inferring(notebooks) as inference:
        submit_to(inference.scheduler, Target(hangs, 100), of_lengths(3), 30)
        assert hung.wait(PATIENCE_S)
        readiness = readiness_of(inference)
        assert "does not answer its known-answer test within 0.3 s" in wrong(readiness)
        for _ in range(TICKS + 1):  # of the watchdog, which replaces it
            inference.scheduler.tick()
        assert wrong(patient(inference)) == ""
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
            job.entry.future.cancel()
        turns.release()


def test_load_alone_is_ready_and_a_run_that_hangs_is_not(notebooks: Path) -> None:
    """Where the machine is so busy that the known-answer test is late: other runs end, or are
    expected to take as long."""
    taken, go = threading.Semaphore(0), threading.Event()

    def waits(batch: Batch) -> Rows:
        taken.release()
        go.wait()
        return echo(batch)

    def hangs(batch: Batch) -> Rows:
        waits(batch)
        return right(batch)

    late = "notebook/1 fp32 does not answer its known-answer test within 0.05 s"
    with inferring(notebooks, worker_threads=2) as inference:
        scheduler, readiness = inference.scheduler, readiness_of(inference, 0.05)
        assert wrong(patient(inference)) == ""
        long = Target(waits, 10)
        long.tokens_per_s = 1 / PATIENCE_S  # of one worker
        for _ in range(2):
            submit_to(scheduler, long, of_lengths(10), 100 * PATIENCE_S)
            assert taken.acquire(timeout=PATIENCE_S)
        for _ in range(3):
            assert wrong(readiness) == ""
        long.tokens_per_s = None
        assert wrong(readiness) == late
        go.set()
        assert eventually(lambda: wrong(readiness) == "")

        target = target_of(inference)
        right, slow = target.run, 1 / PATIENCE_S
        go.clear()
        target.run = target.run_on_all_cores = hangs
        for rate, what in ((slow, ""), (None, late), (slow, late)):  # until it has answered
            target.tokens_per_s = rate
            assert wrong(readiness) == what
        go.set()
        assert eventually(lambda: wrong(readiness) == "")
        go.clear()
        target.tokens_per_s = slow
        assert wrong(readiness) == ""
        scheduler.run_timeout_s = 0.0  # so long it may be late
        assert wrong(readiness) == late
        go.set()


def test_a_process_that_had_no_core_for_a_while_is_ready(notebooks: Path) -> None:
    go = threading.Event()

    def waits(batch: Batch) -> Rows:
        go.wait()
        return right(batch)

    def stop(seconds: float) -> None:
        time.sleep(seconds)
        go.set()

    with inferring(notebooks) as inference:
        target, readiness = target_of(inference), readiness_of(inference, 1.0)
        right = target.run
        target.run = target.run_on_all_cores = waits

        async def check() -> Any:
            asyncio.get_running_loop().call_later(0.01, stop, 1.1)
            return await readiness.find_failures()

        assert asyncio.run(check()) == []


def test_work_proceeds_while_runs_end(notebooks: Path) -> None:
    with inferring(notebooks) as inference:
        scheduler = inference.scheduler
        assert not scheduler.proceeds(PATIENCE_S)
        submit_to(scheduler, Target(echo, 10), of_lengths(1), PATIENCE_S).entry.future.result(
            PATIENCE_S
        )
        assert scheduler.proceeds(PATIENCE_S)
        assert not scheduler.proceeds(0.0)


def test_many_callers_share_one_known_answer_test_a_second(notebooks: Path) -> None:
    with inferring(notebooks) as inference:
        target, rows_run = target_of(inference), list[int]()
        right = target.run

        def record(batch: Batch) -> Rows:
            rows_run.append(len(batch))
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
            assert rows_run == [1]
            readiness._fresh_s = 0.05
            await asyncio.sleep(0.1)
            await readiness.check()
            assert rows_run == [1, 1]

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


class Workers(Scheduler):
    """One worker, in a system that may allow no more threads."""

    allows_threads = True

    def _start_worker(self) -> None:
        if not self.allows_threads:
            raise RuntimeError("can't start new thread")
        super()._start_worker()


@dataclass
class World:
    """A server of one model, whose folder and whose runs break. Nothing acts unless it is told to,
    but the workers and the thread that loads."""

    model: Model
    run: Run  # right answers
    watches: bool = False  # whether the folder is followed
    scheduler: Workers = field(default_factory=lambda: Workers(gate_of(1, 1000), PATIENCE_S))
    load_error: Exception | None = None
    num_loads: int = 0
    may_load: threading.Event = field(default_factory=threading.Event)
    pause_s: Callable[[float], float] = lambda took_s: 0.0

    def __post_init__(self) -> None:
        self.answer_by(self.run)
        self.may_load.set()
        self.scheduler.start()
        root = self.model.bundle.path.parent.parent
        self.models = Models([self.model], root)
        self.repository = Repository(
            self.models, Settings(**OWN), 0.0, loading=self.load, pause_s=self.pause_s
        )
        self.readiness = Readiness(
            self.models, self.scheduler, self.repository.retry, timeout_s=0.02, fresh_s=0
        )

    def load(self, bundle: Bundle, settings: Settings, before: Model | None) -> Model:
        """Gives the model, which was loaded before, without running it."""
        self.num_loads += 1
        assert self.may_load.wait(PATIENCE_S)
        if self.load_error:
            raise self.load_error
        return self.model

    def answer_by(self, run: Run) -> None:
        target = self.model.target("fp32")
        target.run = target.run_on_all_cores = run

    def idle(self) -> None:
        self.repository.unload_idle(NOW)

    def request(self) -> None:
        """A caller, who has an idle model loaded."""
        served = self.models.get("notebook")
        if served and not served.is_loaded:
            self.repository.load_again(served).exception(PATIENCE_S)

    def rescan(self) -> None:
        self.repository.rescan()

    def check(self) -> str:
        what = wrong(self.readiness)
        self.repository._loads.submit(int).result(PATIENCE_S)  # what it began has ended
        return what

    def is_ready_again(self) -> bool:
        """Whether checks, the watchdog, and what follows the folder make it so."""
        self.readiness._timeout_s = PATIENCE_S / CHECKS
        for _ in range(CHECKS):
            self.scheduler.tick()
            if self.watches:
                self.rescan()
            if not self.check():
                return True
        return False

    def close(self) -> None:
        self.repository.close()
        self.scheduler.close()


@contextmanager
def folder_away(world: World) -> Iterator[None]:
    path = world.model.bundle.path
    path.rename(away := path.with_name("away"))
    yield
    away.rename(path)


@contextmanager
def volume_away(world: World) -> Iterator[None]:
    root = world.model.bundle.path.parent.parent
    root.rename(away := root.with_name("away"))
    yield
    away.rename(root)


@contextmanager
def file_broken(world: World) -> Iterator[None]:
    flip(file := world.model.bundle.path / "manifest.json")
    yield
    flip(file)


@contextmanager
def no_memory_to_load(world: World) -> Iterator[None]:
    world.load_error = MemoryError()
    yield
    world.load_error = None


@contextmanager
def no_memory_once_it_is_back(world: World) -> Iterator[None]:
    with no_memory_to_load(world):
        with folder_away(world):
            for _ in range(2 * world.watches):  # it is unloaded
                world.rescan()
        yield


@contextmanager
def other_numbers(world: World) -> Iterator[None]:
    world.answer_by(lambda batch: Rows(*(part + np.float32(1) for part in world.run(batch))))
    yield
    world.answer_by(world.run)


@contextmanager
def runs_fail(world: World) -> Iterator[None]:
    def fails(batch: Batch) -> Rows:
        raise MemoryError

    world.answer_by(fails)
    yield
    world.answer_by(world.run)


@contextmanager
def runs_hang(world: World) -> Iterator[None]:
    go = threading.Event()

    def hangs(batch: Batch) -> Rows:
        go.wait(PATIENCE_S)
        return world.run(batch)  # type: ignore[return-value]

    world.answer_by(hangs)
    yield
    go.set()
    world.answer_by(world.run)


@contextmanager
def hung_worker_without_another(world: World) -> Iterator[None]:
    """The watchdog is to replace it, and the system allows no thread."""
    world.scheduler.allows_threads = False
    with runs_hang(world):
        yield
        for _ in range(TICKS + 1):
            world.scheduler.tick()
    world.scheduler.allows_threads = True


CAUSES = (
    *(folder_away, volume_away, file_broken, no_memory_to_load, no_memory_once_it_is_back),
    *(other_numbers, runs_fail, runs_hang, hung_worker_without_another),
)
EVENTS = ("idle", "request", "check", "rescan")


@pytest.fixture
def breakable(notebook: Path, tmp_path: Path) -> Model:
    bundle = bundles.read(republish(bundles.read(notebook), tmp_path / "bundles", 1))
    return load(bundle, Settings(**OWN, token_budget=128))


@pytest.mark.parametrize("watches", [False, True], ids=["", "watched"])
@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
def test_whatever_was_wrong_checks_alone_make_the_server_ready_again(
    breakable: Model, cause: Callable[[World], AbstractContextManager[None]], watches: bool
) -> None:
    """Whatever came before, and whatever came meanwhile: no balancer sends work to a server that is
    not ready."""
    events = EVENTS if watches else EVENTS[:-1]
    run, seen = breakable.target("fp32").run, set[str]()
    for before, *meanwhile in product(("check", "idle"), events, events):
        with ExitStack() as ending:
            world = World(breakable, run, watches)
            ending.callback(world.close)
            getattr(world, before)()
            with cause(world):
                for event in meanwhile:
                    getattr(world, event)()
                seen.add(world.check())
            assert world.is_ready_again(), (before, meanwhile, world.check())
    assert seen - {""}  # it was not ready


def test_checks_have_a_model_loaded_once_in_a_pause_and_wait_for_no_load(breakable: Model) -> None:
    run, full = breakable.target("fp32").run, StartupError("the disk is full")
    with ExitStack() as ending:
        paused = World(breakable, run, pause_s=lambda took_s: 2 * PATIENCE_S)
        ending.callback(paused.close)
        paused.idle()
        paused.load_error = full
        paused.request()
        assert [paused.check() for _ in range(CHECKS)] == CHECKS * ["the disk is full"]
        assert paused.num_loads == 1
        world = World(breakable, run)
        ending.callback(world.close)
        world.idle()
        world.load_error = full
        world.request()
        world.may_load.clear()
        assert wrong(world.readiness) == "the disk is full"
        assert eventually(lambda: world.num_loads == 2)  # and it is being loaded
        assert [wrong(world.readiness) for _ in range(CHECKS)] == CHECKS * ["the disk is full"]
        world.load_error = None
        world.may_load.set()
        assert not world.check() or not world.check()
        assert world.num_loads == 2
    assert (pause_s(0.1), pause_s(10.0)) == (1.0, 40.0)


def test_all_who_wait_for_a_load_that_fails_wait_for_one(breakable: Model) -> None:
    with ExitStack() as ending:
        world = World(breakable, breakable.target("fp32").run)
        ending.callback(world.close)
        world.idle()
        world.load_error = StartupError("the disk is full")
        world.may_load.clear()
        idle = world.models.find("notebook")
        callers = [world.repository.load_again(idle) for _ in range(10)]
        world.may_load.set()
        for caller in callers:
            error = caller.exception(PATIENCE_S)
            assert isinstance(error, NotReady)
            assert error.message == "the disk is full"
        assert world.num_loads == 1
        world.load_error = None
        assert world.repository.load_again(idle).result(PATIENCE_S) is breakable
