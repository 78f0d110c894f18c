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
TIE = 1e-6  # relative; scores of equal vectors differ by less, as they stand in other blocks
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
    """The share of each row's nearest neighbours by cosine in `stored` that are so in `new`, on
    average."""
    if not number:
        return None
    sides = [directions(stored), directions(new)]
    queries, num_shared = _spread(len(stored)), 0
    for start in range(0, len(queries), SLICE):
        rows = queries[start : start + SLICE]
        a, b = (products(side[rows], side) for side in sides)
        for cosines in (a, b):
            cosines[np.arange(len(rows)), rows] = -np.inf  # itself is left out
        by_a, by_b = Nearest(len(rows), number), Nearest(len(rows), number)
        by_a.add(0, a)
        by_b.add(0, b, a)
        num_shared += int(shared(by_a, by_b).sum())
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


def shared(by_a: Nearest, by_b: Nearest) -> NDArray[np.int64]:
    """The number of each query's nearest by B that are as near by A as the last of A's nearest,
    `[n]`: of rows at equal distance it does not matter which of them B finds. by_b: with A's scores
    too."""
    number = by_b.rows.shape[1]
    last = -np.partition(-by_a.scores[0], number - 1, axis=1)[:, number - 1]
    return np.asarray(np.count_nonzero(_is_as_high(by_b.scores[1], last[:, None]), axis=1))


def is_best(scores: NDArray[Any], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks lines `[n, k]` whose score at a place is the highest, or equal to it."""
    chosen = np.take_along_axis(scores, places[:, None], 1)
    return _is_as_high(chosen, scores.max(1, keepdims=True))[:, 0]


def _is_as_high(scores: NDArray[Any], limits: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(scores >= limits - TIE * np.maximum(1, np.abs(limits)))


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Spearman's, of the lines of two matrices `[n, k]` -> `[n]`. Equal scores have one rank."""
    ranks = [_ranks(side) - (a.shape[1] - 1) / 2 for side in (a, b)]
    squares = [dots(side, side)[:, 0] for side in ranks]
    spread = np.sqrt(squares[0] * squares[1])
    all_equal = (squares[0] == 0) & (squares[1] == 0)
    products_of_ranks = dots(*ranks)[:, 0]
    return np.where(all_equal, 1.0, products_of_ranks / np.where(spread, spread, 1))


def _ranks(scores: NDArray[Any]) -> NDArray[np.float64]:
    """`[n, k]`, from 0. Those of equal scores are their mean."""
    order = scores.argsort(1, kind="stable")
    in_order = np.take_along_axis(scores, order, 1)
    is_new = ~_is_as_high(in_order[:, :-1], in_order[:, 1:])
    classes = np.cumsum(np.pad(is_new, ((0, 0), (1, 0))), axis=1)
    n, k = scores.shape
    flat = (classes + np.arange(n)[:, None] * k).ravel()
    sums = np.bincount(flat, np.tile(np.arange(k), n), n * k)
    means = sums / np.maximum(np.bincount(flat, minlength=n * k), 1)
    ranks = np.empty(scores.shape)
    np.put_along_axis(ranks, order, means[flat].reshape(n, k), 1)
    return ranks


def mean(values: NDArray[np.float64]) -> float:
    """The mean of `[n]`, at least one."""
    return float(row_sums(values[None])[0, 0] / len(values))
