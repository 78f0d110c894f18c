"""The invariance check: when idle, some served micro-batches are computed again, each sequence
alone, and compared.

Knows no models and no requests: only what ran, and its rows.
"""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from addnorm.service.asking.fair_queue import MicroBatch
from addnorm.service.asking.scheduler import Observer
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import AnyRows, Batch, Rows
from addnorm.service.engine.target import Target

log = logging.getLogger("addnorm")
MAX_KEPT = 4  # micro-batches
KEPT_S = 2.0  # a micro-batch is dropped if the server is not idle within this time
POLL_S = 0.01
INEXACT_RTOL = 1e-3  # for engines whose bits may depend on the shape; wrong rows differ by far more
Report = Callable[[str, bool, float], None]


@dataclass(frozen=True)
class Sample:
    """A micro-batch that ran, to be compared before `expires`."""

    target: Target
    batch: Batch
    rows: Rows
    expires: float


class InvarianceCheck(Observer):
    """Keeps a share of the micro-batches with several sequences, and compares them on a thread of
    its own."""

    def __init__(self, share: float, is_idle: Callable[[], bool], report: Report) -> None:
        """share: of micro-batches, 0 to 1; is_idle: whether nothing waits in the queue; report:
        called for each sequence with the model, whether its rows differ, and by how much."""
        self._share, self._is_idle, self._report = share, is_idle, report
        self._samples: queue.Queue[Sample | None] = queue.Queue(MAX_KEPT)
        self._closed = threading.Event()
        self._logged: set[str] = set()  # models
        if share:
            threading.Thread(target=self._work, name="invariance", daemon=True).start()

    def on_computed(self, micro: MicroBatch, rows: AnyRows) -> None:
        if len(micro.sequences) > 1 and random.random() < self._share and not self._samples.full():
            expires = time.monotonic() + KEPT_S
            self._keep(Sample(micro.target, micro.batch(), rows.on_host(), expires))

    def close(self) -> None:
        self._closed.set()
        self._keep(None)

    def _keep(self, sample: Sample | None) -> None:
        with suppress(queue.Full):
            self._samples.put_nowait(sample)

    def _work(self) -> None:
        while not self._closed.is_set():
            self._step()

    def _step(self) -> None:
        """Compares one sample. A function of its own, so that the thread keeps no model in memory
        while it waits."""
        if sample := self._samples.get():
            try:
                for index, (start, end) in enumerate(pairwise(sample.batch.offsets)):
                    while not self._is_idle():
                        if time.monotonic() >= sample.expires or self._closed.is_set():
                            return
                        time.sleep(POLL_S)
                    sequence = sample.batch.sequence(index)
                    self._compare(sample.target, sequence, sample.rows.span(start, end))
            except Exception:  # an engine that fails here fails requests too, which are counted
                log.exception("the invariance check failed")

    def _compare(self, target: Target, sequence: Batch, co_batched: Rows) -> None:
        """sequence: a batch of it alone."""
        alone = target.run(sequence).on_host()
        difference = 0.0  # only for equal bits; infinite if a value is not a number
        if not selfcheck.same_bits(alone, co_batched):
            pairs = zip(alone, co_batched, strict=True)
            differences = (np.abs(part - batched_part) for part, batched_part in pairs)
            difference = max(float(part.max(initial=0.0)) for part in differences)
            least = float(np.finfo(np.float32).tiny)
            difference = max(difference, least) if np.isfinite(difference) else float("inf")
        largest = max(float(np.abs(part).max(initial=0.0)) for part in alone)
        violated = difference > (0.0 if target.exact else INEXACT_RTOL * max(1.0, largest))
        if violated and target.name not in self._logged:
            self._logged.add(target.name)
            log.error(
                "%s is not batch-invariant: a sequence of %d tokens computed alone differs by %.3g",
                target.name, sequence.num_tokens, difference,
            )  # fmt: skip
        self._report(target.name, violated, difference)
