"""Bulk requests: admitted as a whole, computed in pieces that wait in the queue as other requests
do. So a long one keeps no other caller waiting, and the queue holds little of it."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from addnorm.service.errors import DeadlineNotMet, InvalidInput, NotFinite
from addnorm.service.inference.computing import Computing, Gather, by_row
from addnorm.service.inference.kept_rows import JoinedRows
from addnorm.service.inference.request import InferenceRequest
from addnorm.service.models.model import Runner
from addnorm.service.runtime.batch import Batch, Ints, Padding
from addnorm.service.runtime.manifest import Pick
from addnorm.service.scheduling.bulk_turns import BulkTurns
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.scheduling.gate import OWN_MARGIN, WAIT_FACTOR, Gate, rejection
from addnorm.service.settings import Settings

# MAX_SEQUENCES, MAX_TOKENS: of a request that is one job. Larger: one request fills more of the
#   queue. Smaller: more requests leave a worker to others, and take longer for it.
# PIECE_TOKENS: of a piece, if the token budget of a micro-batch is not less. Larger: who asks while
#   bulk requests take every worker waits longer. Smaller: more is spent on each piece.
# TIME_FACTOR: on the predicted time, for the deadline where the caller names none. Larger: one that
#   stands still is given up later. Smaller: one that others slow down is given up.
MAX_SEQUENCES, MAX_TOKENS = 1024, 65_536
PIECE_TOKENS = 256
TIME_FACTOR = 4


class Bulk:
    """Shared by all requests."""

    def __init__(self, settings: Settings, computing: Computing, gate: Gate) -> None:
        self._settings, self._computing, self._gate = settings, computing, gate
        self.turns = BulkTurns(computing.scheduler.num_workers)

    def covers(self, request: InferenceRequest) -> bool:
        """Whether it is a bulk request: a large one, or one of several sequences that a slow
        machine might not answer in the time that other requests have."""
        batch, most = request.batch, min(MAX_TOKENS, self._settings.max_queue_tokens)
        if len(batch) > MAX_SEQUENCES or batch.num_tokens > most:
            return True
        own_s, settings = self._compute_s(request), self._settings
        is_slow = settings.timeout_s < TIME_FACTOR * own_s and own_s < settings.bulk_timeout_s
        return is_slow and len(batch) > 1

    def check_held(self, request: InferenceRequest, num_bytes: int) -> None:
        """InvalidInput if what it holds until it is answered can never have space."""
        if num_bytes > (limit := self._settings.max_pending_response_bytes):
            raise InvalidInput(
                f"{request.field}: the answer and what it is made of would take"
                f" {num_bytes / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f}: send less at"
                " once",
                param=request.field,
            )

    def admit(self, request: InferenceRequest, deadline: Deadline, encode_s: float) -> None:
        """Gives it the time that it needs, unless its caller named a deadline. DeadlineNotMet if it
        is predicted to be late.

        encode_s: predicted, of its answer.
        """
        own_s = OWN_MARGIN * self._compute_s(request)
        others_s = self._gate.before_s("bulk_s", deadline.key, own_s)
        others_s += WAIT_FACTOR * self._computing.scheduler.wait_s()
        finish_s = own_s + others_s + encode_s
        if not deadline.is_callers:
            self._give_time(deadline, TIME_FACTOR * finish_s)
        if finish_s > deadline.left_s():
            self._reject(request, deadline, finish_s, others_s)

    def _compute_s(self, request: InferenceRequest) -> float:
        num_tokens, target = request.batch.num_tokens, request.runner.target
        return num_tokens * target.s_per_token / self.turns.num_workers

    def _give_time(self, deadline: Deadline, more_s: float) -> None:
        least_s, most_s = self._settings.timeout_s, self._settings.bulk_timeout_s
        wanted_s = deadline.timeout_s - deadline.left_s() + more_s
        deadline.timeout_s = max(least_s, min(wanted_s, most_s))

    def _reject(
        self, request: InferenceRequest, deadline: Deadline, finish_s: float, others_s: float
    ) -> None:
        if not others_s:  # for the rate alone, which may be wrong: only runs correct it
            with self._computing.scheduler.paused():
                request.runner.target.raise_rate()
        raise rejection(
            DeadlineNotMet,
            f"{request.field} has {request.batch.num_tokens:,} tokens: the answer would take"
            f" {finish_s:.3g} s, of which {others_s:.3g} s for others; the deadline is in"
            f" {deadline.left_s():.3g} s: send less at once, allow more time, or",
            max(1.0, others_s),
        )

    async def rows(
        self,
        request: InferenceRequest,
        runner: Runner,
        needs: Sequence[Pick],
        deadline: Deadline,
        encode_s: float,
    ) -> tuple[Gather, dict[str, float]]:
        """What `Computing.rows` gives, of an admitted bulk request. If the caller leaves, the
        pieces that have not begun are dropped."""
        started = time.monotonic()
        run = _Run(self._computing, self.turns, request, runner, needs, deadline, encode_s)
        self._gate.keep(deadline.holdings, "bulk_s", self._compute_s(request))
        lanes = [run.lane() for _ in range(self.turns.max_lanes)]
        await deadline.wait(asyncio.ensure_future(_together(lanes)))
        self._gate.keep(deadline.holdings, "bulk_s", 0)
        queue_s = run.waited_s[0]
        return run.joined.complete, {
            "queue": queue_s,
            "infer": time.monotonic() - started - queue_s,
        }


@dataclass
class _Run:
    """One bulk request while it is computed."""

    computing: Computing
    turns: BulkTurns
    request: InferenceRequest
    runner: Runner
    needs: Sequence[Pick]
    deadline: Deadline
    encode_s: float
    waited_s: list[float] = field(default_factory=list)  # each piece, in the queue

    def __post_init__(self) -> None:
        batch = self.request.batch
        self.joined = JoinedRows(batch, self.needs, self.runner.engine.d_model)
        self.pieces = pieces(batch.lengths, min(self.runner.target.token_budget, PIECE_TOKENS))

    async def lane(self) -> None:
        """Computes pieces one after the other, while there are any."""
        for indices in self.pieces:
            await self._compute(indices)
            await asyncio.sleep(0)  # the cache may hold all of it: others must have their turn

    async def _compute(self, indices: Ints) -> None:
        request = self.request
        batch = Batch.joined([(request.batch, index) for index in indices])
        part = request._replace(batch=batch, padding=Padding(batch.lengths, None))
        about = self.runner, self.needs, self.deadline.of_piece(), self.encode_s
        cost_s = batch.num_tokens * self.runner.target.s_per_token
        try:
            async with self.turns.turn(self.deadline.key, cost_s):
                gather, stages_s = await self.computing.rows(part, *about, is_piece=True)
            self.joined.receive(indices, gather())
        except NotFinite as error:
            own = NotFinite(error.output, int(indices[error.sequence]))
            raise by_row(request, own) from error
        self.waited_s.append(stages_s["queue"])


def pieces(lengths: Ints, max_tokens: int) -> Iterator[Ints]:
    """Indices of sequences of similar length, the longest first, with at most so many tokens; a
    longer sequence alone. Each piece is in order."""
    order = np.argsort(-lengths, kind="stable")
    start = total = 0
    for end, length in enumerate(lengths[order].tolist()):
        if total and total + length > max_tokens:
            yield np.sort(order[start:end])
            start, total = end, 0
        total += length
    yield np.sort(order[start:])


async def _together(work: Sequence[Awaitable[None]]) -> None:
    """All of it. The first error ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)  # type: ignore[arg-type]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
