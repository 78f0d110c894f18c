"""How many tokens a micro-batch of an engine should have, measured. Knows engines only."""

import logging
import time

import numpy as np

from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Limits
from addnorm.service.runtime.session import is_of_onnxruntime

log = logging.getLogger("addnorm")
# Warm-up chooses a target's token budget: the second smallest of the engine's, a larger one if each
# step up to it brings GAIN, the smallest only if it is as quick. So where sizes are about as quick,
# noise does not choose. Larger micro-batches have more pads, and answer later.
GAIN = 1.1
ROUNDS = 5
WARM_UP_S = 1.5  # of one bundle; with the checks, loading takes less than 2 s more
TYPICAL_LENGTH = 30  # tokens of the sequences that warm-up runs


def measured_rates(engine: Engine, limits: Limits, seconds: float) -> dict[int, float]:
    """Tokens/s at each of the engine's budgets, the best of ROUNDS. Stops early when time is up, or
    where there is too little memory for more."""
    draws, length = np.random.default_rng(0), min(TYPICAL_LENGTH, limits.max_positions)

    def drawn(budget: int) -> Batch:
        shape = max(1, budget // length), length
        return Batch.of(list(draws.integers(0, limits.vocab_size, shape)))

    _run(engine, drawn(length))  # a GPU loads its kernels at the first run, which takes seconds
    ends, clock = time.monotonic() + seconds, engine.clock
    rates: dict[int, float] = {}
    order = ROUNDS * engine.budgets
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


def best_budget(rates: dict[int, float]) -> int:
    """rates: tokens/s by budget, ascending."""
    smallest, *larger = rates
    if not larger or rates[smallest] >= rates[larger[0]]:
        return smallest
    best, *larger = larger
    for budget in larger:
        if rates[budget] < GAIN * rates[best]:
            break
        best = budget
    return best
