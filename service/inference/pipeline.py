"""The path that all protocols share: an InferenceRequest in, an InferenceResponse out.

check -> look into the cache -> submit the rest -> wait for its rows -> make the outputs, in the
caller's layout -> encode them.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from addnorm.service.errors import DeadlineNotMet, Expired, NotFinite
from addnorm.service.inference.cost import Cost, Promised, num_head_rows, num_head_values
from addnorm.service.inference.kept_rows import KeptRows, RowKeeper
from addnorm.service.inference.outputs import Computed, Output, Value
from addnorm.service.inference.request import (
    InferenceRequest,
    InferenceResponse,
    check,
    has_lens,
    kept_bytes,
    picks,
)
from addnorm.service.inference.reuse import Reuse
from addnorm.service.inference.sequence_cache import SequenceCache, sequence_digests
from addnorm.service.models.registry import Runner
from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Pick
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import (
    SLICE_S,
    CooperativePool,
    Steps,
    run_now,
    timed,
)
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.job import Job
from addnorm.service.scheduling.scheduler import Scheduler
from addnorm.service.settings import Settings

Encoded = TypeVar("Encoded")
Gather = Callable[[], KeptRows]  # puts together what was held and what was computed
Values = dict[type[Output[Any]], Value]
Report = Callable[[str, int, int, int], None]
NO_STAGES = {"queue": 0.0, "infer": 0.0}
NO_SECONDS = nullcontext(0.0)  # the time of a quick answer is not worth counting
QUICK_BYTES = 64 * 1024  # JSON of this size takes about 0.1 ms
QUICK_TOKENS, QUICK_SEQUENCES = 8192, 64  # their digests take about 0.1 ms
QUICK_HEAD_VALUES = 256  # a few labels of a few sequences: well below a millisecond


class Pipeline:
    """Shared by all requests."""

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        responses: ByteBudget,
        encoders: CooperativePool,
        lens_threads: CooperativePool,
        cache: SequenceCache,
        report: Report,
    ) -> None:
        """responses: of the bytes of answers under way; encoders: where large responses are made;
        lens_threads: where those of a lens are, whose steps are runs of the whole model; report:
        called with the model, and how many sequences of a request the cache held, how many it did
        not, and how many of those have an equal one in the request."""
        self.settings, self.scheduler, self.responses = settings, scheduler, responses
        self.cache, self._report = cache, report
        self.cost = Cost()
        self._encoders, self._lens_threads = encoders, lens_threads
        self._under_way = Promised()

    async def run(
        self,
        request: InferenceRequest,
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        deadline: Deadline,
    ) -> tuple[Encoded, dict[str, float]]:
        """The encoded answer and the seconds of each stage."""
        num_bytes = check(request, self.settings)
        deadline.check()
        is_quick = num_bytes <= QUICK_BYTES and num_head_values(request) <= QUICK_HEAD_VALUES
        promised = NO_SECONDS if is_quick else self._promised(request, num_bytes, deadline)
        runner, needs = request.runner, picks(request)
        own_bytes = kept_bytes(request, runner.engine, needs)
        held = self.responses.reserve(num_bytes + own_bytes, request.key)
        with held, promised as encode_s:
            gather, stages_s = await self._compute_missing(
                request, runner, needs, deadline, encode_s
            )
            started = time.monotonic()
            made = _values(request, runner.engine, gather)
            if is_quick:
                response = InferenceResponse(request, run_now(made), num_bytes)
                encoded = run_now(encode(response))
            else:
                work = self._encoded(request, made, encode, num_bytes)
                threads = self._lens_threads if has_lens(request) else self._encoders
                encoded = await threads.finish(work, deadline, encode_s or SLICE_S)
        deadline.check()
        return encoded, {**stages_s, "encode": time.monotonic() - started}

    @contextmanager
    def _promised(
        self, request: InferenceRequest, num_bytes: int, deadline: Deadline
    ) -> Iterator[float]:
        """Predicts the time to make and write the response, yields it, and counts it meanwhile.

        Expired if the request has less time than that; DeadlineNotMet if it has less than that and
        what the answers before it take.
        """
        encode_s = self.cost.predicted_s(request, num_bytes)
        left_s = deadline.left_s()
        others_s = self._under_way.before_s(request.key, encode_s) / self._encoders.num_threads
        if encode_s > left_s:
            self.cost.fade(request, time.monotonic())
            raise Expired(
                f"making and writing the answer takes about {encode_s:.3g} s, the deadline is in"
                f" {left_s:.3g} s: ask for less at once, or allow more time"
            )
        if encode_s and encode_s + others_s > left_s:
            raise DeadlineNotMet(
                f"overloaded: answers being made take {others_s:.3g} s, this one about"
                f" {encode_s:.3g} s more, the deadline is in {left_s:.3g} s;"
                f" retry in {max(1, math.ceil(others_s))} s",
                retry_after_s=others_s,
            )
        with self._under_way.counted(request.key, encode_s):
            yield encode_s

    def _encoded(
        self,
        request: InferenceRequest,
        made: Steps[Values],
        encode: Callable[[InferenceResponse], Steps[Encoded]],
        num_bytes: int,
    ) -> Steps[Encoded]:
        """Makes the outputs and writes them. The time it takes makes later predictions."""
        making, writing = self.cost.making(request), self.cost.writing(request)
        if num_rows := num_head_rows(request):
            made = timed(made, partial(making.add, num_rows))
        response = InferenceResponse(request, (yield from made), num_bytes)
        return (yield from timed(encode(response), partial(writing.add, num_bytes)))

    async def _compute_missing(
        self,
        request: InferenceRequest,
        runner: Runner,
        needs: Sequence[Pick],
        deadline: Deadline,
        encode_s: float,
    ) -> tuple[Gather, dict[str, float]]:
        """How to gather what is kept of the batch, and the seconds that it waited and ran.

        encode_s: the time that must be left once it is there.
        """
        batch = request.batch
        if not len(batch):
            return partial(KeptRows, batch, runner.engine.empty(), {}), NO_STAGES
        digests = await self._digests(request, deadline)
        left_s = deadline.left_s() - encode_s
        reuse, job = self._submit(request, runner, needs, digests, left_s)
        if digests:
            num_held = reuse.num_held
            num_missed = len(batch) - num_held
            self._report(request.model.name, num_held, num_missed, num_missed - len(reuse.missing))
        if job is None:
            return partial(reuse.gathered, None), NO_STAGES
        computed = await _wait_for(job, request, deadline, reuse.missing)
        return partial(reuse.gathered, computed), _stages_s(job)

    async def _digests(self, request: InferenceRequest, deadline: Deadline) -> list[bytes] | None:
        """None if nothing is held and merged."""
        if request.anew or not self.cache.max_bytes:
            return None
        batch = request.batch
        made = sequence_digests(batch)
        if batch.num_tokens <= QUICK_TOKENS and len(batch) <= QUICK_SEQUENCES:
            return run_now(made)
        return await self._encoders.finish(made, deadline)

    def _submit(
        self,
        request: InferenceRequest,
        runner: Runner,
        needs: Sequence[Pick],
        digests: Sequence[bytes] | None,
        left_s: float,
    ) -> tuple[Reuse, Job | None]:
        """What the cache holds of the batch, and the job that computes the rest, if there is any.

        A run that ends between look-up and submission would be neither held nor in flight. So the
        cache is asked again while no run can end. If it has more then, all is prepared again.
        """
        target, key = runner.target, request.key
        found = dict(self.cache.find(target, key, digests, needs))
        while True:
            reuse = Reuse.of(request.batch, needs, digests, found)
            if not reuse.missing:
                return reuse, None
            missing = [digests[index] for index in reuse.missing] if digests else None
            batch, results = self._prepared(runner, key, reuse, missing)
            with self.scheduler.paused():
                more = self.cache.find(target, key, missing, needs)
                if not more:
                    return reuse, self.scheduler.submit(target, batch, left_s, key, results)
            found |= more

    def _prepared(
        self, runner: Runner, key: str, reuse: Reuse, missing: Sequence[bytes] | None
    ) -> tuple[Batch, RowKeeper]:
        """The batch of what is missing, and what keeps its rows. What that keeps is held.

        missing: digests of its sequences, if it is held.
        """
        batch = reuse.to_compute()
        hold = partial(self.cache.hold, runner.target, key, missing) if missing else None
        return batch, RowKeeper(batch, reuse.picks, runner.engine.d_model, missing, hold)


async def _wait_for(
    job: Job, request: InferenceRequest, deadline: Deadline, sequences: Sequence[int]
) -> KeptRows:
    """What the job keeps. Cancels it when the time is up or the caller leaves.

    sequences: of the request, that the job computes.
    """
    try:
        kept: KeptRows = await deadline.wait(asyncio.wrap_future(job.future))
    except NotFinite as error:
        own = NotFinite(error.output, sequences[error.sequence])
        raise _by_row(request, own) from error
    return kept


def _stages_s(job: Job) -> dict[str, float]:
    assert job.started is not None
    assert job.finished is not None
    return {"queue": job.started - job.submitted, "infer": job.finished - job.started}


def _values(request: InferenceRequest, engine: Engine, gather: Gather) -> Steps[Values]:
    made: Values = {}
    is_half = request.dtype == "float16"
    try:
        of = Computed(request.model.bundle, engine, request.batch, request.padding, gather())
        for output in request.outputs:
            value = yield from output.make(of)
            made[type(output)] = value.halved(output.name) if is_half else value
            yield
    except NotFinite as error:
        raise _by_row(request, error) from error
    return made


def _by_row(request: InferenceRequest, error: NotFinite) -> NotFinite:
    """The same error, by the row of the caller's layout: the batch has no rows of pads only."""
    return NotFinite(error.output, request.padding.row_of(error.sequence))
