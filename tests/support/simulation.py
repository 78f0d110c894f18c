"""The service's own gate and queue under simulated callers, in simulated time.

Knows no HTTP, no engine and no threads. A worker needs a fixed time per token, so that only the
queue decides.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import MicroBatch
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.scheduler import compute
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.target import Target
from addnorm.service.errors import Expired, Overloaded
from tests.support.scheduling import ask_of

BYTES_PER_TOKEN = 5  # of a JSON body


def no_rows(batch: Batch) -> Rows:
    """A target's run that computes nothing: the queue does not look into rows."""
    nothing = np.empty((batch.num_tokens, 0), np.float32)
    return Rows(nothing, nothing, nothing)


@dataclass(frozen=True)
class Group:
    """Callers of one kind.

    rate: requests a second, whatever becomes of them. 0: each caller sends its next request once
    the last one is answered, or `pause_s` after it was rejected.
    """

    name: str
    lengths: Callable[[np.random.Generator], list[int]]  # of a request's sequences
    target: Target
    callers: int = 1
    rate: float = 0.0
    time_s: float = 30.0  # from sending to the deadline
    pause_s: float = 0.05
    key: str = ""
    begins_s: float = 0.0


@dataclass
class Outcome:
    """What became of a group's requests. Times in seconds."""

    waits_s: list[float] = field(
        default_factory=list
    )  # from sending to the answer, of those answered in time
    micro_batches: list[int] = field(
        default_factory=list
    )  # that were taken in between, its own included
    admitted: list[int] = field(default_factory=list)  # tokens of each
    sent: list[int] = field(default_factory=list)  # tokens of each
    num_unread: int = 0  # refused before the body was read
    num_read: int = 0  # refused afterwards
    num_late: int = 0
    good_tokens: int = 0  # answered in time

    @property
    def refused(self) -> float:
        """Share of all requests."""
        return (self.num_unread + self.num_read) / max(1, len(self.sent))

    @property
    def read(self) -> float:
        """Share of the refused."""
        return self.num_read / max(1, self.num_unread + self.num_read)

    @property
    def late(self) -> float:
        """Share of the admitted."""
        return self.num_late / max(1, len(self.admitted))

    @property
    def sizes(self) -> float:
        """Mean tokens of the admitted over those of all."""
        return float(np.mean(self.admitted) / np.mean(self.sent)) if self.admitted else 0.0


class Simulation:
    """One queue, its workers, and the groups that ask."""

    def __init__(self, gate: Gate, groups: list[Group], seed: int = 0) -> None:
        self.gate, self.queue, self.groups = gate, gate.queue, groups
        self.outcomes = {group.name: Outcome() for group in groups}
        self._s_per_token = {group.target: group.target.s_per_token for group in groups}
        self.fill: list[float] = []  # real tokens over cells, of each micro-batch
        self.busy_s = 0.0
        self.now = 0.0
        self._num_taken = 0
        self._num_idle = self.queue.num_workers
        self._draws = np.random.default_rng(seed)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def run(self, seconds: float) -> dict[str, Outcome]:
        for group in self.groups:
            for _ in range(1 if group.rate else group.callers):
                self._at(
                    group.begins_s + float(self._draws.uniform(0, 1e-3)), partial(self._send, group)
                )
        while self._events and self._events[0][0] <= seconds:
            self.now, _, happen = heappop(self._events)
            happen()
            self._take()
        return self.outcomes

    def _at(self, time_s: float, happen: Callable[[], object]) -> None:
        heappush(self._events, (time_s, next(self._numbers), happen))

    def _send(self, group: Group) -> None:
        if group.rate:
            self._at(
                self.now + float(self._draws.exponential(1 / group.rate)),
                partial(self._send, group),
            )
        lengths = group.lengths(self._draws)
        job = self._submit(group, lengths)
        if job is None:
            if not group.rate:
                self._at(self.now + group.pause_s, partial(self._send, group))
            return
        job.entry.future.add_done_callback(
            partial(self._answered, group, self.now, sum(lengths), self._num_taken)
        )

    def _submit(self, group: Group, lengths: list[int]) -> Ask | None:
        outcome = self.outcomes[group.name]
        outcome.sent.append(sum(lengths))
        outcome.num_unread += 1
        with suppress(Overloaded, Expired):
            head = Ask(timeout_s=group.time_s, key=group.key)
            self.gate.check_load(head, BYTES_PER_TOKEN * sum(lengths))
            outcome.num_unread -= 1
            outcome.num_read += 1
            batch = Batch.of([np.zeros(length, np.int64) for length in lengths])
            job = ask_of(group.target, batch, self.now, self.now + group.time_s, group.key)
            self.gate.weigh(job, self.now)
            outcome.num_read -= 1
            outcome.admitted.append(sum(lengths))
            return job
        return None

    def _answered(
        self, group: Group, sent: float, num_tokens: int, taken: int, future: Future[Rows]
    ) -> None:
        outcome = self.outcomes[group.name]
        if future.exception() is None and self.now <= sent + group.time_s:
            outcome.waits_s.append(self.now - sent)
            outcome.micro_batches.append(self._num_taken - taken)
            outcome.good_tokens += num_tokens
        else:
            outcome.num_late += 1
        if not group.rate:
            self._at(self.now, partial(self._send, group))

    def _take(self) -> None:
        while self._num_idle and (micro := self.queue.take(self.now, self._num_idle)):
            self._num_taken += 1
            self._num_idle -= 1
            lengths = [sequence.length for sequence in micro.sequences]
            self.fill.append(sum(lengths) / (len(lengths) * max(lengths)))
            seconds = self._s_per_token[micro.target] * sum(lengths)
            self.busy_s += seconds
            self._at(self.now + seconds, partial(self._settle, micro))

    def _settle(self, micro: MicroBatch) -> None:
        self._num_idle += 1
        compute(micro)
        self.queue.settle(micro, None, self.now)
