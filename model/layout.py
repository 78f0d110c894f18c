"""Which cells of the caller's `[batch, seq]` grid are rows of the network, and where attention puts them.

Everything in a transformer but attention is per token, so the body runs on rows `[N, d]`. A layout is made
once per forward pass from `attention_mask`; B is the batch, S the grid's width, N the number of rows.
Both are written with operations that export to standard ONNX ops (NonZero, CumSum, Gather, Where).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

MASKED = -1e9  # finite: minus infinity makes NaN where every key is masked, and 0 * NaN reaches neighbours


class Layout(Protocol):
    """What `Transformer.forward` and `Attention.forward` need to know of the grid."""

    position_ids: Tensor  # [N] place of each row among its sequence's real tokens, 0 for the first

    def gather(self, cells: Tensor) -> Tensor:
        """Caller's cells `[B, S]` -> rows `[N]`."""
        ...

    def to_heads(self, qkv: Tensor) -> Tensor:
        """Rows `[N, 3 * H * d_head]` of queries, keys, values -> attention's grid `[3, B, H, S, d_head]`."""
        ...

    def from_heads(self, context: Tensor) -> Tensor:
        """Attention's grid `[B, H, S, d_head]` -> rows `[N, H * d_head]`."""
        ...

    def attention_bias(self, causal: bool) -> Tensor:
        """What is added to the scores: 0 where a query may see a key, else MASKED; broadcasts to `[B, 1, S, S]`."""
        ...

    def scatter(self, rows: Tensor) -> Tensor:
        """Rows `[N, w]` -> the caller's cells `[B, S, w]`, exact zeros at pads."""
        ...


class Padded:
    """Every cell is a row: the plain graph that most exports make, kept as the reference."""

    def __init__(self, attention_mask: Tensor, n_heads: int) -> None:
        self.mask = attention_mask != 0  # [B, S]
        self.shape, self.n_heads = attention_mask.shape, n_heads
        self.position_ids = _positions(self.mask).reshape(-1)

    def gather(self, cells: Tensor) -> Tensor:
        return cells.reshape(-1)

    def to_heads(self, qkv: Tensor) -> Tensor:
        return qkv.reshape(*self.shape, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)

    def from_heads(self, context: Tensor) -> Tensor:
        return context.transpose(1, 2).reshape(-1, self.n_heads * context.shape[-1])

    def attention_bias(self, causal: bool) -> Tensor:
        return _bias(self.mask, causal)

    def scatter(self, rows: Tensor) -> Tensor:
        return torch.where(self.mask[:, :, None], rows.reshape(*self.shape, rows.shape[-1]), 0.0)


class Packed:
    """Only real tokens are rows; attention runs on a grid of its own, left-aligned.

    A real token's cell there is `row * S + position`, so wherever the caller put the pads, softmax adds the
    same numbers in the same order. Row 0 is a filler (a copy of the grid's first cell): it keeps N at least 1,
    and every pad of either grid reads from it.

    Heads are gathered straight to where attention reads them: one gather a way, and no transposition per layer.
    """

    def __init__(self, attention_mask: Tensor, n_heads: int) -> None:
        batch, seq = attention_mask.shape
        self.shape, self.n_heads = (batch, seq), n_heads
        self.mask = attention_mask != 0  # [B, S]
        real = self.mask.to(torch.int64)
        lengths = real.sum(1, keepdim=True)  # [B, 1]
        columns = torch.arange(seq, device=real.device)[None, :]
        self.keys = columns < lengths  # [B, S] real cells of attention's grid

        flat = real.reshape(-1)
        filler = torch.zeros(1, dtype=torch.int64, device=real.device)
        self.cells = torch.cat([filler, flat.nonzero().squeeze(1)])  # [N] the caller's cell of each row
        self.row_of_cell = flat.cumsum(0) * flat  # [B * S] 0 at pads

        positions = _positions(self.mask)  # [B, S]
        self.position_ids = self.gather(positions)
        heads = torch.arange(n_heads, device=real.device)
        # of a row's head in the grid [B, H, S]: (row * H + head) * S + position
        first = torch.arange(batch, device=real.device)[:, None] * (n_heads * seq)
        self.head_cells = (self.gather(first + positions)[:, None] + heads * seq).reshape(-1)  # [N * H]
        # of a cell's head in the rows [N, 3, H]: row * 3 * H + part * H + head
        before = lengths.cumsum(0) - lengths  # [B, 1] real tokens in the sequences above
        rows = torch.where(self.keys, before + columns + 1, 0)  # [B, S] 0 at pads
        parts = torch.arange(3, device=real.device)[:, None, None, None] * n_heads
        self.heads_of_cells = (rows[:, None, :] * (3 * n_heads) + heads[:, None] + parts).reshape(-1)  # [3 * B * H * S]

    def gather(self, cells: Tensor) -> Tensor:
        return cells.reshape(-1).index_select(0, self.cells)

    def to_heads(self, qkv: Tensor) -> Tensor:
        batch, seq = self.shape
        width = qkv.shape[-1] // (3 * self.n_heads)
        return qkv.reshape(-1, width).index_select(0, self.heads_of_cells).reshape(3, batch, self.n_heads, seq, width)

    def from_heads(self, context: Tensor) -> Tensor:
        width = context.shape[-1]
        return context.reshape(-1, width).index_select(0, self.head_cells).reshape(-1, self.n_heads * width)

    def attention_bias(self, causal: bool) -> Tensor:
        return _bias(self.keys, causal)

    def scatter(self, rows: Tensor) -> Tensor:
        cells = rows.index_select(0, self.row_of_cell).reshape(*self.shape, rows.shape[-1])
        return torch.where(self.mask[:, :, None], cells, 0.0)


LAYOUTS: dict[str, Callable[[Tensor, int], Layout]] = {"packed": Packed, "padded": Padded}


def _positions(mask: Tensor) -> Tensor:
    """Positions count real tokens only, so left, right or scattered padding mean the same sequence. `[B, S]`."""
    return (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)


def _bias(keys: Tensor, causal: bool) -> Tensor:
    """keys: `[B, S]` bool, the cells that hold a real token. -> `[B, 1, 1, S]`, or `[B, 1, S, S]` if causal."""
    visible = keys[:, None, None, :]
    if causal:
        columns = torch.arange(keys.shape[1], device=keys.device)
        visible = visible & (columns[None, :] <= columns[:, None])
    return torch.where(visible, 0.0, MASKED)
