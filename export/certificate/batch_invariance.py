"""Bits of the same sequences computed alone, co-batched and padded: how many differ, and by how
much. Knows no limits: the certificate allows none on the CPU, and writes down what holds on CUDA.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Limits

Arrays = Sequence[NDArray[Any]]  # all outputs of a sequence or a row, its activations first
Pair = tuple[Arrays, Arrays]  # the same numbers, computed in two ways
NamedPairs = tuple[str, Callable[[str], Mapping[str, Iterable[Pair]]]]  # precision -> by output
NUM_SEQUENCES = 64  # of the pool that compositions are drawn from
MOST_TOGETHER = 32


class Bits(NamedTuple):
    """Result of comparing some pairs bit by bit. Differences and values are those of
    activations."""

    compared: int
    unequal: int
    largest_difference: float
    largest_value: float


def count_unequal(pairs: Iterable[Pair]) -> Bits:
    compared = unequal = 0
    difference = value = 0.0
    for one, other in pairs:
        compared += 1
        value = _largest_of(value, one[0])
        if not selfcheck.same_bits(one, other):
            unequal += 1
            difference = _largest_of(difference, one[0] - other[0])
    return Bits(compared, unequal, difference, value)


def _largest_of(known: float, values: NDArray[Any]) -> float:
    """NaN if any is."""
    return float(np.maximum(known, np.abs(values).max(initial=0)))


def compositions(engine: Engine, limits: Limits, num: int) -> Iterator[Pair]:
    """Every sequence of so many drawn batches, beside the same sequence alone."""
    draws = np.random.default_rng(0)
    lengths = np.clip(draws.lognormal(3.2, 0.9, NUM_SEQUENCES).astype(int), 1, 512)
    pool = selfcheck.sequences(limits, lengths.tolist())
    alone = [engine.run(pool.sequence(index)) for index in range(NUM_SEQUENCES)]
    for _ in range(num):
        chosen = draws.choice(NUM_SEQUENCES, draws.integers(2, MOST_TOGETHER + 1), replace=False)
        batch = Batch.joined([(pool, int(index)) for index in chosen])
        rows = engine.run(batch)
        for place, index in enumerate(chosen):
            start, end = batch.offsets[place : place + 2].tolist()
            yield rows.span(start, end), alone[index]
