"""Batch: sequences end to end. Rows: the results for each token. Padding: the caller's layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.manifest import Pooling

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


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

    def on_host(self) -> "Rows":
        """Itself: see `DeviceRows`."""
        return self

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
        """Rows start to end, which are those of whole sequences."""
        ...

    def pooled(self, pooling: Pooling) -> Floats:
        """A vector for each sequence `[num_sequences, d_model]`, finite or not."""
        ...

    def not_finite(self) -> str | None: ...
    def on_host(self) -> Rows: ...


AnyRows = Rows | DeviceRows


class Grid(NamedTuple):
    """The inputs of a session, each `[num_sequences, seq]`."""

    input_ids: Ints
    attention_mask: Ints
    token_type_ids: Ints | None = None  # None: all 0

    def by_name(self) -> dict[str, Ints]:
        """Without token_type_ids if they are all 0."""
        return {name: cells for name, cells in self._asdict().items() if cells is not None}


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of real tokens end to end, none of them empty."""

    tokens: Ints  # [num_tokens]
    offsets: Ints  # [num_sequences + 1], offsets[0] = 0
    types: Ints | None = None  # [num_tokens] token types; None: all 0

    @classmethod
    def of(cls, sequences: Sequence[Ints], types: Sequence[Ints] | None = None) -> Self:
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
            np.zeros(len(own), np.int64)
            if batch.types is None
            else batch.types[batch.offsets[i] : batch.offsets[i + 1]]
            for own, (batch, i) in zip(tokens, sequences, strict=True)
        ]
        return cls.of(tokens, types)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

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
        tokens = np.zeros(mask.shape, np.int64)
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

    @property
    def num_empty_rows(self) -> int:
        """Rows of pads only."""
        return len(self.lengths) - int(np.count_nonzero(self.lengths))

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
        return _place(self.lengths > 0, values, fill) if self.num_empty_rows else values


def _place(mask: NDArray[np.bool_], values: NDArray[Any], fill: float) -> NDArray[Any]:
    """values `[n, w]` at the n places of the mask, `fill` at the others."""
    shape = (mask.size, values.shape[1])
    grid = np.full(shape, fill, values.dtype) if fill else np.zeros(shape, values.dtype)
    grid[np.flatnonzero(mask)] = values
    return grid.reshape(*mask.shape, -1)


def all_finite(values: NDArray[Any]) -> bool:
    """Neither NaN nor infinity. Of few values `all` would take twice as long."""
    return int(np.count_nonzero(np.isfinite(values))) == values.size


def offsets_of(lengths: Ints) -> Ints:
    """Where each sequence begins, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets
