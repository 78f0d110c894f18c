"""Batches whose tokens are their lengths, a fake engine, and short forms for a queue."""

from concurrent.futures import Future

import numpy as np

from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.fair_queue import Job, MicroBatch, Queue, Target


def batch(*sequences: list[int]) -> Batch:
    return Batch.of([np.array(sequence, np.int64) for sequence in sequences])


def of_lengths(*lengths: int) -> Batch:
    return batch(*([length] * length for length in lengths))


def echo(batch: Batch) -> list[Rows]:
    """A fake engine: each token's value is its row, so rows routed to another caller show."""
    columns = [batch.sequence(i)[:, None].astype(np.float32) for i in range(len(batch))]
    return [Rows(column, column, column) for column in columns]


def values(future: Future[list[Rows]]) -> list[list[float]]:
    return [rows.activations[:, 0].tolist() for rows in future.result(timeout=5)]


def lengths(micro: MicroBatch | None) -> list[int]:
    assert micro is not None
    return [sequence.length for sequence in micro.sequences]


def run(queue: Queue, now: float) -> None:
    micro = queue.take(now)
    assert micro is not None
    queue.settle(micro, micro.target.run(micro.batch()), now)


def submit(
    queue: Queue, target: Target, batch: Batch, now: float = 0, deadline: float = 100, key: str = ""
) -> Job:
    return queue.submit(target, batch, now, deadline, key)
