"""Bulk requests: which are, and which are admitted. The queue keeps no other caller waiting for
them (`JobQueue`), so it may hold any number of their tokens."""

import time

from addnorm.service.errors import DeadlineNotMet, InvalidInput
from addnorm.service.asking.computing import Computing
from addnorm.service.asking.request import InferenceRequest
from addnorm.service.asking.deadline import Deadline
from addnorm.service.asking.gate import OWN_MARGIN, WAIT_FACTOR, Gate, rejection
from addnorm.service.settings import Settings

# MAX_SEQUENCES, MAX_TOKENS: of a request that is none. Larger: one request fills more of the queue.
#   Smaller: more requests leave a worker to others, and take longer for it.
# TIME_FACTOR: on the predicted time, for the deadline where the caller names none. Larger: one that
#   stands still is given up later. Smaller: one that others slow down is given up.
MAX_SEQUENCES, MAX_TOKENS = 1024, 65_536
TIME_FACTOR = 4


class Bulk:
    """Shared by all requests."""

    def __init__(self, settings: Settings, computing: Computing, gate: Gate) -> None:
        self._settings, self._computing, self._gate = settings, computing, gate

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
        is predicted to be late. Counted from then on, until it is computed.

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
        self._gate.keep(deadline.holdings, "bulk_s", self._compute_s(request))

    def num_workers(self) -> int:
        """How many workers bulk requests may use now."""
        return self._gate.queue.num_bulk_workers(time.monotonic())

    def _compute_s(self, request: InferenceRequest) -> float:
        num_tokens, target = request.batch.num_tokens, request.runner.target
        return num_tokens * target.s_per_token / self.num_workers()

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
