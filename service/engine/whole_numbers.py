"""Vectors as whole numbers, of so few bits that float64 holds their products and the sums of these
exactly. So neither the order of a sum, nor a library, nor a processor decides a bit of them."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Floats

EXACT_BITS = 53  # of whole numbers in float64


class WholeNumbers(NamedTuple):
    """Vectors as whole numbers `[n, w]` float64, times a power of two."""

    numbers: NDArray[np.float64]
    exponent: int

    @classmethod
    def of(cls, vectors: Floats) -> "WholeNumbers":
        """Finite vectors `[n, w]`, rounded to about 23 bits of the largest number among them."""
        bits = (EXACT_BITS - (vectors.shape[1] - 1).bit_length()) // 2
        _, exponent = math.frexp(float(np.abs(vectors).max(initial=0.0)))
        numbers = np.rint(np.ldexp(vectors.astype(np.float64), bits - exponent))
        return cls(numbers, exponent - bits)


def products(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact products of whole numbers `[n, w]` and `[m, w]`, `[n, m]`."""
    return left @ right.T
