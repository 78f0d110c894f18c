"""The straight line that every protocol takes: a Query in, an Answer out, both in the caller's layout."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np

from service import outputs
from service.batch import Rows
from service.errors import ClientGone, Expired, NotFinite, NotReady
from service.metrics import Metrics
from service.models import Models
from service.probe import Probe
from service.query import Answer, Query, check
from service.queue import Job
from service.readiness import Readiness
from service.repository import Repository
from service.room import Room
from service.scheduler import Scheduler
from service.settings import Settings

Encoded = TypeVar("Encoded")
Done = TypeVar("Done")
HOPELESS = 4  # session runs that hang, for each lane
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms


class Inference:
    """Checks a query, waits for its rows, makes its outputs. Shared by all protocols."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings, self.metrics = models, settings, Metrics()
        self._probe = Probe(settings.probe_share, lambda: self.scheduler.is_idle(), self.metrics.probed)
        observers = (self.metrics, self._probe)
        self.scheduler = Scheduler(settings.num_lanes, settings.max_queue_tokens, observers, settings.lane_timeout_s)
        self._repository = Repository(models, settings)
        self._readiness = Readiness(models, self.scheduler, settings.canary_timeout_s)
        self.answers = Room("answers", settings.max_pending_answer_bytes)
        self.bodies = Room("bodies", settings.max_pending_body_bytes)
        self.metrics.watch(self.scheduler, models, settings, (self.answers, self.bodies))
        # as many as lanes: what runs a head competes with them for the cores
        self._encoders = ThreadPoolExecutor(settings.num_lanes, thread_name_prefix="encode")

    async def answer(
        self,
        query: Query,
        encode: Callable[[Answer], Encoded],
        left: Callable[[], Awaitable[None]] | None = None,
        arrived: float | None = None,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage.

        left: returns when the caller has gone. arrived: time.monotonic() from which the deadline counts, now if None.
        """
        num_bytes = check(query, self.settings)
        arrived = time.monotonic() if arrived is None else arrived
        with self.answers.held(num_bytes):
            rows, stages_s = await self._rows(query, left, arrived)
            started = time.monotonic()
            make = partial(_encoded, query, rows, encode)
            if "logits" not in query.wanted and num_bytes <= QUICK_BYTES:
                encoded = make()  # a change of threads would cost more
            else:
                encoded = await self.in_thread(make)
        return encoded, {**stages_s, "encode": time.monotonic() - started}

    async def in_thread(self, work: Callable[[], Done]) -> Done:
        """Work that would hold up every other request if the event loop did it."""
        return await asyncio.get_running_loop().run_in_executor(self._encoders, work)

    async def _rows(
        self, query: Query, left: Callable[[], Awaitable[None]] | None, arrived: float
    ) -> tuple[list[Rows], dict[str, float]]:
        """Rows for each of the caller's rows, and the time they waited and ran."""
        empty = query.model.engine(query.precision).empty()
        if not len(query.batch):
            return query.cells.every_row([], empty), {"queue": 0.0, "infer": 0.0}
        timeout_s = query.timeout_s or self.settings.timeout_s
        left_s = timeout_s - (time.monotonic() - arrived)
        job = self.scheduler.submit(query.model.line(query.precision), query.batch, left_s)
        try:
            rows = await _wait(job, left_s, left)
        except CancelledError:
            raise Expired(f"no answer within {timeout_s:g} s") from None
        except NotFinite as error:  # the batch has no empty rows, the caller's layout may
            row = int(np.flatnonzero(query.cells.lengths)[error.sequence])
            raise NotFinite(error.output, row) from error
        assert job.started is not None
        assert job.finished is not None
        stages_s = {"queue": job.started - job.submitted, "infer": job.finished - job.started}
        return query.cells.every_row(rows, empty), stages_s

    def alive(self) -> None:
        """NotReady once so many session runs hang that only a new process helps."""
        if (num_hung := self.scheduler.num_hung) >= HOPELESS * self.scheduler.num_lanes:
            raise NotReady(f"{num_hung} session runs hang: end this process and start another", code="lanes_hang")

    async def ready(self, name: str | None = None) -> None:
        """NotReady says which models, of all or of this name, do not give their canary's known answer, and why."""
        if wrong := [what for model, what in await self._readiness.failures() if name in (None, model)]:
            raise NotReady("; ".join(wrong), retry_after_s=1)

    async def load(self, ref: str) -> None:
        """Loads all versions of `name`, or `name/version`, beside what runs, and switches to what is new or changed.

        NotFound if there is none on disk; BundleRefused if one cannot be trusted, which leaves what runs as it is.
        """
        await asyncio.to_thread(self._repository.load, ref)

    async def unload(self, ref: str) -> None:
        """Serves `name`, or `name/version`, no more; returns when its memory is free. NotFound if it is not served."""
        await asyncio.to_thread(self._repository.unload, ref)

    def close(self) -> None:
        self._repository.close()
        self._probe.close()
        self.scheduler.close()
        self._encoders.shutdown()


async def _wait(job: Job, timeout_s: float, left: Callable[[], Awaitable[None]] | None) -> list[Rows]:
    """Cancels the job when the time is up or the caller leaves: what no lane has taken is not computed.

    concurrent.futures.CancelledError if the time was up.
    """
    loop = asyncio.get_running_loop()
    settled = asyncio.Event()
    job.future.add_done_callback(lambda _: loop.call_soon_threadsafe(settled.set))
    deadline = loop.call_later(timeout_s, job.future.cancel)
    watch = Watch(left, job.future.cancel) if left else None
    try:
        await settled.wait()
        return job.future.result()
    except CancelledError:
        if watch and watch.seen:
            raise ClientGone("the caller left before the answer") from None
        raise
    finally:
        deadline.cancel()
        job.future.cancel()
        if watch:
            watch.end()


class Watch:
    """Calls `then` when the caller leaves. Begins after a while: quick requests never pay for it."""

    AFTER_S = 0.05

    def __init__(self, left: Callable[[], Awaitable[None]], then: Callable[[], object]) -> None:
        self._left, self._then = left, then
        self.seen = False
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(self.AFTER_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await self._left()
        self.seen = True
        self._then()

    def end(self) -> None:
        self._timer.cancel()
        if self._task:
            self._task.cancel()


def _encoded(query: Query, rows: list[Rows], encode: Callable[[Answer], Encoded]) -> Encoded:
    return encode(Answer(query, _outputs(query, rows)))


def _outputs(query: Query, rows: list[Rows]) -> dict[str, Any]:
    make: dict[str, Callable[[], Any]] = {
        "activations": lambda: query.cells.spread([row.activations for row in rows]),
        "logits": lambda: _logits(query, rows),
        "pooled": lambda: outputs.pooled(rows, query.pooling or query.model.bundle.manifest.pooling, query.normalize),
        "norm_stats": lambda: {
            "mean": query.cells.spread([row.norm_mean for row in rows]),
            "rstd": query.cells.spread([row.norm_rstd for row in rows]),
        },
    }
    made = {name: make[name]() for name in query.wanted}
    return {name: _halved(name, output) if query.half else output for name, output in made.items()}


def _halved(name: str, output: Any) -> Any:
    """As float16, but for what may be far above or below it: norm_stats, and the likeliest tokens' ids."""
    if name == "norm_stats" or isinstance(output, outputs.TopK):
        return output
    return [row.astype(np.float16) for row in output] if isinstance(output, list) else output.astype(np.float16)


def _logits(query: Query, rows: list[Rows]) -> Any:
    engine = query.model.engine(query.precision)
    if query.top_k:
        return outputs.top_k(engine, rows, query.cells, query.positions, query.top_k)
    vocab_size = query.model.bundle.manifest.limits.vocab_size
    if query.positions == "last":
        return outputs.last_logits(engine, rows, vocab_size)
    return query.cells.spread(outputs.logits(engine, rows, "all", vocab_size))
