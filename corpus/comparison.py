"""Two matrices of vectors of the same texts: cosines, nearest neighbours, and the verdict on how
they differ. Knows no files and no words for people."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from addnorm.service.arithmetic import dots, lengths, row_sums

Verdict = Literal[
    "bit-equal", "other rows", "some rows", "rounding", "scaled", "approximation", "other vectors"
]
# Limits of the verdicts: docs/vector-indexes.md has the differences that were measured
ROUNDING = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-3}  # of the largest value
STEPS = 4  # of whole numbers: in dimensions that hardly vary, a step is as small as a rounding
SAME_DIRECTION = 0.99999  # cosine of every row
SAME_LENGTH = 1e-2  # relative
APPROXIMATION = 0.9  # cosine of every row
SOME = 0.1  # share of the rows
SAME_TEXT = 0.9999  # cosine of two vectors that one model makes of a text
NUM_NEIGHBOURS = 10
NUM_QUERIES = 1000  # whose neighbours are looked for
SLICE = 256  # rows compared at once


@dataclass(frozen=True)
class Figures:
    """Differences between the stored and the new vectors of a sample. Rows are named by their
    places in it."""

    num_rows: int
    width: int
    dtype: str  # of the stored vectors
    different: list[int]  # rows whose bits differ
    largest_difference: float  # of two numbers
    largest_difference_row: int
    largest_value: float
    smallest_cosine: float
    mean_cosine: float
    shortest: float  # length of a new vector by that of the stored one
    longest: float
    num_zero: int  # stored vectors of zeros only
    of_other_rows: float  # share of the rows whose stored vector is the new one of another row
    num_neighbours: int  # fewer than NUM_NEIGHBOURS where there are not more rows; zeros have none
    neighbours_shared: float | None  # mean over rows; None where there are none

    @property
    def relative_difference(self) -> float:
        return self.largest_difference / self.largest_value if self.largest_value else 0.0


def compare(stored: NDArray[Any], new: NDArray[Any]) -> Figures:
    """[n, width] both."""
    dtype = stored.dtype.name
    if dtype == "float64":  # a server computes no more digits than float32's
        stored = stored.astype(np.float32)
    if stored.dtype == np.float16:  # new ones rounded to what they can hold
        with np.errstate(over="ignore"):
            new = new.astype(np.float16)
    differences, cosines, ratios = by_row(stored, new)
    worst = int(differences.argmax())
    not_zero = stored.any(1) & new.any(1)
    num_neighbours = max(0, min(NUM_NEIGHBOURS, int(not_zero.sum()) - 1))
    return Figures(
        num_rows=len(stored),
        width=stored.shape[1],
        dtype=dtype,
        different=np.flatnonzero((_bits(stored) != _bits(new)).any(1)).tolist(),
        largest_difference=float(differences[worst]),
        largest_difference_row=worst,
        largest_value=float(max(np.abs(side.astype(np.float64)).max() for side in (stored, new))),
        smallest_cosine=float(cosines.min()),
        mean_cosine=mean(cosines),
        shortest=float(ratios.min()),
        longest=float(ratios.max()),
        num_zero=int((~stored.any(1)).sum()),
        of_other_rows=_of_other_rows(stored, new, np.flatnonzero(cosines <= SAME_TEXT)),
        num_neighbours=num_neighbours,
        neighbours_shared=neighbours_shared(stored[not_zero], new[not_zero], num_neighbours),
    )


def verdict(figures: Figures) -> Verdict:
    """Judges by the number of rows that differ, and by how much they do."""
    if not figures.different:
        return "bit-equal"
    if figures.of_other_rows >= SOME:
        return "other rows"
    is_float = figures.dtype in ROUNDING
    limit = ROUNDING[figures.dtype] * figures.largest_value if is_float else STEPS
    same_direction = figures.smallest_cosine > SAME_DIRECTION
    is_rounding = same_direction and figures.largest_difference <= limit
    # rounding changes every float32 vector, but not every vector of fewer bits
    may_be_rounding = is_rounding and figures.dtype not in ("float32", "float64")
    num_equal = figures.num_rows - len(figures.different)
    if num_equal >= SOME * figures.num_rows and not may_be_rounding:
        return "some rows"
    if is_rounding:
        return "rounding"
    if same_direction and max(abs(figures.shortest - 1), abs(figures.longest - 1)) > SAME_LENGTH:
        return "scaled"
    return "approximation" if figures.smallest_cosine > APPROXIMATION else "other vectors"


def _bits(vectors: NDArray[Any]) -> NDArray[Any]:
    """The bits of each number as an unsigned integer, so that 0 and -0 differ."""
    return np.ascontiguousarray(vectors).view(f"u{vectors.dtype.itemsize}")


def by_row(
    stored: NDArray[Any], new: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """For each row the largest difference, the cosine, and the ratio of the new length to the
    stored one, `[n]` each."""
    parts = []
    for start in range(0, len(stored), SLICE):
        a, b = (side[start : start + SLICE].astype(np.float64) for side in (stored, new))
        of_a, of_b = lengths(a)[:, 0], lengths(b)[:, 0]
        product = of_a * of_b
        equal = (a == b).all(1)
        # of two zero vectors 1, of a zero vector and another 0
        cosines = np.where(equal, 1.0, dots(a, b)[:, 0] / np.where(product, product, 1))
        ratios = np.where(equal, 1.0, of_b / np.where(of_a, of_a, 1))
        parts.append((np.abs(a - b).max(1), cosines, ratios))
    differences, cosines, ratios = map(np.concatenate, zip(*parts, strict=True))
    return differences, cosines, ratios


def _of_other_rows(stored: NDArray[Any], new: NDArray[Any], unlike: NDArray[np.int64]) -> float:
    """Share of all rows. unlike: those whose own new vector is another one."""
    if not len(unlike):
        return 0.0
    sample = unlike[_spread(len(unlike))]
    new_directions, num_equal = directions(new), 0
    for start in range(0, len(sample), SLICE):
        cosines = products(directions(stored[sample[start : start + SLICE]]), new_directions)
        num_equal += int((cosines.max(1) > SAME_TEXT).sum())
    return num_equal / len(sample) * len(unlike) / len(stored)


def _spread(number: int) -> NDArray[np.int64]:
    """At most NUM_QUERIES of so many places, evenly."""
    return np.linspace(0, number - 1, min(NUM_QUERIES, number)).astype(np.int64)


def neighbours_shared(stored: NDArray[Any], new: NDArray[Any], number: int) -> float | None:
    """The share of each row's nearest neighbours by cosine that both sides have, on average."""
    if not number:
        return None
    sides = [directions(stored), directions(new)]
    queries, num_shared = _spread(len(stored)), 0
    for start in range(0, len(queries), SLICE):
        rows, nearest = queries[start : start + SLICE], list[Nearest]()
        for side in sides:
            cosines = products(side[rows], side)
            cosines[np.arange(len(rows)), rows] = -np.inf  # itself is left out
            nearest.append(Nearest(len(rows), number))
            nearest[-1].add(0, cosines)
        num_shared += int(np.count_nonzero(overlap(*(side.rows for side in nearest))))
    return num_shared / (number * len(queries))


