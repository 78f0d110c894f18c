"""Counts and times of one version of a model, by the names of Triton's statistics extension. Knows
numbers only."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from addnorm.service.engine.batch import AnyRows, Batch
from addnorm.service.engine.target import Run
from addnorm.service.locks import LockOrder, new_lock

# Triton's name -> the stage of a request here
STAGES = {
    "queue": "queue",
    "compute_input": "decode",
    "compute_infer": "infer",
    "compute_output": "encode",
}


@dataclass
class Sum:
    """How often something happened, and how long it took in total."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * 1e9)


class Statistics:
    """Requests are counted when they end, by one thread; micro-batches by the worker threads that
    run them."""

    def __init__(self) -> None:
        # of the event loop alone
        self.requests = {name: Sum() for name in ("success", "fail", *STAGES)}
        self.num_sequences = 0  # of requests answered
        self.last_inference_s = 0.0  # Unix time
        self._lock = new_lock(LockOrder.STATISTICS)
        # number of sequences -> runs; guarded by _lock
        self._micro_batches: defaultdict[int, Sum] = defaultdict(Sum)

    def count_request(self, num_sequences: int, stages_s: Mapping[str, float]) -> None:
        """A request was answered. stages_s: seconds of decode, queue, infer and encode."""
        for name, stage in STAGES.items():
            self.requests[name].add(stages_s[stage])
        self.requests["success"].add(sum(stages_s.values()))
        self.num_sequences += num_sequences
        self.last_inference_s = time.time()

    def count_failure(self, seconds: float) -> None:
        """A request for this model was rejected or failed after it was decoded."""
        self.requests["fail"].add(seconds)

    def measure(self, run: Run) -> Run:
        """`run`, counted and timed."""

        def run_timed(batch: Batch) -> AnyRows:
            started = time.monotonic()
            rows = run(batch)
            seconds = time.monotonic() - started
            with self._lock:
                self._micro_batches[len(batch)].add(seconds)
            return rows

        return run_timed

    def runs(self) -> dict[int, Sum]:
        """Number of sequences -> the micro-batches of that many, fewest first."""
        with self._lock:
            return {
                size: Sum(runs.count, runs.ns) for size, runs in sorted(self._micro_batches.items())
            }
