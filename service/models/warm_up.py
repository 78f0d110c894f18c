"""How many tokens a micro-batch of an engine should have, measured. Knows engines only."""

import logging
import time

import numpy as np

from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Limits
from addnorm.service.runtime.session import is_of_onnxruntime

log = logging.getLogger("addnorm")
# Warm-up chooses a target's token budget: the smallest of BUDGETS whose rate is GOOD_ENOUGH times
# the best one's. Larger micro-batches are hardly faster, and answer later.
# A GPU needs more at once.
BUDGETS = {  # tokens of a micro-batch, by provider
    "cpu": (128, 256, 512, 1024),
    "cuda": (1024, 2048, 4096, 8192, 16384, 32768),
}
GOOD_ENOUGH = 0.97
WARM_UP_S = 1.5  # of one bundle; with the checks, loading takes less than 2 s more
TYPICAL_LENGTH = 30  # tokens of the sequences that warm-up runs


def measured_rates(engine: Engine, limits: Limits, seconds: float) -> dict[int, float]:
    """Tokens/s at each of BUDGETS, the better of two runs. Stops early when time is up, or where a
    GPU has too little memory for more."""
    draws, length = np.random.default_rng(0), min(TYPICAL_LENGTH, limits.max_positions)

    def drawn(budget: int) -> Batch:
        shape = max(1, budget // length), length
        return Batch.of(list(draws.integers(0, limits.vocab_size, shape)))

    _run(engine, drawn(length))  # a GPU loads its kernels at the first run, which takes seconds
    ends = time.monotonic() + seconds
    rates: dict[int, float] = {}
    for budget in BUDGETS[engine.provider]:
        batch = drawn(budget)
        for _ in range(2):
            started = time.monotonic()
            try:
                _run(engine, batch)
            except Exception as error:
                if not rates or not is_of_onnxruntime(error):
                    raise
                log.warning("%d tokens at once do not run here: %s", batch.num_tokens, error)
                return rates
            now = time.monotonic()
            rates[budget] = max(rates.get(budget, 0.0), batch.num_tokens / max(now - started, 1e-9))
            if now + 2 * (now - started) > ends:
                return rates
    return rates


def _run(engine: Engine, batch: Batch) -> None:
    """Runs the batch as a worker does: a GPU also pools, and looks for what is not finite."""
    engine.compute(batch).not_finite()


def smallest_good(rates: dict[int, float]) -> int:
    """The smallest budget whose rate is good enough."""
    good = GOOD_ENOUGH * max(rates.values())
    return min(budget for budget, rate in rates.items() if rate >= good)