def directions(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """The vectors scaled to length 1. Zero vectors stay zero."""
    floats = vectors.astype(np.float32)
    divisors = lengths(floats)
    return np.divide(floats, np.where(divisors, divisors, 1), dtype=np.float32)


def products(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosines of directions, `[n, w]` and `[m, w]` -> `[n, m]`, to find which are near."""
    return a @ b.T


class Nearest:
    """The nearest rows of some queries, while rows come in blocks. Nothing else is kept."""

    def __init__(self, num_queries: int, number: int) -> None:
        self._number = number
        self.rows = np.empty((num_queries, 0), np.int64)  # [queries, number], in no order
        self.scores: list[NDArray[np.float32]] = []  # the same, for each matrix that is added

    def add(self, first_row: int, *scores: NDArray[np.float32]) -> None:
        """scores: `[queries, rows of the block]`. By the first of them rows are near; what the
        others say of these rows is kept."""
        of_block = np.arange(first_row, first_row + scores[0].shape[1])
        rows = np.concatenate([self.rows, np.broadcast_to(of_block, scores[0].shape)], 1)
        before = self.scores or [np.empty((len(rows), 0), np.float32)] * len(scores)
        joined = [np.concatenate(pair, 1) for pair in zip(before, scores, strict=True)]
        if rows.shape[1] > self._number:
            columns = np.argpartition(-joined[0], self._number - 1, axis=1)[:, : self._number]
            rows, *joined = (np.take_along_axis(matrix, columns, 1) for matrix in (rows, *joined))
        self.rows, self.scores = rows, joined


def overlap(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tells which rows of each line of `a` `[n, k]` are in `b`'s line, in their order."""
    is_in_both: NDArray[np.bool_] = (a[:, :, None] == b[:, None, :]).any(2)
    return is_in_both


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Spearman's, of the lines of two matrices `[n, k]` -> `[n]`. Not a number for k = 1."""
    ranks = [side.argsort(1, kind="stable").argsort(1) for side in (a, b)]
    gaps, k = (ranks[0] - ranks[1]).astype(np.float64), a.shape[1]
    with np.errstate(invalid="ignore"):
        return 1 - 6 * dots(gaps, gaps)[:, 0] / np.float64(k * (k * k - 1))


def mean(values: NDArray[np.float64]) -> float:
    """The mean of `[n]`, at least one."""
    return float(row_sums(values[None])[0, 0] / len(values))
