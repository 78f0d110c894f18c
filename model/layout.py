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
from torch.nn import functional as F

# finite: minus infinity makes NaN where every key is masked, and 0 * NaN reaches neighbours
MASKED = -1e9


# queries of a sequence that attention takes at once. Their scores are heads x BLOCK x S numbers, so
# larger blocks need more memory; smaller ones read the keys more often. A block is at least half as
# wide, and must then be wider than a head's values: onnxruntime's threads share a product by its
# longer side, and may split its sums elsewhere if these are the columns.
BLOCK, MOST_COLUMNS = 128, 128


def block_of(head_dims: int) -> int:
    """How many queries attention takes at once, at most."""
    return max(BLOCK, 2 * min(head_dims, MOST_COLUMNS))


class Mask(NamedTuple):
    """Which keys a query sees on attention's grid, as ONNX's Attention takes it."""

    bias: Tensor | None  # [B or 1, H or 1, S, S] added to the scores; in blocks [G, ..., w, S]
    num_keys: Tensor | None  # [B] of each sequence the first so many keys are seen; None: all

    def as_bias(self, seq: int) -> Tensor:
        """All of it as numbers to add to the scores, `[B or 1, H or 1, S, S]`."""
        bias = torch.zeros(1, 1, 1, seq) if self.bias is None else self.bias
        if self.num_keys is None:
            return bias
        seen = torch.arange(seq, device=bias.device) < self.num_keys[:, None, None, None]
        return bias + torch.where(seen, 0.0, MASKED)


class Layout(Protocol):
    """What `Transformer.forward` and `Attention.forward` need to know of the grid."""

    position_ids: Tensor  # [N] place of each row among its sequence's real tokens, 0 for the first
    # [B, S, S], in blocks [G, w, S]: place of the key minus place of the query, on attention's grid
    distances: Tensor

    def gather(self, cells: Tensor) -> Tensor:
        """Caller's cells `[B, S]` -> rows `[N]`."""
        ...

    def to_grid(self, qkv: Tensor) -> Sequence[Tensor]:
        """Rows `[N, 3 * d]` of queries, keys, values -> three `[B, S, d]` on attention's grid. The
        queries may be in G blocks of w places, `[G, B, w, d]`."""
        ...

    def from_grid(self, context: Tensor) -> Tensor:
        """What attention makes of the queries, in their shape -> rows `[N, d]`."""
        ...

    def attention_mask(self, causal: bool, relative: Tensor | None) -> Mask:
        """Queries see real keys only. relative: a bias `[.., H, .., ..]` of the distances."""
        ...

    def scatter(self, rows: Tensor) -> Tensor:
        """Rows `[N, w]` -> the caller's cells `[B, S, w]`, exact zeros at pads."""
        ...

    def attentions(self, probabilities: Tensor) -> Tensor:
        """What attention's softmax gives for the queries, `[B, h, S, S]` or in blocks
        `[G, B, h, w, S]` -> `[B, h, S, S]` on attention's grid, zeros at pads."""
        ...


class Padded:
    """Every cell is a row: the plain graph that most exports make, kept as the reference."""

    def __init__(self, attention_mask: Tensor, block: int = 0) -> None:
        """block: without effect, attention takes all queries at once."""
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
        batch, seq = self.shape
        seen = self.mask[:, None, None, :].expand(batch, 1, seq, seq)
        if causal:
            columns = torch.arange(seq, device=seen.device)
            seen = seen & (columns <= columns[:, None])
        bias = torch.where(seen, 0.0, MASKED)
        return Mask(bias if relative is None else bias + relative, None)

    def scatter(self, rows: Tensor) -> Tensor:
        return torch.where(self.mask[:, :, None], rows.reshape(*self.shape, rows.shape[-1]), 0.0)

    def attentions(self, probabilities: Tensor) -> Tensor:
        return torch.where(self.mask[:, None, :, None], probabilities, 0.0)


