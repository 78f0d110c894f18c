"""Batch: sequences end to end. Rows: the results for each token. Padding: the caller's layout."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from addnorm.service.errors import InvalidInput

BLOCK = 65_536
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Rows(NamedTuple):
    """What the network computes: one row per token, for n tokens in the order of their batch."""

    activations: Floats  # [n, d_model]
    norm_mean: Floats  # [n, n_norms]
    norm_rstd: Floats  # [n, n_norms]

    def span(self, start: int, end: int) -> "Rows":
        """Rows start to end, not copied."""
        return Rows(
            self.activations[start:end], self.norm_mean[start:end], self.norm_rstd[start:end]
        )

    def allocate(self, num_rows: int) -> "Rows":
        """So many rows of the same widths, not yet written."""
        return Rows(*(np.empty((num_rows, part.shape[1]), part.dtype) for part in self))

    def not_finite(self) -> str | None:
        """The name of the first output that holds NaN or infinity."""
        mean, rstd = np.isfinite(self.norm_mean).all(), np.isfinite(self.norm_rstd).all()
        if mean and rstd and np.isfinite(self.activations).all():
            return None
        return next(
            name
            for name, part in zip(self._fields, self, strict=True)
            if not np.isfinite(part).all()
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of real tokens end to end, none of them empty."""

    tokens: Ints  # [num_tokens]
    offsets: Ints  # [num_sequences + 1], offsets[0] = 0

    @classmethod
    def of(cls, sequences: Sequence[Ints]) -> Self:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        return cls(
            np.concatenate(sequences) if sequences else np.empty(0, np.int64), _offsets(lengths)
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Ints:
        return self.offsets[1:] - self.offsets[:-1]

    def sequence(self, index: int) -> Ints:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def grid(self) -> tuple[Ints, Ints]:
        """What a session takes: input_ids and attention_mask `[num_sequences, longest]`, padded on
        the right."""
        lengths = self.lengths
        mask = np.arange(lengths.max()) < lengths[:, None]
        input_ids = np.zeros(mask.shape, np.int64)
        input_ids[mask] = self.tokens
        return input_ids, mask.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Padding:
    """The caller's layout: where its grid holds real tokens. A ragged request has no grid: `mask`
    is None."""

    lengths: Ints  # [num_rows] real tokens in each of the caller's rows, 0 allowed
    mask: NDArray[np.bool_] | None  # [num_rows, seq]

    @property
    def num_pads(self) -> int:
        return 0 if self.mask is None else int(self.mask.size - self.lengths.sum())

    def row_of(self, sequence: int) -> int:
        """The caller's row of a sequence of the batch. They differ where the caller sent rows of
        pads only."""
        return int(np.flatnonzero(self.lengths)[sequence])

    def scatter(self, values: NDArray[Any], fill: float = 0.0) -> NDArray[Any] | list[NDArray[Any]]:
        """Values of each token `[num_tokens, w]` -> the caller's `[num_rows, seq, w]`, with `fill`
        at pads.

        Ragged: a `[length, w]` for each row. Not copied where there are no pads.
        """
        if self.mask is None:
            return [values[start:end] for start, end in pairwise(_offsets(self.lengths).tolist())]
        if not self.num_pads:
            return values.reshape(*self.mask.shape, -1)
        return _placed(self.mask, values, fill)

    def scatter_rows(self, values: NDArray[Any], fill: float = 0.0) -> NDArray[Any]:
        """Values of each sequence `[num_sequences, w]` -> `[num_rows, w]`, with `fill` for rows of
        pads only."""
        real = self.lengths > 0
        return values if real.all() else _placed(real, values, fill)


def _placed(mask: NDArray[np.bool_], values: NDArray[Any], fill: float) -> NDArray[Any]:
    """values `[n, w]` at the n places of the mask, `fill` at the others."""
    shape = (mask.size, values.shape[1])
    grid = np.full(shape, fill, values.dtype) if fill else np.zeros(shape, values.dtype)
    grid[np.flatnonzero(mask)] = values
    return grid.reshape(*mask.shape, -1)


def from_lists(
    input_ids: list[list[int]], attention_mask: list[list[int]] | None, field: str = "input_ids"
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
    lengths = np.array(sizes)
    if attention_mask is None:
        return Batch(_flat(field, input_ids, lengths), _offsets(lengths)), Padding(lengths, None)
    _same_shape(lengths, attention_mask)
    shape = (len(input_ids), int(lengths[0]))
    mask = _flat("attention_mask", attention_mask, lengths).reshape(shape)
    return from_grid(_flat("input_ids", input_ids, lengths, mask.reshape(-1)).reshape(shape), mask)


def from_rows(tokens: Ints, lengths: Ints) -> tuple[Batch, Padding]:
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
    return Batch(tokens, _offsets(lengths)), Padding(lengths, None)


def from_grid(input_ids: Ints, attention_mask: NDArray[Any]) -> tuple[Batch, Padding]:
    """Both `[num_rows, seq]` -> the batch of real tokens, and the caller's layout. InvalidInput
    unless the mask fits."""
    if not input_ids.size:
        raise InvalidInput(
            f"input_ids has shape {list(input_ids.shape)}: send at least one sequence of one token",
            param="input_ids",
        )
    if attention_mask.shape != input_ids.shape:
        raise InvalidInput(
            f"attention_mask has shape {list(attention_mask.shape)},"
            f" input_ids has {list(input_ids.shape)}",
            param="attention_mask",
        )
    if (odd := (attention_mask != 0) & (attention_mask != 1)).any():
        row, column = np.argwhere(odd)[0]
        raise _invalid(
            "attention_mask",
            row,
            f"[{column}] is {attention_mask[row, column]}: 0 (pad) or 1 (real token)",
        )
    mask = attention_mask != 0
    lengths = mask.sum(1)
    return Batch(input_ids[mask], _offsets(lengths[lengths > 0])), Padding(lengths, mask)


def _offsets(lengths: Ints) -> Ints:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets


def _invalid(field: str, row: int, message: str) -> InvalidInput:
    joint = "" if message.startswith("[") else " "
    return InvalidInput(f"{field}[{row}]{joint}{message}", param=field)


def _same_shape(lengths: Ints, attention_mask: list[list[int]]) -> None:
    if (lengths != lengths[0]).any():
        row = int((lengths != lengths[0]).argmax())
        raise _invalid(
            "input_ids",
            row,
            f"has {lengths[row]} tokens, row 0 has {lengths[0]}:"
            " rows under a mask are of one length",
        )
    if len(attention_mask) != len(lengths):
        raise InvalidInput(
            f"attention_mask has {len(attention_mask)} rows, input_ids has {len(lengths)}",
            param="attention_mask",
        )
    for row, padding in enumerate(attention_mask):
        if len(padding) != lengths[0]:
            raise _invalid(
                "attention_mask",
                row,
                f"has {len(padding)} values, input_ids[{row}] has {lengths[0]}",
            )


def _from_values(values: Iterator[int], num: int) -> Ints:
    """In blocks: a single call would hold the interpreter's lock for all values."""
    flat = np.empty(num, np.int64)
    for start in range(0, num, BLOCK):
        end = min(num, start + BLOCK)
        flat[start:end] = np.fromiter(values, np.int64, end - start)
    return flat


def _flat(field: str, rows: list[list[int]], lengths: Ints, mask: Ints | None = None) -> Ints:
    """Lists end to end as int64. Where `mask` is 0 a value may be any integer."""
    try:
        return _from_values(chain.from_iterable(rows), int(lengths.sum()))
    except OverflowError:
        small = [[value if -(2**63) <= value < 2**63 else None for value in row] for row in rows]
    for row, values in enumerate(small):
        for column, value in enumerate(values):
            if value is None and (mask is None or mask[row * len(values) + column]):
                raise _invalid(
                    field, row, f"[{column}] is {rows[row][column]}: outside 64-bit integers"
                )
    return _flat(field, [[value or 0 for value in row] for row in small], lengths)
