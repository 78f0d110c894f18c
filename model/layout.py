"""Positions of the caller's `[batch, seq]` grid are rows.

Everything in a transformer but attention works token by token, so the body runs on rows `[N, d]`.
A layout is made once per forward pass from `attention_mask`. B is the batch, S the grid's width, N
the number of rows. A cell is one place of a grid, numbered `row * S + column`. Both layouts use
operations that export to standard ONNX operators (NonZero, CumSum, Gather, Where).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from addnorm.model.grid import BLOCK, BandGrid, FullGrid, Grid, PaddedGrid, Sequences, TiledGrid


class Layout(Protocol):
    """The grid as `Transformer.forward` needs it."""

    position_ids: Tensor  # [N] place of each row among its sequence's real tokens, 0 for the first

    def gather(self, cells: Tensor) -> Tensor:
        """Caller's cells `[B, S]` -> rows `[N]`."""
        ...

    def grid(self, window: int, tiled: bool = False) -> Grid:
        """The rows as attention has them. window: 0, or the distance of the farthest keys seen.
        tiled: whether blocks list distances by column."""
        ...

    def scatter(self, rows: Tensor) -> Tensor:
        """Rows `[N, w]` -> the caller's cells `[B, S, w]`, exact zeros at pads."""
        ...


class Padded:
    """Every cell is a row: the plain graph that most exports make, kept as the reference."""

    def __init__(self, attention_mask: Tensor, block: int = 0) -> None:
        """block: without effect, attention takes all queries at once."""
        self.mask = attention_mask != 0  # [B, S]
        self.positions = _positions(self.mask)
        self.position_ids = self.positions.reshape(-1)

    def gather(self, cells: Tensor) -> Tensor:
        return cells.reshape(-1)

    def grid(self, window: int, tiled: bool = False) -> Grid:
        return PaddedGrid(self.mask, self.positions, window)

    def scatter(self, rows: Tensor) -> Tensor:
        cells = rows.reshape(*self.mask.shape, rows.shape[-1])
        return torch.where(self.mask[:, :, None], cells, 0.0)


class Packed:
    """Only real tokens are rows; attention runs on a grid of its own, left-aligned.

    A real token's place there is its position in its sequence. So wherever the caller put the pads,
    softmax adds the same numbers in the same order.

    Row 0 is a filler, a copy of the grid's first cell. It keeps N at least 2 where there is a token
    (a product of one row has other bits), and at least 1 where there is none. No sequence with a
    token reads it. The caller's pads do, and are overwritten.
    """

    def __init__(self, attention_mask: Tensor, block: int = BLOCK) -> None:
        """block: queries that attention takes at once, at most."""
        self.seq, self.block = attention_mask.shape[1], block
        self.mask = attention_mask != 0  # [B, S]
        real = self.mask.to(torch.int64)
        flat = real.reshape(-1)
        filler = torch.zeros(1, dtype=torch.int64, device=real.device)
        # [N] the caller's cell of each row
        cells = torch.cat([filler, flat.nonzero().squeeze(1)])
        self.row_of_cell = flat.cumsum(0) * flat  # [B * S] 0 at pads
        positions = _positions(self.mask)
        self.sequences = Sequences(real.sum(1, keepdim=True), positions, cells)
        self.position_ids = self.gather(positions)

    def gather(self, cells: Tensor) -> Tensor:
        return self.sequences.gather(cells)

    def grid(self, window: int, tiled: bool = False) -> Grid:
        if window:
            return BandGrid(self.sequences, self.seq, self.block, window)
        if tiled:
            return TiledGrid(self.sequences, self.seq, self.block)
        return FullGrid(self.sequences, self.seq, self.block)

    def scatter(self, rows: Tensor) -> Tensor:
        cells = rows.index_select(0, self.row_of_cell)
        cells = cells.reshape(*self.mask.shape, rows.shape[-1])
        return torch.where(self.mask[:, :, None], cells, 0.0)


LAYOUTS: dict[str, Callable[[Tensor, int], Layout]] = {"packed": Packed, "padded": Padded}


def _positions(mask: Tensor) -> Tensor:
    """`[B, S]`. Positions count real tokens only, so padding anywhere means the same sequence."""
    return (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)
