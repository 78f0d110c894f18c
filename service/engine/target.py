"""The target of requests: an engine's run function, its rate, and the tokens that wait for it. And
the statistics of one version of a model, in counts and times."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from addnorm.service.engine.batch import AnyRows, Batch
from addnorm.service.locks import LockOrder, new_lock

# How the measured rate of a target follows its runs.
#
# SMOOTHING: weight of a new measurement. At 0.2 about five full runs replace the old rate. Larger
#   follows noise; smaller predicts wrongly for longer after the load of the machine changes.
# OPTIMISM: factor on the rate when a request is rejected for the rate alone. A wrong, low rate
#   would otherwise reject for ever, because only runs correct it. Larger tries hopeless requests
#   more often; smaller recovers later.
SMOOTHING = 0.2
OPTIMISM = 1.05

Run = Callable[[Batch], AnyRows]  # the one seam: a micro-batch in, a row for each of its tokens out
# Triton's name -> the stage of a request here
STAGES = {
    "queue": "queue",
    "compute_input": "decode",
    "compute_infer": "infer",
    "compute_output": "encode",
}


class Target:
    """One engine (model, version, precision) as requests see it: run function, rate, waiting
    tokens."""

    def __init__(
        self,
        run: Run,
        token_budget: int,
        name: str = "",
        exact: bool = True,
        run_on_all_cores: Run | None = None,
        is_shared_out: bool = True,
        large_from: float = math.inf,
    ) -> None:
        """token_budget: of a micro-batch; name: of the model; exact: whether equal bits are
        promised for co-batched sequences; run_on_all_cores: `run`, sooner while other workers are
        idle; None if there is no such thing; is_shared_out: whether idle workers share what waits.
        A GPU computes it sooner in one run. large_from: tokens of a sequence whose run holds so
        much memory that no other such run may be under way."""
        self.run, self.name, self.exact = run, name, exact
        self.run_on_all_cores, self.is_shared_out = run_on_all_cores, is_shared_out
        self.token_budget, self.large_from = token_budget, large_from
        self.num_tokens = 0  # that wait
        self.tokens_per_s: float | None = None  # of one worker, smoothed; None until measured

    @property
    def s_per_token(self) -> float:
        """Seconds per token of one worker thread. 0 until measured."""
        return 1 / self.tokens_per_s if self.tokens_per_s else 0.0

    def update_rate(self, num_tokens: int, seconds: float) -> None:
        """Takes the time of a run into account. A run of less than half the token budget may raise
        the rate, but never lowers it: small runs are slower per token, and the rate is meant for
        times when much waits."""
        rate = num_tokens / max(seconds, 1e-6)
        if self.tokens_per_s is None:
            self.tokens_per_s = rate
        elif rate > self.tokens_per_s or 2 * num_tokens >= self.token_budget:
            self.tokens_per_s += SMOOTHING * (rate - self.tokens_per_s)

    def raise_rate(self) -> None:
        """Called when a request was rejected for the rate alone, though nothing waited: the rate
        may be wrong."""
        if self.tokens_per_s:
            self.tokens_per_s *= OPTIMISM


@dataclass
class Sum:
    """The number of times that something happened, and the time that it took in total."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * 1e9)


class Statistics:
    """Counts and times of one version of a model, by the names of Triton's statistics extension.
    Requests are counted when they end, by one thread; micro-batches by the worker threads that
    run them."""

    def __init__(self) -> None:
        # of the event loop alone
        self.requests = {name: Sum() for name in ("success", "fail", *STAGES)}
        self.num_sequences = 0  # of requests answered
        self.last_inference_s = 0.0  # Unix time
        self.num_under_way = 0  # requests that are counted at their end
        self.last_use_s = time.monotonic()  # when the last of them ended
        self._lock = new_lock(LockOrder.STATISTICS)
        # number of sequences -> runs; guarded by _lock
        self._micro_batches: defaultdict[int, Sum] = defaultdict(Sum)

    def idle_s(self) -> float:
        """Seconds since the last request for the model ended; 0 while one is in progress."""
        return 0.0 if self.num_under_way else time.monotonic() - self.last_use_s

    def end_request(
        self, num_sequences: int = 0, stages_s: Mapping[str, float] | None = None
    ) -> None:
        """Called when a request in progress has ended. stages_s: seconds of decode, queue, infer
        and encode of a request that was answered, which is counted."""
        self.num_under_way -= 1
        self.last_use_s = time.monotonic()
        if stages_s is None:
            return
        for name, stage in STAGES.items():
            self.requests[name].add(stages_s[stage])
        self.requests["success"].add(sum(stages_s.values()))
        self.num_sequences += num_sequences
        self.last_inference_s = time.time()

    def count_failure(self, seconds: float) -> None:
        """Counts a request for this model that was rejected or failed after it was decoded."""
        self.requests["fail"].add(seconds)

    def measure(self, run: Run) -> Run:
        """`run`, counted and timed."""

        def run_timed(batch: Batch) -> AnyRows:
            start = time.monotonic()
            rows = run(batch)
            seconds = time.monotonic() - start
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
