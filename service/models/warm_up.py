"""How many tokens a micro-batch of an engine should have, measured. Knows engines only."""

import logging
import time

import numpy as np

from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Limits
from addnorm.service.runtime.session import is_of_onnxruntime

log = logging.getLogger("addnorm")
# Warm-up chooses a target's token budget: the engine's smallest whose rate is GOOD_ENOUGH times the
# best one's. Larger micro-batches are little faster, have more pads, answer later. (CPU time
# of a token with 256 over 128, MiniLM's shape served: fp32 0.95 to 0.97, int8 0.94 to 1.)
GOOD_ENOUGH = 0.93
WARM_UP_S = 1.5  # of one bundle; with the checks, loading takes less than 2 s more
TYPICAL_LENGTH = 30  # tokens of the sequences that warm-up runs


def measured_rates(engine: Engine, limits: Limits, seconds: float) -> dict[int, float]:
    """Tokens/s at each of the engine's budgets, the better of two rounds. Stops early when time is
    up, or where there is too little memory for more."""
    draws, length = np.random.default_rng(0), min(TYPICAL_LENGTH, limits.max_positions)

    def drawn(budget: int) -> Batch:
        shape = max(1, budget // length), length
        return Batch.of(list(draws.integers(0, limits.vocab_size, shape)))

    _run(engine, drawn(length))  # a GPU loads its kernels at the first run, which takes seconds
    ends, clock = time.monotonic() + seconds, engine.clock
    rates: dict[int, float] = {}
    order = 2 * engine.budgets
    for budget, following in zip(order, (*order[1:], 0), strict=True):
        batch, began, started = drawn(budget), time.monotonic(), clock()
        try:
            _run(engine, batch)
        except Exception as error:
            if not rates or not is_of_onnxruntime(error):
                raise
            log.warning("%d tokens at once do not run here: %s", batch.num_tokens, error)
            return rates
        took, now = clock() - started, time.monotonic()
        rates[budget] = max(rates.get(budget, 0.0), batch.num_tokens / max(took, 1e-9))
        if now + (now - began) * following / budget > ends:
            return rates
    return rates


def _run(engine: Engine, batch: Batch) -> None:
    """Runs the batch as a worker does, and looks for what is not finite."""
    engine.compute(batch).not_finite()


def smallest_good(rates: dict[int, float]) -> int:
    """The smallest budget whose rate is good enough."""
    good = GOOD_ENOUGH * max(rates.values())
    return min(budget for budget, rate in rates.items() if rate >= good)
