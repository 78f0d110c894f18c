"""int8, uint8 and bits of vectors: the formula, its edges, and one row at a time."""

import numpy as np
import pytest

from addnorm.service.engine.outputs.pooled import DIMENSIONS, to_dtype
from addnorm.service.engine.outputs.values import VectorDType

RANGES = [[-1.0, 0.0, 2.0], [126.5, 255.0, 2.0]]  # the last has no width
HUGE = 3e38


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        ([-1, 0, 2], [0, 0, 0]),
        ([126.5, 255, 2], [255, 255, 0]),
        ([0.99, 127.99, 3], [3, 127, 1]),  # rounded down; steps of 1 where there is no width
        ([-1.1, -1, 1], [0, 0, 0]),
        ([126.6, 256, 300], [255, 255, 255]),
        ([HUGE, HUGE, HUGE], [255, 255, 255]),
        ([-HUGE, -HUGE, -HUGE], [0, 0, 0]),
    ],
)
def test_a_number_stands_on_its_step_and_never_wraps_around(
    vector: list[float], expected: list[int]
) -> None:
    floats = np.array([vector], np.float32)
    unsigned = to_dtype(floats, "uint8", RANGES)
    assert (unsigned.dtype, unsigned[0].tolist()) == (np.uint8, expected)
    signed = to_dtype(floats, "int8", RANGES)
    assert (signed.dtype, signed[0].tolist()) == (np.int8, [step - 128 for step in expected])


def test_bits_are_packed_from_the_highest_and_zero_is_not_above_zero() -> None:
    vector = np.array([[1, -1, 0, 2, -3, -4, -5, -6, 7, -8]], np.float32)
    assert to_dtype(vector, "ubinary", None).tolist() == [[0b10010000, 0b10000000]]
    signed = to_dtype(vector, "binary", None)
    assert (signed.dtype, signed.tolist()) == (np.int8, [[0b10010000 - 128, 0b10000000 - 128]])


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_each_row_is_made_alone(dtype: VectorDType) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 20)).astype(np.float32)
    ranges = [vectors.min(0).tolist(), vectors.max(0).tolist()]
    together = to_dtype(vectors, dtype, ranges)
    assert together.shape == (40, -(-20 // DIMENSIONS[dtype]))
    for row, expected in zip(vectors, together, strict=True):
        np.testing.assert_array_equal(to_dtype(row[None], dtype, ranges)[0], expected)
