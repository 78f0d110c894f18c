"""Vectors in smaller numbers: int8 and uint8 by ranges of each dimension, binary by signs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.errors import InvalidInput

# Each number is made of its own value alone, so a sequence's company
# changes nothing. Sources: sentence-transformers' `quantize_embeddings`, Cohere's API reference for
# the order of the bits.
RANGED: tuple[VectorDType, ...] = ("int8", "uint8")
DIMENSIONS: dict[VectorDType, int] = {  # that one number holds
    "float32": 1,
    "int8": 1,
    "uint8": 1,
    "binary": 8,
    "ubinary": 8,
}
STEPS = 255  # of a range


def check_ranges(
    field: str,
    dtype: VectorDType,
    bundle: Bundle,
    ranges: Sequence[Sequence[float]] | None,
    normalize: bool,
    mismatch: str = "",
) -> None:
    """InvalidInput if there are no ranges for these vectors. field: the caller's name for dtypes.
    mismatch: how else the vectors of the ranges differ from these."""
    if dtype not in RANGED:
        return
    if ranges is None:
        reason = (
            f"{bundle.ref} has no ranges to compute it with: export it again with a tokenizer,"
            " which records them"
        )
    else:
        if bundle.manifest.normalize and not normalize:
            mismatch = mismatch or 'have length 1: send "normalize": true'
        elif normalize and not bundle.manifest.normalize:
            mismatch = mismatch or "keep their length: leave normalize out"
        if not mismatch:
            return
        reason = f"its ranges are of {bundle.ref}'s own vectors, which {mismatch}"
    raise InvalidInput(
        f"{field} is {dtype!r}: {reason}; or request floats, binary or ubinary", param=field
    )


def to_dtype(
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
    if DIMENSIONS[dtype] > 1:
        numbers = np.packbits(vectors > 0, axis=1)
    else:
        assert ranges is not None
        lowest, highest = np.asarray(ranges, np.float32)
        step = (highest - lowest) / np.float32(STEPS)
        step = np.where(step == 0, np.float32(1), step)
        with np.errstate(over="ignore"):  # infinity is outside of every range
            places = np.floor((vectors - lowest) / step)
        numbers = np.clip(places, 0, STEPS).astype(np.uint8)
    # flipping the highest bit takes 128 away
    return numbers if dtype in ("uint8", "ubinary") else (numbers ^ 128).view(np.int8)
