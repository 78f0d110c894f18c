"""Rows as attention sees them: a grid of queries, keys and values, and a mask.

B is the batch, S the grid's width, N the number of rows. In the packed layout queries come in G
blocks of w places, and keys by K places. A row has queries of d numbers, and keys and values of d /
g each, where g heads of queries share keys.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.onnx import is_in_onnx_export
from torch.onnx.ops import symbolic

from addnorm.model.disentangled import Terms

OPSET = 24  # of ONNX, the first whose Attention takes numbers of keys

# finite: minus infinity makes NaN where every key is masked, and 0 * NaN reaches neighbours
MASKED = -1e9
# of a row that sees no other key, so that it sees these, and still no pad: also in float16, where
# MASKED becomes -65504
UNSEEN = -3e4


# queries of a sequence that attention takes at once. Their scores are heads x BLOCK x S numbers, so
# larger blocks need more memory; smaller ones read the keys more often. A block is at least half as
# wide, and must then be wider than a head's values: onnxruntime's threads share a product by its
# longer side, and may split its sums elsewhere if these are the columns.
BLOCK, MOST_COLUMNS = 128, 128


def block_of(head_dims: int) -> int:
    """The most queries that attention takes at once."""
    return max(BLOCK, 2 * min(head_dims, MOST_COLUMNS))


class Mask(NamedTuple):
    """The keys that a query sees on attention's grid, as ONNX's Attention takes it."""

    # [B or 1, H or 1, S, S] added to the scores; in blocks [G, B or 1, H or 1, w, K]
    bias: Tensor | None
    num_keys: Tensor | None  # [B] of each sequence the first so many keys are seen; None: all
    terms: Terms | None = None  # of the scores, by distance

    def as_bias(self, seq: int) -> Tensor:
        """All of it as numbers to add to the scores, `[B or 1, H or 1, S, S]`."""
        bias = torch.zeros(1, 1, 1, seq) if self.bias is None else self.bias
        if self.num_keys is None:
            return bias
        visible = torch.arange(seq, device=bias.device) < self.num_keys[:, None, None, None]
        return bias + torch.where(visible, 0.0, MASKED)


class Grid(Protocol):
    """The places of a layout's rows for attention."""

    # [B, S, S], in blocks [G, w, K], in a tiled grid [G, L]: place of the key minus the query's
    distances: Tensor
    tiles: Tensor | None  # [G, G, 2 * w] in a tiled grid: the same by tile, see TiledGrid

    def to_grid(self, qkv: Tensor, share: int) -> Sequence[Tensor]:
        """Rows `[N, d + 2 * d / g]` of queries, keys, values -> `[B, S, d]` and two `[B, S, d / g]`
        on attention's grid. The queries may be in G blocks of w places, `[G, B, w, d]`, and keys
        and values before each of these, `[G, B, K, d / g]`. share: g."""
        ...

    def from_grid(self, context: Tensor) -> Tensor:
        """Attention's output, in the queries' shape -> rows `[N, d]`."""
        ...

    def attention_mask(
        self, causal: bool, relative: Tensor | None, unseen: Tensor | None = None
    ) -> Mask:
        """Queries see real keys only. relative: a bias `[.., H, .., ..]` of the distances. unseen:
        `[N]` bool, rows that are nobody's keys."""
        ...

    def attentions(self, probabilities: Tensor) -> Tensor:
        """The softmax of attention for the queries, `[B, h, S, S]` or in blocks
        `[G, B, h, w, K]` -> `[B, h, S, S]` by place, zeros at pads."""
        ...


class PaddedGrid:
    """The caller's own grid."""

    tiles: Tensor | None = None

    def __init__(self, mask: Tensor, positions: Tensor, window: int) -> None:
        """mask `[B, S]`: which cells are real; positions `[B, S]` among these."""
        self.mask, self.window = mask, window
        self.distances = positions[:, None, :] - positions[:, :, None]

    def to_grid(self, qkv: Tensor, share: int) -> Sequence[Tensor]:
        width = qkv.shape[-1] // (share + 2)
        sizes = width if share == 1 else [share * width, width, width]
        parts: Sequence[Tensor] = qkv.reshape(*self.mask.shape, -1).split(sizes, -1)
        return parts

    def from_grid(self, context: Tensor) -> Tensor:
        return context.reshape(-1, context.shape[-1])

    def attention_mask(
        self, causal: bool, relative: Tensor | None, unseen: Tensor | None = None
    ) -> Mask:
        batch, seq = self.mask.shape
        visible = self.mask[:, None, None, :].expand(batch, 1, seq, seq)
        if causal:
            columns = torch.arange(seq, device=visible.device)
            visible = visible & (columns <= columns[:, None])
        if self.window:
            visible = visible & (self.distances.abs() <= self.window)[:, None]
        bias = torch.where(visible, 0.0, MASKED)
        if unseen is not None:
            bias = bias + torch.where(unseen, UNSEEN, 0.0).reshape(batch, 1, 1, seq)
        return Mask(bias if relative is None else bias + relative, None)

    def attentions(self, probabilities: Tensor) -> Tensor:
        return torch.where(self.mask[:, None, :, None], probabilities, 0.0)


