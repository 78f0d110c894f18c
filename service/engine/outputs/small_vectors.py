"""Vectors in smaller numbers: int8 and uint8 by fixed ranges, binary and ubinary by signs.

Each number is made of its own value alone, so a sequence's company changes nothing. Sources:
sentence-transformers' `quantize_embeddings`, Cohere's API reference for the order of the bits.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Floats

VectorDType = Literal["float32", "int8", "uint8", "binary", "ubinary"]
RANGED: tuple[VectorDType, ...] = ("int8", "uint8")
PACKED: tuple[VectorDType, ...] = ("binary", "ubinary")  # eight dimensions a byte
STEPS = 255  # of a range


def width_of(dtype: VectorDType, dimensions: int) -> int:
    """Numbers of a vector."""
    return -(-dimensions // 8) if dtype in PACKED else dimensions


def converted(
    vectors: Floats, dtype: VectorDType, ranges: Sequence[Sequence[float]] | None
) -> NDArray[Any]:
    """Finite `[n, w]` -> `[n, w]`; of bits `[n, ceil(w / 8)]`.

    int8, uint8: which of the 256 steps of its dimension's range a value stands on, rounded down; a
    value outside of the range stands on the nearest, so none wraps around. int8 is uint8 - 128.
    binary, ubinary: 1 for values above 0, the first dimension in the highest bit, zeros at the end
    where eight do not divide w. binary is ubinary - 128.

    ranges: lowest and highest value of each dimension `[2, w]`.
    """
    if dtype == "float32":
        return vectors
    if dtype in PACKED:
        unsigned = np.packbits(vectors > 0, axis=1)
    else:
        assert ranges is not None
        unsigned = _steps(vectors, np.asarray(ranges, np.float32))
    # flipping the highest bit takes 128 away
    return unsigned if dtype in ("uint8", "ubinary") else (unsigned ^ 128).view(np.int8)


def _steps(vectors: Floats, ranges: Floats) -> NDArray[np.uint8]:
    lowest, highest = ranges
    step = (highest - lowest) / np.float32(STEPS)
    step = np.where(step == 0, np.float32(1), step)
    with np.errstate(over="ignore"):  # infinity is outside of every range
        places = np.floor((vectors - lowest) / step)
    steps: NDArray[np.uint8] = np.clip(places, 0, STEPS).astype(np.uint8)
    return steps
