"""A caller's sequences -> the batch of real tokens, and the caller's layout.

Knows lists and arrays, no bodies.
"""

from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Batch, Ints, Padding, offsets_of
from addnorm.service.errors import InvalidInput

BLOCK = 65_536


def from_lists(
    input_ids: list[list[int]],
    attention_mask: list[list[int]] | None = None,
    token_type_ids: list[list[int]] | None = None,
    field: str = "input_ids",
) -> tuple[Batch, Padding]:
    """A body's lists -> the batch of real tokens, and the caller's layout. InvalidInput names what
    does not fit.

    field: the caller's name for input_ids.
    """
    if not input_ids:
        raise InvalidInput(f"{field} is empty: send at least one sequence", param=field)
    sizes = list(map(len, input_ids))
    if not all(sizes):
        raise _invalid(field, sizes.index(0), "is empty: a sequence has at least one token")
    if attention_mask is not None:
        if sizes.count(sizes[0]) < len(sizes):
            row = next(row for row, size in enumerate(sizes) if size != sizes[0])
            raise _invalid(
                "input_ids",
                row,
                f"has {sizes[row]} tokens, row 0 has {sizes[0]}: rows under a mask are of one"
                " length",
            )
        _check_same_shape("attention_mask", attention_mask, sizes)
    if token_type_ids is not None:
        _check_same_shape("token_type_ids", token_type_ids, sizes)
    num = sum(sizes)
    mask = None if attention_mask is None else _flatten("attention_mask", attention_mask, num)
    tokens = _flatten(field, input_ids, num, mask)
    types = None
    if token_type_ids is not None:
        types = _flatten("token_type_ids", token_type_ids, num, mask)
    if mask is None:
        lengths = np.array(sizes)
        return Batch(tokens, offsets_of(lengths), types), Padding(lengths, None)
    shape = (len(input_ids), sizes[0])
    return from_grid(
        tokens.reshape(shape),
        mask.reshape(shape),
        None if types is None else types.reshape(shape),
    )


def from_rows(
    tokens: Ints, lengths: Ints, token_type_ids: NDArray[Any] | None = None
) -> tuple[Batch, Padding]:
    """Sequences end to end, none empty -> a batch. InvalidInput unless the lengths add up."""
    if not len(lengths) or (lengths < 1).any():
        raise InvalidInput(
            "lengths has an empty sequence, or none at all: each has at least one token",
            param="lengths",
        )
    # in two halves: the sum may exceed 64 bits
    total = (int((lengths >> 32).sum()) << 32) + int((lengths & 0xFFFFFFFF).sum())
    if total != len(tokens):
        raise InvalidInput(
            f"lengths sum to {total}, input_ids has {len(tokens)} tokens", param="lengths"
        )
    types = None
    if token_type_ids is not None:
        _check_same_axes("token_type_ids", token_type_ids, tokens)
        types = token_type_ids.astype(np.int64, copy=False)
    return Batch(tokens, offsets_of(lengths), types), Padding(lengths, None)


def from_grid(
    input_ids: Ints, attention_mask: NDArray[Any], token_type_ids: NDArray[Any] | None = None
) -> tuple[Batch, Padding]:
    """Each `[num_rows, seq]` -> the batch of real tokens, and the caller's layout. InvalidInput
    unless mask and types fit."""
    if not input_ids.size:
        raise InvalidInput(
            f"input_ids has shape {list(input_ids.shape)}: send at least one sequence of one token",
            param="input_ids",
        )
    _check_same_axes("attention_mask", attention_mask, input_ids)
    mask = attention_mask != 0
    if np.count_nonzero(odd := attention_mask != mask):
        row, column = np.argwhere(odd)[0]
        raise _invalid(
            "attention_mask",
            row,
            f"[{column}] is {attention_mask[row, column]}: 0 (pad) or 1 (real token)",
        )
    types = None
    if token_type_ids is not None:
        _check_same_axes("token_type_ids", token_type_ids, input_ids)
        types = token_type_ids[mask].astype(np.int64, copy=False)
    lengths = mask.sum(1)
    return Batch(input_ids[mask], offsets_of(lengths[lengths > 0]), types), Padding(lengths, mask)


def _invalid(field: str, row: int, message: str) -> InvalidInput:
    joint = "" if message.startswith("[") else " "
    return InvalidInput(f"{field}[{row}]{joint}{message}", param=field)


def _check_same_axes(field: str, array: NDArray[Any], input_ids: Ints) -> None:
    if array.shape != input_ids.shape:
        raise InvalidInput(
            f"{field} has shape {list(array.shape)}, input_ids has {list(input_ids.shape)}",
            param=field,
        )


def _check_same_shape(field: str, rows: list[list[int]], sizes: list[int]) -> None:
    """sizes: of the rows of input_ids."""
    if len(rows) != len(sizes):
        raise InvalidInput(f"{field} has {len(rows)} rows, input_ids has {len(sizes)}", param=field)
    for row, (values, size) in enumerate(zip(rows, sizes, strict=True)):
        if len(values) != size:
            raise _invalid(field, row, f"has {len(values)} values, input_ids[{row}] has {size}")


def _flatten(field: str, rows: list[list[int]], num: int, mask: Ints | None = None) -> Ints:
    """Lists of so many values end to end as int64. Where `mask` is 0 a value may be any integer."""
    try:
        values, flat = chain.from_iterable(rows), np.empty(num, np.int64)
        # in blocks: a single call would hold the interpreter's lock for all values
        for start in range(0, num, BLOCK):
            end = min(num, start + BLOCK)
            flat[start:end] = np.fromiter(values, np.int64, end - start)
        return flat
    except OverflowError:
        small = [[value if -(2**63) <= value < 2**63 else None for value in row] for row in rows]
    for row, cells in enumerate(small):
        for column, value in enumerate(cells):
            if value is None and (mask is None or mask[row * len(cells) + column]):
                raise _invalid(
                    field, row, f"[{column}] is {rows[row][column]}: outside 64-bit integers"
                )
    return _flatten(field, [[value or 0 for value in row] for row in small], num)
