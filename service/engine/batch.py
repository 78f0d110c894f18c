"""Batch: sequences end to end. Rows: the results for each token. Padding: the caller's layout. A
caller's sequences become batch and layout at the end of the page. Knows lists and arrays, no
bodies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.manifest import Pooling, RowKind
from addnorm.service.errors import InvalidInput

BLOCK = 65_536  # numbers of lists that are read, or freed, by one call
INT64 = range(-(2**63), 2**63)
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Tokens = NDArray[
    Any
]  # ids, int64 `[...]`; or vectors that stand for tokens, float32 `[..., width]`


class Rows(NamedTuple):
    """Rows that the network computes: one per token, for n tokens in the order of their batch."""

    activations: Floats  # [n, d_model]
    norm_mean: Floats  # [n, n_norms]
    norm_rstd: Floats  # [n, n_norms]

    def span(self, start: int, end: int) -> "Rows":
        """Rows start to end, not copied."""
        return Rows(
            self.activations[start:end], self.norm_mean[start:end], self.norm_rstd[start:end]
        )

    @property
    def num_tokens(self) -> int:
        assert len(self.activations) == len(self.norm_mean) == len(self.norm_rstd)
        return len(self.activations)

    def on_host(self, kind: RowKind = "every") -> "Rows":
        """Itself, or what outputs of this kind need: see `DeviceRows`."""
        if kind not in ("activations", "halves"):
            return self
        activations: NDArray[Any] = self.activations
        if kind == "halves":
            with np.errstate(over="ignore"):  # beyond float16: infinite
                activations = activations.astype(np.float16, copy=False)
        return Rows(activations, self.norm_mean[:, :0], self.norm_rstd[:, :0])

    def allocate(self, num_rows: int) -> "Rows":
        """So many rows of the same widths, not yet written."""
        return Rows(*(np.empty((num_rows, part.shape[1]), part.dtype) for part in self))

    def not_finite(self) -> str | None:
        """The name of the first output that holds NaN or infinity."""
        for name, part in zip(self._fields, self, strict=True):
            if not all_finite(part):
                return name
        return None


class DeviceRows(Protocol):
    """A row per token of some sequences, where it was computed: `cuda/gpu_engine.py`."""

    @property
    def num_tokens(self) -> int: ...
    def span(self, start: int, end: int) -> "DeviceRows":
        """Rows start to end, which belong to whole sequences."""
        ...

    def pool(self, pooling: Pooling) -> Floats:
        """A vector for each sequence `[num_sequences, d_model]`, finite or not."""
        ...

    def not_finite(self) -> str | None: ...
    def on_host(self, kind: RowKind = "every") -> Rows:
        """kind: "activations" and "halves" leave the other parts on the device."""
        ...


AnyRows = Rows | DeviceRows


class Grid(NamedTuple):
    """The inputs of a session, each `[num_sequences, seq]`."""

    input_ids: Tokens
    attention_mask: Ints
    token_type_ids: Ints | None = None  # None: all 0

    def by_name(self) -> dict[str, Ints]:
        """Without token_type_ids if they are all 0."""
        return {name: cells for name, cells in self._asdict().items() if cells is not None}


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of real tokens end to end, none of them empty."""

    tokens: Tokens  # [num_tokens], or [num_tokens, width] of vectors
    offsets: Ints  # [num_sequences + 1], offsets[0] = 0
    types: Ints | None = None  # [num_tokens] token types; None: all 0

    @classmethod
    def of(cls, sequences: Sequence[Tokens], types: Sequence[Ints] | None = None) -> Self:
        """types: of the tokens of each sequence."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        return cls(
            np.concatenate(sequences) if sequences else np.empty(0, np.int64),
            offsets_of(lengths),
            None if types is None else np.concatenate(types),
        )

    @classmethod
    def joined(cls, sequences: Sequence[tuple["Batch", int]]) -> Self:
        """Sequences of other batches, each by its index there."""
        tokens = [batch.tokens[batch.offsets[i] : batch.offsets[i + 1]] for batch, i in sequences]
        if all(batch.types is None for batch, _ in sequences):
            return cls.of(tokens)
        types = [
            np.zeros(len(sequence), np.int64)
            if batch.types is None
            else batch.types[batch.offsets[i] : batch.offsets[i + 1]]
            for sequence, (batch, i) in zip(tokens, sequences, strict=True)
        ]
        return cls.of(tokens, types)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def field(self) -> Literal["input_ids", "inputs"]:
        """A request's name for such tokens."""
        return "input_ids" if self.tokens.ndim == 1 else "inputs"

    @property
    def lengths(self) -> Ints:
        return self.offsets[1:] - self.offsets[:-1]

    def sequence(self, index: int) -> "Batch":
        """A batch of this sequence alone."""
        return Batch.joined([(self, index)])

    def grid(self, width: int | None = None) -> Grid:
        """Padded on the right to `width` tokens; to the longest sequence if None."""
        lengths = self.lengths
        mask = np.arange(width or lengths.max()) < lengths[:, None]
        tokens = np.zeros((*mask.shape, *self.tokens.shape[1:]), self.tokens.dtype)
        tokens[mask] = self.tokens
        types = None
        if self.types is not None:
            types = np.zeros(mask.shape, np.int64)
            types[mask] = self.types
        return Grid(tokens, mask.astype(np.int64), types)


