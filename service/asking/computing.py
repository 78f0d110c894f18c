"""What is kept of a request's rows: from the cache, and the rest by a job of the scheduler."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from addnorm.service.errors import NotFinite
from addnorm.service.asking.kept_rows import KeptRows, RowKeeper
from addnorm.service.asking.request import InferenceRequest
from addnorm.service.asking.reuse import Reuse
from addnorm.service.asking.sequence_cache import SequenceCache, sequence_digests
from addnorm.service.models.model import Runner
from addnorm.service.runtime.manifest import Pick
from addnorm.service.asking.deadline import Deadline
from addnorm.service.asking.handover import Handover
from addnorm.service.asking.job import Job
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.asking.turns import Turns

Gather = Callable[[], KeptRows]  # puts together what was held and what was computed
Report = Callable[[str, int, int, int], None]
NO_STAGES = {"queue": 0.0, "infer": 0.0}
QUICK_TOKENS, QUICK_SEQUENCES = 8192, 64  # their digests take about 0.1 ms


class Computing:
    """Shared by all requests."""

    def __init__(
        self,
        scheduler: Scheduler,
        encoders: Turns,
        cache: SequenceCache,
        report: Report,
    ) -> None:
        """encoders: where many digests are made; report: called with the model, and how many
        sequences of a request the cache held, how many it did not, and how many of those have an
        equal one in the request."""
        self.scheduler, self.cache = scheduler, cache
        self._encoders, self._report = encoders, report
        self._handover = Handover()
        self._waking: asyncio.AbstractEventLoop | None = None  # whose present round wakes workers

    async def rows(
        self,
        request: InferenceRequest,
        runner: Runner,
        needs: Sequence[Pick],
        deadline: Deadline,
        encode_s: float,
        is_bulk: bool = False,
    ) -> tuple[Gather, dict[str, float]]:
        """How to gather what is kept of the batch, and the seconds that it waited and ran.

        encode_s: the time that must be left once it is there. is_bulk: see `JobQueue`.
        """
        batch = request.batch
        if not len(batch):
            return partial(KeptRows, batch, runner.engine.empty(), {}), NO_STAGES
        digests = await self._digests(request, deadline)
        left_s = deadline.left_s() - encode_s
        reuse, job = self._submit(request, deadline.key, runner, needs, digests, left_s, is_bulk)
        if digests:
            num_held = reuse.num_held
            num_missed = len(batch) - num_held
            self._report(request.model.name, num_held, num_missed, num_missed - len(reuse.missing))
        if job is None:
            return partial(reuse.gathered, None), NO_STAGES
        self._wake_workers()
        computed = await self._wait_for(job, request, deadline, reuse.missing)
        return partial(reuse.gathered, computed), _stages_s(job)

    async def _digests(self, request: InferenceRequest, deadline: Deadline) -> list[bytes] | None:
        """None if nothing is held."""
        if request.anew or not self.cache.max_bytes:
            return None
        batch = request.batch
        if batch.num_tokens <= QUICK_TOKENS and len(batch) <= QUICK_SEQUENCES:
            return sequence_digests(batch)
        return await self._encoders.run(deadline, sequence_digests, batch)

    def _submit(
        self,
        request: InferenceRequest,
        key: str,
        runner: Runner,
        needs: Sequence[Pick],
        digests: Sequence[bytes] | None,
        left_s: float,
        is_bulk: bool,
    ) -> tuple[Reuse, Job | None]:
        """What the cache holds of the batch, and the job that computes the rest, if there is
        any."""
        target = runner.target
        reuse = Reuse.of(
            request.batch, needs, digests, self.cache.find(target, key, digests, needs)
        )
        if not reuse.missing:
            return reuse, None
        batch, hold = reuse.to_compute(), None
        if digests:  # what is computed is held
            hold = partial(self.cache.hold, target, key, [digests[at] for at in reuse.missing])
        results = RowKeeper(batch, reuse.picks, runner.engine.d_model, hold)
        job = self.scheduler.submit(target, batch, left_s, key, results, is_bulk, wakes=False)
        return reuse, job

    async def _wait_for(
        self, job: Job, request: InferenceRequest, deadline: Deadline, sequences: Sequence[int]
    ) -> KeptRows:
        """What the job keeps. Cancels it when the time is up or the caller leaves.

        sequences: of the request, that the job computes.
        """
        try:
            kept: KeptRows = await self._handover.result(job.future, deadline)
        except NotFinite as error:
            own = NotFinite(error.output, sequences[error.sequence])
            raise by_row(request, own) from error
        return kept

    def _wake_workers(self) -> None:
        """Once for all requests of this round of the event loop: a worker that is woken wants the
        interpreter's lock, which the next request needs too."""
        loop = asyncio.get_running_loop()
        if self._waking is not loop:
            self._waking = loop
            loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = None
        self.scheduler.wake()


def _stages_s(job: Job) -> dict[str, float]:
    assert job.started is not None
    assert job.finished is not None
    return {"queue": job.started - job.submitted, "infer": job.finished - job.started}


def by_row(request: InferenceRequest, error: NotFinite) -> NotFinite:
    """The same error, by the row of the caller's layout: the batch has no rows of pads only."""
    return NotFinite(error.output, request.padding.row_of(error.sequence))
