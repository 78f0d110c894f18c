"""Limits for an engine's numbers against the reference's, for each precision. Knows arrays only.

Every function yields (output, difference, limit). A check passes if the difference is at most the
limit.

fp32 must be equal up to rounding. int8 must have nearly the same direction: its noise is about 3 %
of a row's length and grows with depth. Over the presets and a real six-layer checkpoint, the lowest
and the mean cosine seen in any case were 0.998 and 0.9991 (the checkpoint, 512 random token ids;
real sentences come closer). The limits allow two to four times that gap, so a failure means a
broken graph. A cosine ignores scale, so lengths are compared too. `exact.py` finds smaller errors,
such as one wrong column scale.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Result = tuple[str, float, float]
TINY = 1e-30
ABSOLUTE, COSINE, NORM_MEAN, NORM_RSTD = 1e-4, 0.99999, 1e-4, 1e-3  # fp32
INT8_LOWEST, INT8_MEAN = 0.99, 0.998  # cosine over a case's rows
# seen: an average of 0.017 in the worst case, and a largest of 0.17
INT8_NORM, INT8_NORM_WORST = 0.02, 0.25
# seen: 0.11 for one row among 512 random ids, and 0.012 for their average
INT8_LENGTH, INT8_LENGTH_MEAN = 0.25, 0.03
INT8_RANGES = 0.02  # seen: 0.003


def vectors(output: str, got: Array, expected: Array, precision: str) -> Iterator[Result]:
    """Vectors `[n, w]`."""
    gaps = _cosine_gaps(got, expected)
    if precision == "fp32":
        yield output, largest(got - expected), ABSOLUTE * max(1.0, largest(expected))
        yield f"{output}, 1 - cosine", float(gaps.max(initial=0)), 1 - COSINE
    else:
        yield f"{output}, 1 - lowest cosine", float(gaps.max(initial=0)), 1 - INT8_LOWEST
        yield f"{output}, 1 - mean cosine", float(gaps.mean()), 1 - INT8_MEAN
        ratios = _length_ratios(got, expected)
        yield f"{output}, length ratio - 1", largest(ratios - 1), INT8_LENGTH
        yield f"{output}, mean length ratio - 1", abs(float(ratios.mean()) - 1), INT8_LENGTH_MEAN


def ranges(got: Array, expected: Array, precision: str) -> Iterator[Result]:
    """Lowest and highest values of vectors `[2, w]`.

    In int8 on average over them, in widths of an average range.
    """
    if precision == "fp32":
        yield "ranges", largest(got - expected), ABSOLUTE * max(1.0, largest(expected))
    else:
        width = max(float((expected[1] - expected[0]).mean()), TINY)
        yield "ranges, average", float(np.abs(got - expected).mean()) / width, INT8_RANGES


def norms(
    got: tuple[Array, Array], expected: tuple[Array, Array], precision: str
) -> Iterator[Result]:
    """The norms' (mean, rstd), each `[n, n_norms]`.

    In int8, means are compared in standard deviations. The average of rstd has a tighter limit than
    the largest: one huge hidden unit may change a single token's deviation by a sixth.
    """
    mean, relative = got[0] - expected[0], np.abs(got[1] / expected[1] - 1)
    if precision == "fp32":
        yield "norm_mean", largest(mean), NORM_MEAN
        yield "norm_rstd, relative", largest(relative), NORM_RSTD
    else:
        yield "norm_mean, in deviations", largest(mean * expected[1]), INT8_NORM
        yield "norm_rstd, relative, average", float(relative.mean()), INT8_NORM
        yield "norm_rstd, relative", largest(relative), INT8_NORM_WORST


def largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0))


def _length_ratios(got: Array, expected: Array) -> Array:
    """Length of each row over its expected length. 1 for rows that should be zero."""
    lengths = np.linalg.norm(expected, axis=-1)
    ratios = np.linalg.norm(got, axis=-1) / np.where(lengths > 0, lengths, 1)
    return np.where(lengths > 0, ratios, 1.0)


def _cosine_gaps(got: Array, expected: Array) -> Array:
    """1 - cosine of each row; of a row that should be zero, 0 if it is and 1 if not."""
    dots = (got * expected).sum(-1)
    lengths = np.linalg.norm(got, axis=-1) * np.linalg.norm(expected, axis=-1)
    gaps = 1 - dots / np.where(lengths > 0, lengths, 1)
    return np.where(expected.any(-1), gaps, got.any(-1))