class Sequences(NamedTuple):
    """The places of packed sequences among the rows."""

    lengths: Tensor  # [B, 1]
    positions: Tensor  # [B, S] places of the caller's cells in their sequences
    cells: Tensor  # [N] the caller's cell of each row

    def gather(self, cells: Tensor) -> Tensor:
        """Caller's cells `[B, S]` -> rows `[N]`."""
        return cells.reshape(-1).index_select(0, self.cells)

    def rows(self, places: Tensor, real: Tensor) -> Tensor:
        """places `[.., B or 1, n]`, and which of them are real -> their rows; of pads, their
        sequence's first row."""
        before = self.lengths.cumsum(0) - self.lengths  # [B, 1] real tokens in the sequences above
        first = torch.where(self.lengths > 0, before + 1, 0)
        return torch.where(real, before + places + 1, first)


class _Blocks:
    """Queries are taken in G blocks of w places, one block after the other, so memory does not grow
    with the square of S.

    The pads of the grid hold their own sequence's first token. A value that is not finite
    (NaN + MASKED is NaN, 0 * inf too) then stays within its sequence, which is lost anyway.
    """

    distances: Tensor
    tiles: Tensor | None = None
    query_rows: Tensor  # [G, B, w]
    key_rows: Tensor  # [B, S] or [G, B, K]
    cells: Tensor  # [N] of [G, B, w]

    def __init__(
        self, sequences: Sequences, seq: int, num_blocks: int, width: int | Tensor, columns: Tensor
    ) -> None:
        """columns: 0 to width - 1."""
        self.sequences, self.seq = sequences, seq
        lengths = sequences.lengths
        starts = torch.arange(num_blocks, device=lengths.device)[:, None, None] * width
        self.starts = starts  # [G, 1, 1]
        self.places = starts + columns  # [G, 1, w]
        self.query_rows = sequences.rows(self.places, self.places < lengths)
        numbers = torch.arange(lengths.shape[0], device=lengths.device)[:, None]
        blocks = torch.div(sequences.positions, width, rounding_mode="trunc")
        cells = (blocks * (lengths.shape[0] - 1) + numbers) * width + sequences.positions
        self.cells = sequences.gather(cells)

    def to_grid(self, qkv: Tensor, share: int) -> Sequence[Tensor]:
        count = share + 2
        parts = qkv.reshape(-1, qkv.shape[-1] // count)  # [(g + 2) * N, d / g], without a copy
        queries = count * self.query_rows
        if share == 1:
            q = F.embedding(queries, parts)
        else:
            steps = torch.arange(share, device=queries.device)
            q = F.embedding(queries[..., None] + steps, parts).flatten(-2)
        k, v = (F.embedding(count * self.key_rows + (share + i), parts) for i in range(2))
        return q, k, v

    def from_grid(self, context: Tensor) -> Tensor:
        return context.reshape(-1, context.shape[-1]).index_select(0, self.cells)

    def _bias_of(self, unseen: Tensor) -> Tensor:
        """Rows `[N]` -> what hides them as keys, `[.., B, 1, 1, S or K]`."""
        bias = torch.where(unseen, UNSEEN, 0.0)[:, None]
        return F.embedding(self.key_rows, bias).squeeze(-1)[..., None, None, :]


class FullGrid(_Blocks):
    """Every block sees all S places."""

    def __init__(self, sequences: Sequences, seq: int, block: int) -> None:
        """block: queries that attention takes at once, at most."""
        # as few blocks as can be, of equal width: one query alone would get other bits
        num_blocks = (seq + block - 1) // block
        width = (seq + num_blocks - 1) // num_blocks
        steps = torch.arange(width, device=sequences.lengths.device)
        super().__init__(sequences, seq, num_blocks, width, steps)
        columns = torch.arange(seq, device=self.places.device)[None, :]
        self.distances = columns - self.places.transpose(1, 2)
        self.real = columns < sequences.lengths  # [B, S]
        self.key_rows = sequences.rows(columns, self.real)

    def attention_mask(
        self, causal: bool, relative: Tensor | None, unseen: Tensor | None = None
    ) -> Mask:
        bias = None if relative is None else relative[:, None]  # [G, 1, H, w, S]
        if unseen is not None:
            num_blocks, _, width = self.places.shape  # the operator takes no axis of 1 for w
            hidden = self._bias_of(unseen)[None].expand(num_blocks, -1, -1, width, -1)
            bias = hidden if bias is None else bias + hidden  # [G, B, 1 or H, w, S]
        if causal:  # hides pads too: they stand behind all real queries
            later = torch.where(self.distances > 0, MASKED, 0.0)[:, None, None]  # [G, 1, 1, w, S]
            return Mask(later if bias is None else bias + later, None)
        # of a sequence without a token one pad is seen, not nothing
        return Mask(bias, self.sequences.lengths.squeeze(1).clamp(min=1))

    def attentions(self, probabilities: Tensor) -> Tensor:
        (batch, heads, width), seq = probabilities.shape[1:4], self.seq
        columns = torch.arange(seq, device=probabilities.device)
        blocks = torch.div(columns, width, rounding_mode="trunc")
        maps = torch.arange(batch * heads, device=probabilities.device)[:, None]
        cells = (blocks * (batch * heads) + maps) * width + columns - blocks * width
        flat = probabilities.reshape(-1, seq).index_select(0, cells.reshape(-1))
        queries = flat.reshape(batch, heads, seq, seq)
        return torch.where(self.real[:, None, :, None], queries, 0.0)


class TiledGrid(FullGrid):
    """Every block of w queries sees G tiles of w places each, so all S and up to G - 1 pads more.

    Distances are listed by column, see Places in model/disentangled.py: what queries or keys make
    of a column's vector is then shifted into its place, and nothing has S x S entries.
    """

    def __init__(self, sequences: Sequences, seq: int, block: int) -> None:
        """block: queries that attention takes at once, at most."""
        super().__init__(sequences, seq, block)
        num_blocks, width = self.places.shape[0], self.places.shape[2]
        device, last = self.places.device, width - 1
        columns = torch.arange(num_blocks * width, device=device)[None, :]
        self.key_rows = sequences.rows(columns, columns < sequences.lengths)
        by_key = torch.arange((num_blocks + 1) * width, device=device)[None, :]
        by_query = torch.arange(2 * width, device=device)[None, None, :]
        starts = self.starts  # [G, 1, 1]
        self.distances = by_key - starts[:, 0] - last  # [G, L]
        self.tiles = starts[:, 0][None] - starts - by_query + last  # [G, G, 2 * w]

    def attentions(self, probabilities: Tensor) -> Tensor:
        # not a slice: an export would compare its end with the tiles' size, and keep one S
        columns = torch.arange(self.seq, device=probabilities.device)
        return super().attentions(probabilities.index_select(-1, columns))


class BandGrid(_Blocks):
    """A block sees its own places and those of a window on both sides, K in all. So neither time
    nor memory grows with the square of S.

    Blocks have one width, whatever S is, and their own places come before those of the right and of
    the left: onnxruntime adds up products in parts of fixed sizes, and these must begin where they
    do in a grid that is one block, which has no others.
    """

    def __init__(self, sequences: Sequences, seq: int, block: int, window: int) -> None:
        num_blocks, band = (seq + block - 1) // block, block + 2 * window
        size = torch.full((), seq, device=sequences.lengths.device)
        self.width = size.clamp(max=block)
        steps = _range(self.width, (seq + num_blocks - 1) // num_blocks)
        super().__init__(sequences, seq, num_blocks, self.width, steps)
        self.window, self.band = window, band
        self.num_columns = torch.where(size > block, band, size)
        columns = _range(self.num_columns, seq)
        offsets = columns - band * (columns >= block + window)  # from the block's first place
        places = self.starts + offsets  # [G, 1, K]
        self.real = (places >= 0) & (places < sequences.lengths)  # [G, B, K]
        self.distances = places - self.places.transpose(1, 2)
        self.key_rows = sequences.rows(places, self.real)

    def attention_mask(
        self, causal: bool, relative: Tensor | None, unseen: Tensor | None = None
    ) -> Mask:
        near = self.distances.abs() <= self.window
        if causal:
            near = near & (self.distances <= 0)
        visible = near[:, None, None] & self.real[:, :, None, None]  # [G, B, 1, w, K]
        bias = torch.where(visible, 0.0, MASKED)
        if unseen is not None:
            bias = bias + self._bias_of(unseen)
        return Mask(bias if relative is None else bias + relative[:, None], None)

    def attentions(self, probabilities: Tensor) -> Tensor:
        (batch, heads), width = probabilities.shape[1:3], self.width
        places = torch.arange(self.seq, device=probabilities.device)
        blocks = torch.div(places, width, rounding_mode="trunc")[:, None]  # [S, 1] of the queries
        offsets = places - blocks * width  # [S, S]
        columns = offsets + self.band * (offsets < 0)
        near = (places - places[:, None]).abs() <= self.window
        maps = torch.arange(batch * heads, device=probabilities.device)[:, None, None]
        cells = (blocks * (batch * heads) + maps) * width + places[:, None] - blocks * width
        cells = cells * self.num_columns + torch.where(near, columns, 0)  # [B * h, S, S]
        flat = probabilities.reshape(-1).index_select(0, cells.reshape(-1))
        queries = flat.reshape(batch, heads, self.seq, self.seq)
        real = (places < self.sequences.lengths)[:, None, :, None]  # [B, 1, S, 1]
        return torch.where(real & near, queries, 0.0)


def _range(size: Tensor, noted: int) -> Tensor:
    """0 to size - 1.

    An export notes another size: with one that steps where a second block begins, PyTorch would
    make a graph for one block alone. Nothing in the graph reads it.
    """
    if not is_in_onnx_export():
        return torch.arange(int(size), device=size.device)
    zero, step = torch.zeros_like(size), torch.ones_like(size)
    return symbolic("Range", (zero, size, step), dtype=torch.int64, shape=(noted,), version=OPSET)
