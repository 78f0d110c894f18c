"""Batches whose tokens are their lengths, a fake engine, and short forms for a queue."""

from itertools import pairwise

import numpy as np

from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.asking.gate import Gate
from addnorm.service.engine.target import Target
from addnorm.service.asking.ask import AllRows
from addnorm.service.asking.ask import Job
from addnorm.service.asking.micro_batch import MicroBatch
from addnorm.service.asking.fair_queue import JobQueue
from tests.support.waiting import PATIENCE_S


class Queue(JobQueue):
    """A queue with its gate."""

    def __init__(self, max_queue_tokens: int, num_workers: int = 1) -> None:
        super().__init__(num_workers)
        self.gate = Gate(self, {"tokens": max_queue_tokens})


def gate_of(num_workers: int, max_queue_tokens: int) -> Gate:
    return Gate(JobQueue(num_workers), {"tokens": max_queue_tokens})


def batch(*sequences: list[int]) -> Batch:
    return Batch.of([np.array(sequence, np.int64) for sequence in sequences])


def of_lengths(*lengths: int) -> Batch:
    return batch(*([length] * length for length in lengths))


def echo(batch: Batch) -> Rows:
    """A fake engine: each token's value is its row, so rows routed to another caller show."""
    column = batch.tokens[:, None].astype(np.float32)
    return Rows(column, column.copy(), column.copy())


def values(job: Job) -> list[list[float]]:
    """What each sequence of the job was answered, by any of the three outputs."""
    rows = job.future.result(PATIENCE_S)
    assert (rows.activations == rows.norm_mean).all()
    assert (rows.activations == rows.norm_rstd).all()
    spans = pairwise(job.batch.offsets)
    return [rows.activations[start:end, 0].tolist() for start, end in spans]


def add_first(queue: Queue, target: Target, batch: Batch) -> Job:
    return queue.add_first(target, batch, 0, AllRows(batch))


def lengths(micro: MicroBatch | None) -> list[int]:
    assert micro is not None
    return sorted(sequence.length for sequence in micro.sequences)


def run(queue: Queue, now: float) -> None:
    micro = queue.take(now)
    assert micro is not None
    settle(queue, micro, now)


def settle(queue: Queue, micro: MicroBatch, now: float) -> None:
    micro.deliver(micro.target.run(micro.batch()))
    queue.settle(micro, None, now)


def submit(
    queue: Queue, target: Target, batch: Batch, now: float = 0, deadline: float = 100, key: str = ""
) -> Job:
    return queue.gate.submit(target, batch, now, deadline, key)
