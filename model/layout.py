"""Which positions of the caller's `[batch, seq]` grid are rows, and where attention puts these.

Everything in a transformer but attention works token by token, so the body runs on rows `[N, d]`.
A layout is made once per forward pass from `attention_mask`. B is the batch, S the grid's width, N
the number of rows. A cell is one place of a grid, numbered `row * S + column`. Both layouts use
operations that export to standard ONNX operators (NonZero, CumSum, Gather, Where).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# finite: minus infinity makes NaN where every key is masked, and 0 * NaN reaches neighbours
MASKED = -1e9


class Mask(NamedTuple):
    """Which keys a query sees on attention's grid, as ONNX's Attention takes it."""

    bias: Tensor | None  # [B or 1, H or 1, S, S] added to the scores; None: nothing is
    num_keys: Tensor | None  # [B] of each sequence the first so many keys are seen; None: all
    causal: bool  # whether a query sees no key after its own place

    def as_bias(self, seq: int) -> Tensor:
        """All of it as numbers to add to the scores, `[B or 1, H or 1, S, S]`."""
        bias = torch.zeros(1, 1, seq, seq) if self.bias is None else self.bias
        columns = torch.arange(seq, device=bias.device)
        if self.num_keys is not None:
            bias = bias + _bias(columns < self.num_keys[:, None])
        if self.causal:
            bias = bias + torch.where(columns <= columns[:, None], 0.0, MASKED)
        return bias


class Layout(Protocol):
    """What `Transformer.forward` and `Attention.forward` need to know of the grid."""

    position_ids: Tensor  # [N] place of each row among its sequence's real tokens, 0 for the first
    distances: (
        Tensor  # [B or 1, S, S] place of the key minus place of the query, on attention's grid
    )

    def gather(self, cells: Tensor) -> Tensor:
        """Caller's cells `[B, S]` -> rows `[N]`."""
        ...

    def to_grid(self, qkv: Tensor) -> Sequence[Tensor]:
        """Rows `[N, 3 * d]` of queries, keys, values -> three `[B, S, d]` on attention's grid."""
        ...

    def from_grid(self, context: Tensor) -> Tensor:
        """Attention's grid `[B, S, d]` -> rows `[N, d]`."""
        ...

    def attention_mask(self, causal: bool, relative: Tensor | None) -> Mask:
        """Queries see real keys only. relative: a bias `[B or 1, H, S, S]` that they see too."""
        ...

    def scatter(self, rows: Tensor) -> Tensor:
        """Rows `[N, w]` -> the caller's cells `[B, S, w]`, exact zeros at pads."""
        ...


class Padded:
    """Every cell is a row: the plain graph that most exports make, kept as the reference."""

    def __init__(self, attention_mask: Tensor) -> None:
        self.mask = attention_mask != 0  # [B, S]
        self.shape = attention_mask.shape
        positions = _positions(self.mask)
        self.position_ids = positions.reshape(-1)
        self.distances = positions[:, None, :] - positions[:, :, None]

    def gather(self, cells: Tensor) -> Tensor:
        return cells.reshape(-1)

    def to_grid(self, qkv: Tensor) -> Sequence[Tensor]:
        return qkv.reshape(*self.shape, -1).chunk(3, -1)

    def from_grid(self, context: Tensor) -> Tensor:
        return context.reshape(-1, context.shape[-1])

    def attention_mask(self, causal: bool, relative: Tensor | None) -> Mask:
        bias = _bias(self.mask)
        return Mask(bias if relative is None else bias + relative, None, causal)

    def scatter(self, rows: Tensor) -> Tensor:
        return torch.where(self.mask[:, :, None], rows.reshape(*self.shape, rows.shape[-1]), 0.0)


class Packed:
    """Only real tokens are rows; attention runs on a grid of its own, left-aligned.

    A real token's cell there is `sequence * S + position`. So wherever the caller put the pads,
    softmax adds the same numbers in the same order.

    The pads of attention's grid hold their own sequence's first token. A value that is not finite
    (NaN + MASKED is NaN, 0 * inf too) then stays within its sequence, which is lost anyway.

    Row 0 is a filler, a copy of the grid's first cell. It keeps N at least 2 where there is a token
    (a product of one row has other bits), and at least 1 where there is none. No sequence with a
    token reads it. The caller's pads do, and are overwritten.
    """

    def __init__(self, attention_mask: Tensor) -> None:
        batch, seq = self.shape = attention_mask.shape
        self.mask = attention_mask != 0  # [B, S]
        real = self.mask.to(torch.int64)
        lengths = real.sum(1, keepdim=True)  # [B, 1]
        columns = torch.arange(seq, device=real.device)[None, :]
        # [B] for attention: of a sequence without a token one pad is seen, not nothing
        self.num_keys = lengths.squeeze(1).clamp(min=1)
        self.distances = columns[:, None, :] - columns[:, :, None]

        flat = real.reshape(-1)
        filler = torch.zeros(1, dtype=torch.int64, device=real.device)
        # [N] the caller's cell of each row
        self.cells = torch.cat([filler, flat.nonzero().squeeze(1)])
        self.row_of_cell = flat.cumsum(0) * flat  # [B * S] 0 at pads

        positions = _positions(self.mask)  # [B, S]
        self.position_ids = self.gather(positions)
        # [B, 1] attention's cell of each sequence's first token
        first_cell = torch.arange(batch, device=real.device)[:, None] * seq
        self.grid_cells = self.gather(first_cell + positions)  # [N] attention's cell of each row
        before = lengths.cumsum(0) - lengths  # [B, 1] real tokens in the sequences above
        # [B, 1] row of each sequence's first token
        first_row = torch.where(lengths > 0, before + 1, 0)
        # [B * S] row of each of attention's cells
        real_cells = columns < lengths
        self.grid_rows = torch.where(real_cells, before + columns + 1, first_row).reshape(-1)

    def gather(self, cells: Tensor) -> Tensor:
        return cells.reshape(-1).index_select(0, self.cells)

    def to_grid(self, qkv: Tensor) -> Sequence[Tensor]:
        parts = qkv.reshape(-1, qkv.shape[-1] // 3)  # [3 * N, d], without a copy
        return [
            parts.index_select(0, 3 * self.grid_rows + i).reshape(*self.shape, -1) for i in range(3)
        ]

    def from_grid(self, context: Tensor) -> Tensor:
        return context.reshape(-1, context.shape[-1]).index_select(0, self.grid_cells)

    def attention_mask(self, causal: bool, relative: Tensor | None) -> Mask:
        """Pads come last, so a causal model's queries do not see them anyway."""
        return Mask(relative, None if causal else self.num_keys, causal)

    def scatter(self, rows: Tensor) -> Tensor:
        cells = rows.index_select(0, self.row_of_cell).reshape(*self.shape, rows.shape[-1])
        return torch.where(self.mask[:, :, None], cells, 0.0)


LAYOUTS: dict[str, Callable[[Tensor], Layout]] = {"packed": Packed, "padded": Padded}


def _positions(mask: Tensor) -> Tensor:
    """`[B, S]`. Positions count real tokens only, so padding anywhere means the same sequence."""
    return (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)


def _bias(keys: Tensor) -> Tensor:
    """keys: `[B, S]` bool, the cells that hold a real token. -> `[B, 1, S, S]`."""
    batch, seq = keys.shape
    return torch.where(keys[:, None, None, :].expand(batch, 1, seq, seq), 0.0, MASKED)
