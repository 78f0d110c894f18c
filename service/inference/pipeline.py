"""The straight line that every protocol takes: an InferenceRequest in, an InferenceResponse out, both in the caller's layout."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from addnorm.service.errors import Expired, NotFinite, NotReady, Overloaded
from addnorm.service.inference import outputs
from addnorm.service.inference.cost import Cost, num_head_rows
from addnorm.service.inference.request import InferenceRequest, InferenceResponse, check
from addnorm.service.models.readiness import Readiness
from addnorm.service.models.registry import Models
from addnorm.service.models.repository import Repository
from addnorm.service.runtime.batch import Rows
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import (
    SLICE_S,
    CooperativePool,
    Done,
    Steps,
    run_now,
    timed,
)
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.job import Job
from addnorm.service.scheduling.scheduler import Scheduler
from addnorm.service.settings import Settings
from addnorm.service.telemetry.invariance import InvarianceCheck
from addnorm.service.telemetry.metrics import Metrics

Encoded = TypeVar("Encoded")
HOPELESS = 4  # session runs that hang, for each worker
S_PER_CHARACTER, S_PER_BYTE = 1e-6, 1e-8  # about, of tokenizing and of reading JSON
NOTHING = nullcontext(0.0)  # seconds: a quick answer takes no time worth counting
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms


class Inference:
    """Checks a request, waits for its rows, makes its outputs. Shared by all protocols."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings, self.metrics = models, settings, Metrics()
        self._invariance_check = InvarianceCheck(
            settings.invariance_check_share,
            lambda: self.scheduler.is_idle(),
            self.metrics.invariance_checked,
        )
        observers = (self.metrics, self._invariance_check)
        self.scheduler = Scheduler(
            settings.num_workers, settings.max_queue_tokens, observers, settings.run_timeout_s
        )
        self._repository = Repository(models, settings)
        self._readiness = Readiness(models, self.scheduler, settings.known_answer_timeout_s)
        self.responses = ByteBudget("responses", settings.max_pending_response_bytes)
        self.bodies = ByteBudget("bodies", settings.max_pending_body_bytes)
        self.metrics.watch(self.scheduler, models, settings, (self.responses, self.bodies))
        # as many as workers: what runs a head competes with them for the cores
        self._encoders = CooperativePool(settings.num_workers, "encode")
        # one: readers of bodies hold the interpreter's lock, and two of them would keep it from the event loop
        self._readers = CooperativePool(1, "read", pauses=True)
        self.cost = Cost()
        self._promised_s = 0.0  # of making and writing the answers of requests under way, predicted

    async def run(
        self,
        request: InferenceRequest,
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        deadline: Deadline | None = None,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage. deadline: the server's own, from now, if None."""
        deadline = deadline or Deadline(self.settings.timeout_s)
        num_bytes = check(request, self.settings)
        deadline.check()
        is_quick = "logits" not in request.wanted and num_bytes <= QUICK_BYTES
        promised = NOTHING if is_quick else self._promised(request, num_bytes, deadline)
        with self.responses.reserve(num_bytes), promised as encode_s:
            rows, stages_s = await self._rows(request, deadline, encode_s)
            started = time.monotonic()
            if is_quick:
                encoded = run_now(
                    encode(InferenceResponse(request, run_now(_outputs(request, rows)), num_bytes))
                )
            else:
                encoded = await self._encoders.finish(
                    self._encoded(request, rows, encode, num_bytes), deadline, encode_s or SLICE_S
                )
        deadline.check()
        return encoded, {**stages_s, "encode": time.monotonic() - started}

    async def aside(self, work: Callable[[], Done]) -> Done:
        """Work that would hold up every other request if the event loop did it. One at a time, as it holds the
        interpreter's lock."""
        return await asyncio.get_running_loop().run_in_executor(self._readers.executor, work)

    async def tokenize(self, num_characters: int, work: Steps[Done], deadline: Deadline) -> Done:
        """Work on texts. It leaves the interpreter's lock to others, and takes turns with what makes answers."""
        return await self._encoders.finish(work, deadline, num_characters * S_PER_CHARACTER)

    async def read(self, num_bytes: int, work: Steps[Done], deadline: Deadline) -> Done:
        """Work on so many bytes of a body: where they are few at once, as a change of threads would cost more."""
        return (
            run_now(work)
            if num_bytes <= QUICK_BYTES
            else await self._readers.finish(work, deadline, num_bytes * S_PER_BYTE)
        )

    @contextmanager
    def _promised(
        self, request: InferenceRequest, num_bytes: int, deadline: Deadline
    ) -> Iterator[float]:
        """Counts the time that making and writing the answer will take, which is yielded, among what is under way.

        Expired if that alone is more than the request has; Overloaded if with the others' it is.
        """
        encode_s = self.cost.predicted_s(request, num_bytes)
        left_s, others_s = deadline.left_s(), self._promised_s / self._encoders.num_threads
        if encode_s > left_s:
            self.cost.fade(request, time.monotonic())
            raise Expired(
                f"making and writing the answer takes about {encode_s:.3g} s, the deadline is in {left_s:.3g} s:"
                " ask for less at once, or allow more time"
            )
        if encode_s and encode_s + others_s > left_s:
            raise Overloaded(
                f"answers being made and written take {others_s:.3g} s, this one about {encode_s:.3g} s more,"
                f" the deadline is in {left_s:.3g} s: come back later",
                code="deadline_not_met",
                retry_after_s=others_s,
            )
        self._promised_s += encode_s
        try:
            yield encode_s
        finally:
            self._promised_s -= encode_s

    def _encoded(
        self,
        request: InferenceRequest,
        rows: Rows,
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        num_bytes: int,
    ) -> Steps[Encoded]:
        """Makes the outputs and writes them; how long it took is what later predictions are made from."""
        making, writing = self.cost.making(request), self.cost.writing(request)
        made = _outputs(request, rows)
        if num_rows := num_head_rows(request):
            made = timed(made, partial(making.add, num_rows))
        response = InferenceResponse(request, (yield from made), num_bytes)
        return (yield from timed(encode(response), partial(writing.add, num_bytes)))

    async def _rows(
        self, request: InferenceRequest, deadline: Deadline, encode_s: float
    ) -> tuple[Rows, dict[str, float]]:
        """A row for each token of the batch, and the seconds that the batch waited and ran.

        encode_s: the time that must be left once they are there.
        """
        if not len(request.batch):
            empty = request.model.engine(request.precision).empty()
            return empty, {"queue": 0.0, "infer": 0.0}
        left_s = deadline.left_s() - encode_s
        job = self.scheduler.submit(
            request.model.target(request.precision), request.batch, left_s, request.key
        )
        try:
            rows = await _wait(job, deadline)
        except NotFinite as error:
            raise _by_row(request, error) from error
        assert job.started is not None
        assert job.finished is not None
        stages_s = {"queue": job.started - job.submitted, "infer": job.finished - job.started}
        return rows, stages_s

    def alive(self) -> None:
        """NotReady once so many session runs hang that only a new process helps."""
        if (num_hung := self.scheduler.num_hung) >= HOPELESS * self.scheduler.num_workers:
            raise NotReady(
                f"{num_hung} session runs hang: end this process and start another",
                code="workers_hung",
            )

    async def ready(self, name: str | None = None) -> None:
        """NotReady says which models, of all or of this name, do not give their known answer, and why."""
        if wrong := [
            what for model, what in await self._readiness.failures() if name in (None, model)
        ]:
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
        self._invariance_check.close()
        self.scheduler.close()
        self._encoders.close()
        self._readers.close()


async def _wait(job: Job, deadline: Deadline) -> Rows:
    """Cancels the job when the time is up or the caller leaves: what no worker has taken is not computed."""
    loop = asyncio.get_running_loop()
    settled = asyncio.Event()
    job.future.add_done_callback(lambda _: loop.call_soon_threadsafe(settled.set))
    timer = loop.call_later(deadline.left_s(), job.future.cancel)
    deadline.stop = job.future.cancel
    try:
        await settled.wait()
        return job.future.result()
    except CancelledError:
        deadline.check()
        raise deadline.expired() from None
    finally:
        timer.cancel()
        job.future.cancel()
        deadline.stop = None


def _outputs(request: InferenceRequest, rows: Rows) -> Steps[dict[str, Any]]:
    padding = request.padding
    pooling = request.pooling or request.model.bundle.manifest.pooling
    make: dict[str, Callable[[], Any]] = {
        "activations": lambda: padding.scatter(rows.activations),
        "pooled": lambda: padding.scatter_rows(
            outputs.pooled(rows.activations, request.batch, pooling, request.normalize)
        ),
        "norm_stats": lambda: {
            "mean": padding.scatter(rows.norm_mean),
            "rstd": padding.scatter(rows.norm_rstd),
        },
    }
    made: dict[str, Any] = {}
    for name in request.wanted:
        try:
            output = (yield from _logits(request, rows)) if name == "logits" else make[name]()
        except NotFinite as error:
            raise _by_row(request, error) from error
        made[name] = outputs.halved(name, output) if request.half else output
        yield
    return made


def _by_row(request: InferenceRequest, error: NotFinite) -> NotFinite:
    """The same error, by the row of the caller's layout: the batch has no rows of pads only."""
    return NotFinite(error.output, request.padding.row_of(error.sequence))


def _logits(request: InferenceRequest, rows: Rows) -> Steps[Any]:
    engine, layout = request.model.engine(request.precision), (request.padding, request.positions)
    wanted = outputs.HeadRows.at(request.positions, rows.activations, request.batch)
    if request.top_k:
        token_ids, logprobs = yield from outputs.top_k(engine, wanted, request.top_k)
        ids = outputs.laid_out(token_ids, *layout, fill=outputs.NO_TOKEN)
        return outputs.TopK(ids, outputs.laid_out(logprobs, *layout))
    vocab_size = request.model.bundle.manifest.limits.vocab_size
    return outputs.laid_out((yield from outputs.logits(engine, wanted, vocab_size)), *layout)
