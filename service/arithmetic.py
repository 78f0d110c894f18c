"""Arithmetic around the graph, with the same bits on every processor. Knows no model.

IEEE 754 rounds + - * / and square roots in one way, so all functions here consist of these, element
by element, in a fixed order. numpy's exp, log, log1p, dot and matmul give different bits on each
kind of processor. tests/golden/arithmetic.json records what these functions give.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]  # float32 or float64
Float = TypeVar("Float", bound=np.floating[Any])

BLOCK = 2**15  # numbers whose exponentials are made at once: all of a step stays in a core's cache
LANES = 2**12  # columns that a row is folded to before they are added up: bits depend on it

LN_2 = 0.6931471805599453
LN_2_HIGH = 355 / 512  # few bits: its products with whole numbers up to 2^15 are exact in float32
LN_2_LOW = -2.1219444005469058277e-4  # ln 2 = LN_2_HIGH + LN_2_LOW
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # of float64: its exponent and fraction
# r coth(r / 2) = 2 + COTH_2 r^2 + COTH_4 r^4 within ln 2 / 2. With these two numbers the largest
# error is the smallest (Lawson's iteration): 5.2e-10 of e^r.
COTH_2, COTH_4 = 0.16666617671, -0.00276598250
LOWEST = {4: -87.0, 8: -708.0}  # by bytes of a float: exponentials below it are denormal
FRACTION_BITS = {4: 23, 8: 52}
UNSIGNED = {4: np.uint32, 8: np.uint64}


def exp(values: NDArray[Float]) -> NDArray[Float]:
    """The exponentials of values up to 0, of the same shape and dtype. float32 values below -87
    count as -87, float64 values below -708 as -708.

    e^x = 2^n e^r with n = round(x / ln 2) (Cody and Waite, Software Manual for the Elementary
    Functions, 1980, chapter 6). e^r is a quotient (FDLIBM, e_exp.c). The relative error is less
    than 6e-10 in float64, and 1.3 ulp in float32.
    """
    powers = np.array(values, order="C")
    flat = powers.reshape(-1)
    # of the steps: each would ask the system for its memory anew
    work = np.empty((3, min(powers.size, BLOCK)), powers.dtype)
    for start in range(0, flat.size, BLOCK):
        _exp_in_place(flat[start : start + BLOCK], work)
    return powers


def _exp_in_place(values: NDArray[Float], work: NDArray[Float]) -> None:
    """values: contiguous `[size]`. work: `[3, size or more]`."""
    powers, n, terms = work[:, : len(values)]
    size = values.itemsize
    if values.min() < LOWEST[size]:
        np.maximum(values, values.dtype.type(LOWEST[size]), out=values)
    # numbers as large as this have no fraction, so a sum with it is rounded to a whole number
    # beyond it, n + 1, which its lowest bits hold
    shift = (3 << FRACTION_BITS[size] - 1) + 1
    np.multiply(values, 1 / LN_2, out=powers)
    powers += shift
    np.subtract(powers, shift, out=n)
    values -= np.multiply(n, LN_2_HIGH, out=terms)
    values -= np.multiply(n, LN_2_LOW, out=terms)
    # half of e^r into r. e^r = 1 + 2r / (c - r) with c = r coth(r / 2) = 2 + r^2 / 6 - ...
    r, square = values, n
    np.multiply(r, r, out=square)
    np.multiply(square, COTH_4, out=terms)
    terms += COTH_2
    terms *= square
    terms -= r
    terms += 2
    r /= terms
    r += 0.5
    # added to the exponent's bits, n + 1 is a product with 2^(n + 1)
    bits = powers.view(UNSIGNED[size])
    bits <<= FRACTION_BITS[size]
    value_bits = values.view(bits.dtype)
    value_bits += bits


def log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithms of positive normal float64.

    log x = n ln 2 + 2 artanh(s) with s = (m - 1) / (m + 1), where x = 2^n m and m is within
    sqrt(1/2) and sqrt(2) (Cody and Waite, chapter 5). artanh is its series up to s^13: |s| < 0.172,
    so the relative error is less than 2e-12.
    """
    bits = values.view(np.int64)
    n = (bits - SQRT_HALF_BITS) >> FRACTION_BITS[8]
    m = (bits - (n << FRACTION_BITS[8])).view(np.float64)
    s = m - 1
    s /= m + 1
    square = s * s
    series = square * (1 / 13)
    for odd in (11, 9, 7, 5, 3):
        series += 1 / odd
        series *= square
    series += 1
    series *= s + s
    return n * LN_2 + series


