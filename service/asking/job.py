"""The nouns of scheduling: targets, jobs, their results, waiting sequences, micro-batches. Knows no
queue."""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from addnorm.service.errors import ServiceError
from addnorm.service.locks import LockOrder, new_lock
from addnorm.service.engine.target import Target
from addnorm.service.runtime.batch import AnyRows, Batch, Rows

class Results(Protocol):
    """What is kept of the rows that a job's sequences get."""

    lengths: Sequence[int]  # tokens of each sequence of the batch

    def receive(self, sequences: Sequence[int], rows: AnyRows) -> None:
        """Rows of some sequences of the batch, by index, end to end. Worker threads call it,
        several at once, each with other sequences. A ServiceError fails the job."""

    def complete(self) -> Any:
        """What the job's future gets, once all sequences were received."""


class AllRows:
    """A row for each token of the batch. If all sequences come at once, their rows are kept as they
    are; else they are copied to their places."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.lengths: Sequence[int] = batch.lengths.tolist()
        # worker threads may get the first rows at the same time
        self._allocating = new_lock(LockOrder.ROWS)
        # written once all sequences were received; guarded by _allocating until set
        self._rows: Rows | None = None

    def receive(self, sequences: Sequence[int], rows: AnyRows) -> None:
        own_rows = rows.on_host()
        if len(sequences) == len(self.batch):
            self._rows = own_rows
            return
        with self._allocating:
            self._rows = self._rows or own_rows.allocate(self.batch.num_tokens)
        start = 0
        for sequence in sequences:
            first, last = self.batch.offsets[sequence], self.batch.offsets[sequence + 1]
            end = start + last - first
            for own, part in zip(self._rows, own_rows, strict=True):
                own[first:last] = part[start:end]
            start = end

    def complete(self) -> Rows:
        assert self._rows
        return self._rows


@dataclass(eq=False)
class Job:
    """A batch that someone waits for. `future` gets what its results are, or the error."""

    number: int  # in order of arrival
    target: Target
    batch: Batch
    submitted: float
    deadline: float
    results: Results
    future: Future[Any] = field(default_factory=Future)
    started: float | None = None  # when its first sequence was taken
    finished: float | None = None
    is_bulk: bool = False  # it leaves a worker to others, and runs on one core, with no other jobs
    backlog: Any = None  # of the queue, also while it runs; None: it goes before all others

    def __post_init__(self) -> None:
        self._num_settled = 0
        self.size = self.batch.num_tokens
        self.num_tokens = 0  # that wait; the queue counts them
        lengths = enumerate(self.results.lengths)
        self.waiting = sorted(Waiting(length, self.number, at, self) for at, length in lengths)

    def wait_no_more(self, sequences: "list[Waiting]") -> None:
        """These do not wait any more."""
        if len(sequences) == len(self.waiting):
            self.waiting = []
            return
        for sequence in sequences:
            del self.waiting[bisect_left(self.waiting, sequence)]

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):  # the caller has left in the meantime
            self.future.set_exception(error)

    def settle(self, num_sequences: int, now: float) -> None:
        """So many sequences have been received."""
        self._num_settled += num_sequences
        if self._num_settled == len(self.batch):
            self.finished = now
            with suppress(InvalidStateError):
                self.future.set_result(self.results.complete())


class Waiting(NamedTuple):
    """One sequence of a job that no worker thread has taken yet. Sorts by length, then by
    arrival."""

    length: int
    number: int  # of the job
    sequence_index: int  # in the batch of the job
    job: Job


class MicroBatch(NamedTuple):
    """Sequences of one target that run together. Those of one job stand together, in the job's
    order."""

    target: Target
    sequences: list[Waiting]
    taken: float
    on_all_cores: bool = False  # else on its worker's thread alone

    @classmethod
    def of(cls, target: Target, sequences: list[Waiting], taken: float) -> "MicroBatch":
        return cls(target, sorted(sequences, key=attrgetter("number", "sequence_index")), taken)

    @property
    def num_tokens(self) -> int:
        return sum(sequence.length for sequence in self.sequences)

    @property
    def cost_s(self) -> float:
        """Predicted time of one worker thread."""
        return self.num_tokens * self.target.s_per_token

    @property
    def is_bulk(self) -> bool:
        return self.sequences[0].job.is_bulk

    def run(self) -> tuple[Batch, AnyRows]:
        """What it computes, and its rows. Raises what the session raises."""
        batch, on_all_cores = self.batch(), self.target.run_on_all_cores
        run = on_all_cores if on_all_cores and self.on_all_cores else self.target.run
        rows = run(batch)
        assert rows.num_tokens == batch.num_tokens
        return batch, rows

    def batch(self) -> Batch:
        first = self.sequences[0].job
        if first is self.sequences[-1].job and len(self.sequences) == len(first.batch):
            return first.batch
        return Batch.joined([(job.batch, index) for _, _, index, job in self.sequences])

    def by_job(self) -> list[tuple[Job, list[Waiting]]]:
        """Its jobs, and the sequences of each."""
        return [(job, list(own)) for job, own in groupby(self.sequences, attrgetter("job"))]

    def deliver(self, rows: AnyRows) -> None:
        """Gives each job its rows."""
        start = 0
        for job, sequences in self.by_job():
            end = start + sum(sequence.length for sequence in sequences)
            job.results.receive([own.sequence_index for own in sequences], rows.span(start, end))
            start = end


def service_error(error: Exception) -> Exception:
    """What callers are told of any error of a session, or of what became of its rows. MemoryError
    stays as it is: any stage may raise it."""
    if isinstance(error, ServiceError | MemoryError):
        return error
    told = ServiceError(f"inference failed: {type(error).__name__}")
    told.__cause__ = error
    return told


class SortedJobs:
    """Jobs by a rank that never changes; among equals by arrival.

    A sorted list. With 10,000 jobs an insertion moves 80 kB, which takes about 2 us.
    """

    def __init__(self, rank: Callable[[Job], float]) -> None:
        self._rank = rank
        self._entries: list[tuple[float, int, Job]] = []  # numbers differ: jobs are never compared

    def add(self, job: Job) -> None:
        insort(self._entries, (self._rank(job), job.number, job))

    def remove(self, job: Job) -> None:
        del self._entries[bisect_left(self._entries, (self._rank(job), job.number))]

    def first(self) -> Job:
        return self._entries[0][2]

    def num_up_to(self, rank: float) -> int:
        """Jobs of this rank or less."""
        return bisect_left(self._entries, (rank, math.inf))

    def __iter__(self) -> Iterator[Job]:
        return (job for _, _, job in self._entries)

    def __len__(self) -> int:
        return len(self._entries)
