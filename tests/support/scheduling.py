"""Batches whose tokens are their lengths, a fake engine, and short forms for a queue."""

import time
from itertools import pairwise

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import FairQueue, MicroBatch
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.rows import AskedRows
from addnorm.service.asking.scheduler import Scheduler, compute
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.target import Target
from tests.support.waiting import PATIENCE_S

MUCH = 2**50  # bytes


class Queue(FairQueue):
    """A queue with its gate."""

    def __init__(self, max_queue_tokens: int, num_workers: int = 1) -> None:
        super().__init__(num_workers)
        self.gate = Gate(self, {"tokens": max_queue_tokens, "responses": MUCH})


def gate_of(num_workers: int, max_queue_tokens: int) -> Gate:
    return Gate(FairQueue(num_workers), {"tokens": max_queue_tokens, "responses": MUCH})


def batch(*sequences: list[int]) -> Batch:
    return Batch.of([np.array(sequence, np.int64) for sequence in sequences])


def of_lengths(*lengths: int) -> Batch:
    return batch(*([length] * length for length in lengths))


def echo(batch: Batch) -> Rows:
    """A fake engine: each token's value is its row, so rows routed to another caller show."""
    column = batch.tokens[:, None].astype(np.float32)
    return Rows(column, column.copy(), column.copy())


def values(ask: Ask) -> list[list[float]]:
    """What each sequence of the ask was answered, by any of the three outputs."""
    ask.entry.future.result(PATIENCE_S)
    rows = ask.rows.gather().rows
    assert rows
    assert (rows.activations == rows.norm_mean).all()
    assert (rows.activations == rows.norm_rstd).all()
    spans = pairwise(ask.batch.offsets)
    return [rows.activations[start:end, 0].tolist() for start, end in spans]


def ask_of(
    target: Target, batch: Batch, now: float = 0, deadline: float = 100, key: str = ""
) -> Ask:
    """For the rows of every token."""
    ask = Ask(key=key, started=now, timeout_s=deadline - now)
    ask.target, ask.batch, ask.rows = target, batch, AskedRows(batch, ("every",))
    return ask


def head(timeout_s: float, key: str = "", model: str | None = None) -> Ask:
    """A request whose body was not read yet. model: if the path names it."""
    return Ask(timeout_s=timeout_s, key=key, names={"model": model} if model else {})


def add_first(queue: Queue, target: Target, batch: Batch) -> Ask:
    queue.add(ask := ask_of(target, batch), 0)
    return ask


def lengths(micro: MicroBatch | None) -> list[int]:
    assert micro is not None
    return sorted(sequence.length for sequence in micro.sequences)


def run(queue: Queue, now: float) -> None:
    micro = queue.take(now)
    assert micro is not None
    settle(queue, micro, now)


def settle(queue: Queue, micro: MicroBatch, now: float) -> None:
    compute(micro)
    queue.settle(micro, None, now)


def submit(
    queue: Queue,
    target: Target,
    batch: Batch,
    now: float = 0,
    deadline: float = 100,
    key: str = "",
    is_bulk: bool = False,
) -> Ask:
    ask = ask_of(target, batch, now, deadline, key)
    ask.is_bulk = is_bulk
    queue.gate.weigh(ask, now)
    return ask


def submit_to(
    scheduler: Scheduler, target: Target, batch: Batch, timeout_s: float, is_bulk: bool = False
) -> Ask:
    now = time.monotonic()
    ask = ask_of(target, batch, now, now + timeout_s)
    ask.is_bulk = is_bulk
    with scheduler.changed:
        scheduler.gate.weigh(ask, time.monotonic())
    scheduler.wake()
    return ask