@dataclass(frozen=True, eq=False)
class Padding:
    """The caller's layout: where its grid holds real tokens. A ragged request has no grid: `mask`
    is None."""

    lengths: Ints  # [num_rows] real tokens in each of the caller's rows, 0 allowed
    mask: NDArray[np.bool_] | None  # [num_rows, seq]

    @property
    def num_pads(self) -> int:
        return 0 if self.mask is None else self.mask.size - sum(self.lengths.tolist())

    def row_of(self, sequence: int) -> int:
        """The caller's row of a sequence of the batch. They differ where the caller sent rows of
        pads only."""
        return int(np.flatnonzero(self.lengths)[sequence])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Values of each token `[num_tokens, w]` -> a `[length, w]` for each row, not copied."""
        return [values[start:end] for start, end in pairwise(offsets_of(self.lengths).tolist())]

    def scatter(self, values: NDArray[Any], fill: float = 0.0) -> NDArray[Any]:
        """Values of each token `[num_tokens, w]` -> the grid's `[num_rows, seq, w]`, with `fill` at
        pads. Not copied where there are none."""
        assert self.mask is not None
        if not self.num_pads:
            return values.reshape(*self.mask.shape, -1)
        return _place(self.mask, values, fill)

    def scatter_rows(self, values: NDArray[Any], fill: float = 0.0) -> NDArray[Any]:
        """Values of each sequence `[num_sequences, w]` -> `[num_rows, w]`, with `fill` for rows of
        pads only."""
        if len(values) == len(self.lengths):
            return values
        return _place(self.lengths > 0, values, fill)


def _place(mask: NDArray[np.bool_], values: NDArray[Any], fill: float) -> NDArray[Any]:
    """values `[n, w]` at the n places of the mask, `fill` at the others."""
    shape = (mask.size, values.shape[1])
    grid = np.full(shape, fill, values.dtype) if fill else np.zeros(shape, values.dtype)
    grid[np.flatnonzero(mask)] = values
    return grid.reshape(*mask.shape, -1)


def all_finite(values: NDArray[Any]) -> bool:
    """No value is NaN or infinity. On few values `all` would take twice as long."""
    return int(np.count_nonzero(np.isfinite(values))) == values.size


def offsets_of(lengths: Ints) -> Ints:
    """The index of each sequence's first token, and the number of all tokens."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets


def from_lists(
    input_ids: list[list[int]] | list[list[list[float]]],
    attention_mask: list[list[int]] | None = None,
    token_type_ids: list[list[int]] | None = None,
    field: str = "input_ids",
) -> tuple[Batch, Padding]:
    """A body's lists -> the batch of real tokens, and the caller's layout. InvalidInput names the
    value that does not fit.

    input_ids: or vectors in their place. field: the caller's name for them.
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
                field,
                row,
                f"has {sizes[row]} tokens, row 0 has {sizes[0]}: with a mask, all rows must have"
                " the same length",
            )
        _check_same_shape("attention_mask", attention_mask, sizes, field)
    if token_type_ids is not None:
        _check_same_shape("token_type_ids", token_type_ids, sizes, field)
    num = sum(sizes)
    mask = None if attention_mask is None else _flatten("attention_mask", attention_mask, num)
    if isinstance(input_ids[0][0], list):
        tokens: Tokens = _vectors(field, input_ids, num)
    else:
        tokens = _flatten(field, input_ids, num, mask)
    types = None
    if token_type_ids is not None:
        types = _flatten("token_type_ids", token_type_ids, num, mask)
    if mask is None:
        lengths = np.array(sizes)
        return Batch(tokens, offsets_of(lengths), types), Padding(lengths, None)
    shape = (len(input_ids), sizes[0])
    return from_grid(
        tokens.reshape(*shape, *tokens.shape[1:]),
        mask.reshape(shape),
        None if types is None else types.reshape(shape),
        field,
    )


def from_rows(
    tokens: Tokens,
    lengths: Ints,
    token_type_ids: NDArray[Any] | None = None,
    field: str = "input_ids",
) -> tuple[Batch, Padding]:
    """Sequences end to end, none empty -> a batch. InvalidInput unless the lengths add up."""
    if not len(lengths) or (lengths < 1).any():
        raise InvalidInput(
            "lengths has an empty sequence, or no sequences: each must have at least one token",
            param="lengths",
        )
    # in two halves: the sum may exceed 64 bits
    total = (int((lengths >> 32).sum()) << 32) + int((lengths & 0xFFFFFFFF).sum())
    if total != len(tokens):
        raise InvalidInput(
            f"lengths sum to {total}, {field} has {len(tokens)} tokens", param="lengths"
        )
    types = None
    if token_type_ids is not None:
        _check_same_axes("token_type_ids", token_type_ids, tokens.shape[:1], field)
        types = token_type_ids.astype(np.int64, copy=False)
    return Batch(tokens, offsets_of(lengths), types), Padding(lengths, None)


def from_grid(
    input_ids: Tokens,
    attention_mask: NDArray[Any],
    token_type_ids: NDArray[Any] | None = None,
    field: str = "input_ids",
) -> tuple[Batch, Padding]:
    """Each `[num_rows, seq]` -> the batch of real tokens, and the caller's layout. InvalidInput
    unless mask and types fit. field: the caller's name for input_ids, which may be vectors."""
    if not input_ids.size:
        raise InvalidInput(
            f"{field} has shape {list(input_ids.shape)}: send at least one sequence of one token",
            param=field,
        )
    grid = input_ids.shape[:2]
    _check_same_axes("attention_mask", attention_mask, grid, field)
    mask = attention_mask != 0
    if np.count_nonzero(is_wrong := attention_mask != mask):
        row, column = np.argwhere(is_wrong)[0]
        raise _invalid(
            "attention_mask",
            row,
            f"[{column}] is {attention_mask[row, column]}: it must be 0 (pad) or 1 (real token)",
        )
    types = None
    if token_type_ids is not None:
        _check_same_axes("token_type_ids", token_type_ids, grid, field)
        types = token_type_ids[mask].astype(np.int64, copy=False)
    lengths = mask.sum(1)
    return Batch(input_ids[mask], offsets_of(lengths[lengths > 0]), types), Padding(lengths, mask)