class Packed:
    """Only real tokens are rows; attention runs on a grid of its own, left-aligned.

    A real token's place there is its position in its sequence. So wherever the caller put the pads,
    softmax adds the same numbers in the same order.

    Attention takes the queries in G blocks of w places, one block after the other, against all S
    keys. So its memory does not grow with the square of S.

    The pads of attention's grid hold their own sequence's first token. A value that is not finite
    (NaN + MASKED is NaN, 0 * inf too) then stays within its sequence, which is lost anyway.

    Row 0 is a filler, a copy of the grid's first cell. It keeps N at least 2 where there is a token
    (a product of one row has other bits), and at least 1 where there is none. No sequence with a
    token reads it. The caller's pads do, and are overwritten.
    """

    def __init__(self, attention_mask: Tensor, block: int = BLOCK) -> None:
        """block: queries that attention takes at once, at most."""
        batch, seq = self.shape = attention_mask.shape
        self.mask = attention_mask != 0  # [B, S]
        real = self.mask.to(torch.int64)
        lengths = real.sum(1, keepdim=True)  # [B, 1]
        # [B] for attention: of a sequence without a token one pad is seen, not nothing
        self.num_keys = lengths.squeeze(1).clamp(min=1)

        # as few blocks as can be, of equal width: one query alone would get other bits
        num_blocks = (seq + block - 1) // block
        width = (seq + num_blocks - 1) // num_blocks
        columns = torch.arange(seq, device=real.device)[None, :]
        self.real = columns < lengths  # [B, S] of attention's grid
        starts = torch.arange(num_blocks, device=real.device)[:, None, None] * width
        places = starts + torch.arange(width, device=real.device)  # [G, 1, w] of the queries
        self.distances = columns - places.transpose(1, 2)

        flat = real.reshape(-1)
        filler = torch.zeros(1, dtype=torch.int64, device=real.device)
        # [N] the caller's cell of each row
        self.cells = torch.cat([filler, flat.nonzero().squeeze(1)])
        self.row_of_cell = flat.cumsum(0) * flat  # [B * S] 0 at pads

        positions = _positions(self.mask)  # [B, S]
        self.position_ids = self.gather(positions)
        sequences = torch.arange(batch, device=real.device)[:, None]
        blocks = torch.div(positions, width, rounding_mode="trunc")
        block_cells = (blocks * (batch - 1) + sequences) * width + positions
        self.grid_cells = self.gather(block_cells)  # [N] attention's cell of each row
        before = lengths.cumsum(0) - lengths  # [B, 1] real tokens in the sequences above
        # [B, 1] row of each sequence's first token
        first_row = torch.where(lengths > 0, before + 1, 0)
        # rows of the queries [G, B, w], of keys and values [B, S]
        self.query_rows = torch.where(places < lengths, before + places + 1, first_row)
        self.key_rows = torch.where(self.real, before + columns + 1, first_row)

    def gather(self, cells: Tensor) -> Tensor:
        return cells.reshape(-1).index_select(0, self.cells)

    def to_grid(self, qkv: Tensor) -> Sequence[Tensor]:
        parts = qkv.reshape(-1, qkv.shape[-1] // 3)  # [3 * N, d], without a copy
        cells = (self.query_rows, self.key_rows, self.key_rows)
        return [F.embedding(3 * rows + i, parts) for i, rows in enumerate(cells)]

    def from_grid(self, context: Tensor) -> Tensor:
        return context.reshape(-1, context.shape[-1]).index_select(0, self.grid_cells)

    def attention_mask(self, causal: bool, relative: Tensor | None) -> Mask:
        bias = None if relative is None else relative[:, None]  # [G, 1, H, w, S]
        if causal:
            later = torch.where(self.distances > 0, MASKED, 0.0)[:, None, None]  # [G, 1, 1, w, S]
            bias = later if bias is None else bias + later
        # a causal mask hides pads too: they stand behind all real queries
        return Mask(bias, None if causal else self.num_keys)

    def scatter(self, rows: Tensor) -> Tensor:
        cells = rows.index_select(0, self.row_of_cell).reshape(*self.shape, rows.shape[-1])
        return torch.where(self.mask[:, :, None], cells, 0.0)

    def attentions(self, probabilities: Tensor) -> Tensor:
        (batch, seq), (heads, width) = self.shape, probabilities.shape[2:4]
        columns = torch.arange(seq, device=probabilities.device)
        blocks = torch.div(columns, width, rounding_mode="trunc")
        maps = torch.arange(batch * heads, device=probabilities.device)[:, None]
        cells = (blocks * (batch * heads) + maps) * width + columns - blocks * width
        flat = probabilities.reshape(-1, seq).index_select(0, cells.reshape(-1))
        queries = flat.reshape(batch, heads, seq, seq)
        return torch.where(self.real[:, None, :, None], queries, 0.0)


LAYOUTS: dict[str, Callable[[Tensor, int], Layout]] = {"packed": Packed, "padded": Padded}


def _positions(mask: Tensor) -> Tensor:
    """`[B, S]`. Positions count real tokens only, so padding anywhere means the same sequence."""
    return (mask.to(torch.int64).cumsum(1) - 1).clamp(min=0)