def log1p(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + x) of finite x from 0 on, within 1 ulp.

    1 + x is rounded in float64. The quotient restores the part of x that was lost, which is all of
    a small x.
    """
    exact = values.astype(np.float64)
    total = 1 + exact
    return (log(total) + (exact - (total - 1)) / total).astype(np.float32)


def row_sums(values: NDArray[Float]) -> NDArray[Float]:
    """Sums of the rows, `[n, w]` -> `[n, 1]`. The right half is added to the left half until one
    column is left; if the width is odd, the last column is added to the first."""
    while (width := values.shape[1]) > 1:
        half = width // 2
        halves = values[:, :half] + values[:, half : 2 * half]
        if width % 2:
            halves[:, 0] += values[:, -1]
        values = halves
    return values


def dots(left: NDArray[Float], right: NDArray[Float]) -> NDArray[Float]:
    """Dot products of rows, `[n, w]` and `[n, w]` or `[w]` -> `[n, 1]`."""
    return row_sums(left * right)


def lengths(vectors: NDArray[Float]) -> NDArray[Float]:
    """Euclidean lengths of the rows, `[n, w]` -> `[n, 1]`; infinity where the squares overflow."""
    norms: NDArray[Float] = np.sqrt(row_sums(vectors * vectors))
    return norms


def add_rows(rows: NDArray[Float], out: NDArray[Float]) -> None:
    """The sum of `[n, w]` into `[w]`. Along the first axis numpy adds one row after the other."""
    np.add.reduce(rows, 0, out=out)


def weighted_mean(rows: NDArray[np.float32], weights: NDArray[np.int64]) -> NDArray[np.float32]:
    """The mean of rows `[n, w]` by their weights `[n]`, which are positive together -> `[w]`."""
    products, sums = rows.astype(np.float64) * weights[:, None], np.empty(rows.shape[1])
    add_rows(products, sums)
    return (sums / int(np.add.reduce(weights))).astype(np.float32)


def max_rows(rows: NDArray[Float], out: NDArray[Float]) -> None:
    """The largest value of each column of `[n, w]` into `[w]`. Processors differ in which of 0 and
    -0 they take: the result is 0."""
    np.maximum.reduce(rows, 0, out=out)
    out += 0.0


def log_sum_exp(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The logarithm of the sum of each row's exponentials, finite `[n, w]` -> `[n, 1]`. A row's
    bits do not depend on the others."""
    sums, largest = np.empty((len(logits), 1)), logits.max(1, keepdims=True)
    memory = np.empty((4, BLOCK), np.float32)
    width = logits.shape[1]
    num_lanes = min(LANES, width)
    num_rows = BLOCK // num_lanes  # so many that a block holds LANES columns
    for first in range(0, len(logits), num_rows):
        rows, row_max = logits[first : first + num_rows], largest[first : first + num_rows]
        # the exponentials: of every LANES-th column the sum, from left to right
        lanes = np.zeros((len(rows), num_lanes), np.float32)
        step = BLOCK // len(rows) // LANES * LANES or width  # of more rows, width is below LANES
        for start in range(0, width, step):
            columns = rows[:, start : start + step]
            flat = memory[0, : columns.size]
            values = flat.reshape(columns.shape)
            with np.errstate(over="ignore"):  # what is that far below the largest counts nothing
                np.subtract(columns, row_max, out=values)
            _exp_in_place(flat, memory[1:])
            for lane in range(0, columns.shape[1], LANES):
                part = values[:, lane : lane + LANES]
                lanes[:, : part.shape[1]] += part
        sums[first : first + num_rows] = row_sums(lanes)
    log_sums: NDArray[np.float32] = (log(sums) + largest).astype(np.float32)
    return log_sums
