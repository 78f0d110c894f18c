"""Verdicts by the size of what differs."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from addnorm.corpus.comparison import compare, verdict

DRAWS = np.random.default_rng(0)
VECTORS = DRAWS.normal(size=(60, 32)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def noisy(deviation: float, rows: slice = slice(None)) -> NDArray[np.float32]:
    changed = VECTORS.copy()
    noise = np.random.default_rng(1).normal(0, deviation, changed[rows].shape)
    changed[rows] += noise.astype(np.float32)
    return changed


# as large as those that were measured with trained models: docs/vector-indexes.md
CASES: dict[str, tuple[Any, Any, str]] = {
    "same": (VECTORS, VECTORS, "bit-equal"),
    "another program": (noisy(1e-7), VECTORS, "rounding"),
    "another precision": (noisy(4e-3), VECTORS, "approximation"),
    "another model": (noisy(0.3), VECTORS, "other vectors"),
    "not normalized": (VECTORS * 3, VECTORS, "scaled"),
    "rows backwards": (VECTORS[::-1], VECTORS, "other rows"),
    "one row inserted": (np.roll(VECTORS, 1, 0) * 2, VECTORS, "other rows"),
    "two rows exchanged": (VECTORS[[*range(5), 6, 5, *range(7, 60)]], VECTORS, "some rows"),
    "one vector of another model": (noisy(0.3, slice(7, 8)), VECTORS, "some rows"),
    "one vector rounded": (noisy(1e-7, slice(7, 8)), VECTORS, "some rows"),
    "float16": (VECTORS.astype(np.float16), VECTORS, "bit-equal"),
    "float16, another program": (noisy(1e-7).astype(np.float16), VECTORS, "rounding"),
    "float64": (VECTORS.astype(np.float64), VECTORS, "bit-equal"),
    "zeros of another sign": (-np.zeros_like(VECTORS), np.zeros_like(VECTORS), "rounding"),
}


@pytest.mark.parametrize(("stored", "new", "expected"), CASES.values(), ids=CASES)
def test_a_verdict_tells_differences_by_their_size(
    stored: NDArray[Any], new: NDArray[Any], expected: str
) -> None:
    assert verdict(compare(stored, new)) == expected


def test_whole_numbers_may_move_by_some_steps() -> None:
    stored = DRAWS.integers(-128, 127, (20, 384)).astype(np.int8)
    moved = stored.copy()
    moved[:, 0] += np.int8(1)
    assert verdict(compare(moved, stored)) == "rounding"
    assert verdict(compare(stored[:, ::-1], stored)) == "other vectors"


def test_neighbours_are_counted_by_hand() -> None:
    """25 points on a circle: the nearest of each are five on either side. Where every place is
    doubled, four of these ten are near again: those one and two places away."""
    angles = 2 * np.pi * np.arange(25) / 25
    stored, new = (np.stack([np.cos(a), np.sin(a)], 1) for a in (angles, 2 * angles))
    figures = compare(stored.astype(np.float32), new.astype(np.float32))
    assert (figures.num_neighbours, figures.neighbours_shared) == (10, 0.4)
    single = compare(VECTORS[:1], VECTORS[:1])
    assert (single.num_neighbours, single.neighbours_shared) == (0, None)


def test_a_zero_vector_is_no_error() -> None:
    stored = VECTORS.copy()
    stored[5] = 0
    figures = compare(stored, VECTORS)
    assert figures.smallest_cosine == 0
    assert figures.different == [5]
    assert compare(stored, stored).mean_cosine == 1
    assert (figures.num_zero, figures.num_neighbours) == (1, 10)
    assert figures.neighbours_shared == 1  # among the others


def test_zero_vectors_have_no_neighbours() -> None:
    figures = compare(np.zeros_like(VECTORS), VECTORS)
    assert verdict(figures) == "other vectors"
    assert figures.num_zero == len(VECTORS)
    assert (figures.num_neighbours, figures.neighbours_shared) == (0, None)


def test_the_share_of_vectors_of_other_rows_is_exact() -> None:
    exchanged = VECTORS.copy()
    exchanged[:3] = VECTORS[[1, 2, 0]]
    assert compare(exchanged, VECTORS).of_other_rows == pytest.approx(3 / 60)
    assert compare(noisy(0.3), VECTORS).of_other_rows == 0
    alike = VECTORS[[0] * 60]  # a row's own text counts, where another is equal
    assert compare(-alike, alike).of_other_rows == 0
