"""Disentangled attention (He et al., arXiv:2006.03654): scores have terms of content by distance.

Beside query times key, a score has the query times a key made of their distance (c2p), and the key
times a query made of it (p2c). A distance is the query's place minus the key's. B batch, S width of
attention's grid, H heads of e dimensions, R vectors of distances; G blocks of w queries.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.onnx import is_in_onnx_export
from torch.onnx.ops import symbolic

from addnorm.model.config import Config, Disentangled

ROUNDING = 1e-9  # of a logarithm, which may be a little over a whole number where it is one
WEIGHT = "addnorm::Weight"  # an export takes its input in its place


class Places(NamedTuple):
    """The vector of each distance, on attention's grid. Layers share it.

    rows: of each query and key `[B, S, S]`. In blocks `[G, L]`, one for each of the L distances
    that a block has: column c is of key j and query i where c is j - i + w - 1. tiles: None; in
    blocks `[G, G, 2 * w]`, of a block's distances to keys w by w: column c is of query i and
    key j where c is i - j + w - 1. The last column is of none.
    """

    vectors: Tensor  # [R, d]
    rows: Tensor
    tiles: Tensor | None


class Terms(NamedTuple):
    """The parts of a layer's scores beside queries and keys. None: there is no such term."""

    keys: Tensor | None  # [R, d], of c2p
    queries: Tensor | None  # [R, d], of p2c
    rows: Tensor  # as in Places
    tiles: Tensor | None

    def blocks(self) -> "list[Terms]":
        """The terms of each block, where there are G."""
        assert self.tiles is not None
        pairs = zip(self.rows, self.tiles, strict=True)
        return [self._replace(rows=rows, tiles=tiles) for rows, tiles in pairs]

    def scale(self, head_dims: int) -> float:
        """One for all terms: scores of n terms are divided by sqrt(n e)."""
        count = 1 + (self.keys is not None) + (self.queries is not None)
        return 1 / math.sqrt(count * head_dims)


class Distances(nn.Module):
    """A vector for each distance, or for each bucket of distances."""

    def __init__(self, config: Config, norm: nn.Module | None) -> None:
        """norm: of the vectors, returning also statistics; None: they have none."""
        super().__init__()
        shape = config.positions.disentangled
        assert shape
        self.table = nn.Embedding(2 * shape.span, config.d_model)
        if norm:
            self.norm = norm
        self.limit(config)

    def limit(self, config: Config) -> None:
        """Distances are then those of up to `max_positions` tokens."""
        shape, self.farthest = config.positions.disentangled, config.max_positions - 1
        assert shape
        self.chosen: Tensor
        # no weight: it follows from the shape
        chosen = vectors_of(torch.arange(-self.farthest, self.farthest + 1), shape)[:, None]
        self.register_buffer("chosen", chosen, persistent=False)

    def forward(self, distances: Tensor, tiles: Tensor | None) -> Places:
        """distances, tiles: as a grid has them, the key's place minus the query's."""
        vectors = as_a_weight(self.table.weight)
        if hasattr(self, "norm"):
            vectors = self.norm(vectors)[0]
        return Places(vectors, self._rows(distances), None if tiles is None else self._rows(tiles))

    def _rows(self, distances: Tensor) -> Tensor:
        limit = self.farthest  # pads may be farther, and are masked
        return F.embedding(limit - distances.clamp(-limit, limit), self.chosen).squeeze(-1)


def as_a_weight(x: Tensor) -> Tensor:
    """x. In an export, what is made of it alone stays in the graph: PyTorch would compute what is
    small, and the graph would have constants that are no weights."""
    if not is_in_onnx_export():
        return x
    return symbolic(WEIGHT, (x,), dtype=x.dtype, shape=x.shape, version=1)


def vectors_of(distances: Tensor, shape: Disentangled) -> Tensor:
    """Distances of any shape -> row of each in the table, 0 to 2 * span - 1.

    With buckets, distances of up to half the span have one each, and the others grow
    logarithmically to `farthest`.
    """
    span, half, far = shape.span, shape.span // 2, distances.abs()
    if shape.farthest:
        share = (far.double().clamp(min=half) / half).log() / math.log((shape.farthest - 1) / half)
        logarithmic = (share * (half - 1) - ROUNDING).ceil().long() + half
        distances = torch.where(far <= half, distances, distances.sign() * logarithmic)
    return (distances + span).clamp(0, 2 * span - 1)


class DistanceProjections(nn.Module):
    """Vectors of distances -> their keys and queries."""

    def __init__(self, config: Config, shape: Disentangled) -> None:
        super().__init__()
        self.shape, d_model = shape, config.d_model
        if not shape.shared:
            if shape.c2p:
                self.key = nn.Linear(d_model, d_model)
            if shape.p2c:
                self.query = nn.Linear(d_model, d_model)

    def forward(self, places: Places, qkv: nn.Linear) -> Terms:
        """qkv: attention's own projections.

        They depend on weights alone, so onnxruntime makes them once, when it loads a graph.
        """
        vectors, keys, queries = places.vectors, None, None
        if self.shape.shared:
            queries, keys, _ = qkv(vectors).chunk(3, -1)
        else:
            keys = self.key(vectors) if self.shape.c2p else None
            queries = self.query(vectors) if self.shape.p2c else None
        return Terms(
            keys if self.shape.c2p else None,
            queries if self.shape.p2c else None,
            places.rows,
            places.tiles,
        )


def by_distance(q: Tensor, k: Tensor, terms: Terms, n_heads: int) -> Tensor:
    """Both terms of the scores, not scaled: q `[B, w, d]`, k `[B, S, d]` -> `[B, H, w, S]`."""
    q, k = (x.unflatten(-1, (n_heads, -1)).transpose(1, 2) for x in (q, k))
    scores = []
    if terms.keys is not None:
        keys = terms.keys.unflatten(-1, (n_heads, -1))  # [R, H, e]
        if terms.tiles is None:
            scores.append(_gather(q @ keys.permute(1, 2, 0), terms.rows))
        else:
            scores.append(skew(q @ keys[terms.rows].permute(1, 2, 0)))
    if terms.queries is not None:
        queries = terms.queries.unflatten(-1, (n_heads, -1))
        if terms.tiles is None:
            by_key = _gather(k @ queries.permute(1, 2, 0), terms.rows.transpose(1, 2))
            scores.append(by_key.transpose(2, 3))
        else:
            num_tiles = terms.tiles.shape[0]
            table = queries[terms.tiles].permute(2, 0, 3, 1)  # [H, G, e, 2 * w]
            # [B, H, G, w keys, w queries]
            tiles = skew(k.unflatten(2, (num_tiles, -1)) @ table)
            scores.append(tiles.flatten(2, 3).transpose(2, 3))
    return sum(scores[1:], scores[0])


def _gather(products: Tensor, rows: Tensor) -> Tensor:
    """products `[B, H, S, R]`, rows `[B, S, S]` -> `[B, H, S, S]`"""
    rows = rows[:, None].expand(*products.shape[:3], -1)
    return products.gather(3, rows)


def skew(products: Tensor) -> Tensor:
    """`[.., n, L]` -> `[.., n, L - n]`: row i from its column n - 1 - i on.

    Read with rows that are one shorter, each row begins one column earlier than the one above.
    """
    n, length = products.shape[-2:]
    flat = products.flatten(-2)[..., n - 1 : n * length - 1]
    shifted: Tensor = flat.unflatten(-1, (n, length - 1))
    return shifted[..., : length - n]
