"""Limits for an engine's numbers against the reference's, for each precision. Knows arrays only.

Every function yields (output, difference, limit). A check passes if the difference is at most the
limit.

fp32 must be equal up to rounding. fp16 and int8 must have nearly the same direction. What was seen
is of the presets and of trained checkpoints. The limits allow a few times that, so a failure means
a broken graph, or a model that does not fit the precision. A cosine ignores scale, so lengths are
compared too. `exact.py` finds smaller errors, such as one wrong column scale.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Result = tuple[str, float, float]
TINY = 1e-30
ABSOLUTE, COSINE, NORM_MEAN, NORM_RSTD = 1e-4, 0.99999, 1e-4, 1e-3  # fp32


class Near(NamedTuple):
    """Limits of a precision's distance from fp32, over the rows of a case."""

    lowest_cosine: float
    mean_cosine: float
    length: float  # of a row over its expected length, less 1
    mean_length: float
    norm: float  # means of norms in deviations; the average of rstd
    norm_worst: float  # rstd of one token
    ranges: float  # of vectors, in widths of an average range


NEAR = {
    # rounding to 11 bits at every step. Seen: cosines of 1 - 1.5e-4 (one token of twelve layers
    # that share their weights, among 512 random ids; elsewhere 1 - 4e-6) and 1 - 1.6e-6; lengths
    # of 0.0062 and 0.0005; norms of 0.0003 and 0.0068; ranges of 0.0003
    "fp16": Near(0.9995, 0.99999, 0.02, 0.002, 0.001, 0.02, 0.001),
    # noise of about 3 % of a row's length, which grows with depth. Seen: cosines of 0.998 and
    # 0.9991 (a six-layer checkpoint, 512 random ids; real sentences come closer); a length of 0.11
    # for one row among those, 0.012 for their average; norms of 0.017 and 0.17; ranges of 0.003
    "int8": Near(0.99, 0.998, 0.25, 0.03, 0.02, 0.25, 0.02),
}


def vectors(output: str, got: Array, expected: Array, precision: str) -> Iterator[Result]:
    """Vectors `[n, w]`."""
    # 1 - cosine of each row; of a row that should be zero, 0 if it is and 1 if not
    product = np.linalg.norm(got, axis=-1) * np.linalg.norm(expected, axis=-1)
    gaps = 1 - (got * expected).sum(-1) / np.where(product > 0, product, 1)
    gaps = np.where(expected.any(-1), gaps, got.any(-1))
    if precision == "fp32":
        yield output, largest(got - expected), ABSOLUTE * max(1.0, largest(expected))
        yield f"{output}, 1 - cosine", float(gaps.max(initial=0)), 1 - COSINE
    else:
        near, lengths = NEAR[precision], np.linalg.norm(expected, axis=-1)
        ratios = np.linalg.norm(got, axis=-1) / np.where(lengths > 0, lengths, 1)
        ratios = np.where(lengths > 0, ratios, 1.0)  # 1 for rows that should be zero
        yield f"{output}, 1 - lowest cosine", float(gaps.max(initial=0)), 1 - near.lowest_cosine
        yield f"{output}, 1 - mean cosine", float(gaps.mean()), 1 - near.mean_cosine
        yield f"{output}, length ratio - 1", largest(ratios - 1), near.length
        mean = abs(float(ratios.mean()) - 1)
        yield f"{output}, mean length ratio - 1", mean, near.mean_length


def ranges(got: Array, expected: Array, precision: str) -> Iterator[Result]:
    """Lowest and highest values of vectors `[2, w]`.

    In fp16 and int8 on average over them, in widths of an average range.
    """
    if precision == "fp32":
        yield "ranges", largest(got - expected), ABSOLUTE * max(1.0, largest(expected))
    else:
        width = max(float((expected[1] - expected[0]).mean()), TINY)
        average = float(np.abs(got - expected).mean()) / width
        yield "ranges, average", average, NEAR[precision].ranges


def norms(
    got: tuple[Array, Array], expected: tuple[Array, Array], precision: str
) -> Iterator[Result]:
    """The norms' (mean, rstd), each `[n, n_norms]`.

    In fp16 and int8, means are compared in standard deviations. The average of rstd has a tighter
    limit than the largest: in int8 one huge hidden unit may change a single token's deviation by a
    sixth.
    """
    mean, relative = got[0] - expected[0], np.abs(got[1] / expected[1] - 1)
    if precision == "fp32":
        yield "norm_mean", largest(mean), NORM_MEAN * max(1.0, largest(expected[0]))
        yield "norm_rstd, relative", largest(relative), NORM_RSTD
    else:
        near = NEAR[precision]
        yield "norm_mean, in deviations", largest(mean * expected[1]), near.norm
        yield "norm_rstd, relative, average", float(relative.mean()), near.norm
        yield "norm_rstd, relative", largest(relative), near.norm_worst


def labels(output: str, got: Array, expected: Array, precision: str) -> Iterator[Result]:
    """Logits `[n, w]` of labels: rows with another highest one, though the two highest lie further
    apart than the noise of the precision, whose average row has the lowest cosine allowed."""
    noise = 2 * math.sqrt(1 - NEAR[precision].lowest_cosine)
    length = math.sqrt(float((expected**2).sum(-1).mean()))
    second, first = np.sort(expected, -1)[:, -2:].T
    is_clear = first - second > noise * length
    is_other = got.argmax(-1) != expected.argmax(-1)
    yield f"{output}, other labels", int((is_other & is_clear).sum()), 0


def largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0))