def _invalid(field: str, row: int, message: str) -> InvalidInput:
    joint = "" if message.startswith("[") else " "
    return InvalidInput(f"{field}[{row}]{joint}{message}", param=field)


def _check_same_axes(
    field: str, array: NDArray[Any], shape: tuple[int, ...], reference: str
) -> None:
    if array.shape != shape:
        raise InvalidInput(
            f"{field} has shape {list(array.shape)}, {reference} has {list(shape)}", param=field
        )


def _check_same_shape(field: str, rows: list[list[int]], sizes: list[int], reference: str) -> None:
    """sizes: of the rows of the field `reference`."""
    if len(rows) != len(sizes):
        raise InvalidInput(
            f"{field} has {len(rows)} rows, {reference} has {len(sizes)}", param=field
        )
    for row, (values, size) in enumerate(zip(rows, sizes, strict=True)):
        if len(values) != size:
            raise _invalid(field, row, f"has {len(values)} values, {reference}[{row}] has {size}")


def free(*lists: list[list[Any]] | None) -> None:
    """Empties a body's lists that nobody needs any more, in pieces. Whoever lets go of a large one
    as a whole holds the interpreter's lock until all of it is freed."""
    for row in chain.from_iterable(filter(None, lists)):
        while row:
            del row[-BLOCK:]
            checkpoint()


def _vectors(field: str, rows: list[list[list[float]]], num: int) -> Floats:
    """Lists of so many vectors end to end `[num, width]`. Numbers too large for float32 become
    infinite."""
    width = len(rows[0][0])
    for row, vectors in enumerate(rows):
        widths = list(map(len, vectors))
        if widths.count(width) < len(widths) or not width:
            column = next((at for at, size in enumerate(widths) if size != width), 0)
            raise _invalid(
                field,
                row,
                f"[{column}] has {widths[column]} numbers, {field}[0][0] has {width}: send one"
                " vector per token, all of the same width",
            )
    values = chain.from_iterable(chain.from_iterable(rows))
    flat = np.empty(num * width, np.float32)
    with np.errstate(over="ignore"):
        for start in range(0, len(flat), BLOCK):
            end = min(len(flat), start + BLOCK)
            flat[start:end] = np.fromiter(values, np.float64, end - start)
    return flat.reshape(num, width)


def _flatten(field: str, rows: list[list[int]], num: int, mask: Ints | None = None) -> Ints:
    """Lists of so many values end to end as int64. Where `mask` is 0 a value may be any integer."""
    values, flat = chain.from_iterable(rows), np.empty(num, np.int64)
    # in blocks: a single call would hold the interpreter's lock for all values
    for start in range(0, num, BLOCK):
        block = [*islice(values, BLOCK)]
        end = start + len(block)
        try:
            flat[start:end] = np.fromiter(block, np.int64, len(block))
        except OverflowError:
            fits = np.fromiter((value in INT64 for value in block), bool, len(block))
            is_wrong = ~fits if mask is None else ~fits & (mask[start:end] != 0)
            if is_wrong.any():
                index = int(is_wrong.argmax())
                ends = np.cumsum([*map(len, rows)])
                row = int(np.searchsorted(ends, start + index, "right"))
                column = start + index - int(ends[row]) + len(rows[row])
                raise _invalid(
                    field,
                    row,
                    f"[{column}] is {block[index]}, which is outside 64-bit integers",
                ) from None
            flat[start:end] = [value if fit else 0 for value, fit in zip(block, fits, strict=True)]
        checkpoint()
    return flat
