"""Attention over rows `[N, d_model]`, and what a forward pass shows of itself.

B batch, S grid width, N rows, H heads of e dimensions, K of them with keys and values of their own,
h chosen heads; G blocks of w queries.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.onnx import is_in_onnx_export
from torch.onnx.ops import symbolic, symbolic_multi_out

from addnorm.model.config import Config
from addnorm.model.disentangled import DistanceProjections, Places, by_distance
from addnorm.model.grid import OPSET, Grid, Mask
from addnorm.model.norms import norm
from addnorm.model.positions import Rotation, rotate

AFTER_SOFTMAX = 3  # what the operator shows of its scores
# an export writes a Scan in the place of these, over blocks of queries; over their keys too
ATTENTION_IN_BLOCKS, ATTENTION_IN_BANDS = "addnorm::Attention", "addnorm::BandAttention"


class Trace:
    """The record of a forward pass beside its activations.

    Of the norms their statistics, in the order in which a token passes them. If `heads` are given,
    for a lens: the rows that enter each layer, the last layer's at the end, and of each layer the
    attention of these heads.
    """

    def __init__(self, heads: Sequence[Tensor] | None = None) -> None:
        self.heads = heads  # [h] int64 for each layer
        self.means: list[Tensor] = []
        self.rstds: list[Tensor] = []
        self.hidden_states: list[Tensor] = []  # [N, d]
        self.attentions: list[Tensor] = []  # [B, h, S, S]

    def norm(self, normalized: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Keeps what a LayerNorm returns of its statistics."""
        y, mean, rstd = normalized
        self.means.append(mean)
        self.rstds.append(rstd)
        return y

    def hidden(self, x: Tensor) -> Tensor:
        """Keeps rows that enter a layer, or leave the last one."""
        if self.heads is not None:
            self.hidden_states.append(x)
        return x


class View(NamedTuple):
    """The way a layer's attention sees the rows. Layers of one kind share it."""

    grid: Grid
    mask: Mask
    rotation: Rotation | None
    places: Places | None = None


class Attention(nn.Module):
    """Scaled dot-product attention with H heads (Vaswani et al., arXiv:1706.03762, section 3.2).

    Each of K heads of keys and values is for H / K heads of queries, neighbours (Ainslie et al.,
    arXiv:2305.13245). With norms of queries and keys, each head's e dimensions are normalized
    before they are rotated (Henry et al., arXiv:2010.04245); these norms leave no statistics.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_heads, self.kv_heads = config.n_heads, config.kv_heads
        dims, bias = config.head_dims, config.attention_bias
        self.widths = config.qkv_widths
        self.qkv = nn.Linear(config.d_model, sum(self.widths), bias)
        self.out = nn.Linear(self.n_heads * dims, config.d_model, bias and config.out_bias)
        self.has_norms = config.qk_norm
        if config.qk_norm:
            self.q_norm, self.k_norm = norm(config, dims), norm(config, dims)
        if shape := config.positions.disentangled:
            self.distances = DistanceProjections(config, shape)

    def forward(self, x: Tensor, view: View, trace: Trace) -> Tensor:
        """[N, d] -> [N, d]"""
        grid, mask, rotation, places = view
        if places:
            mask = mask._replace(terms=self.distances(places, self.qkv))
        qkv = self.qkv(x)
        if self.has_norms:  # queries and keys are normalized, head by head
            (dims,) = self.q_norm.shape
            q, k, v = qkv.split(self.widths, -1)
            q, _, _ = self.q_norm(q.unflatten(-1, (-1, dims)))
            k, _, _ = self.k_norm(k.unflatten(-1, (-1, dims)))
            qkv = torch.cat([q.flatten(1), k.flatten(1), v], -1)
        if rotation:
            qkv = rotate(qkv, rotation, self.n_heads + self.kv_heads)
        q, k, v = grid.to_grid(qkv, self.n_heads // self.kv_heads)
        if trace.heads is None:
            context = attend(q, k, v, mask, self.n_heads)  # like q
        else:
            heads = trace.heads[len(trace.attentions)]
            context, probabilities = attend_with_probabilities(q, k, v, mask, self.n_heads, heads)
            trace.attentions.append(grid.attentions(probabilities))
        return self.out(grid.from_grid(context))  # type: ignore[no-any-return]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, n_heads: int) -> Tensor:
    """softmax(q k^T / sqrt(e) + mask) v, head by head. q `[B, S, H * e]`; k, v `[B, S, K * e]`. In
    blocks q `[G, B, w, H * e]`, and k, v may have an axis G too -> like q. The mask's terms have
    their own scale.

    In an export it is ONNX's operator. This takes the numbers of keys as they are: a mask of
    `[B, 1, S, S]` would have to be written, copied for each head, and read again.
    """
    if is_in_onnx_export():
        name = "Attention" if q.dim() == 3 else _in_blocks(k)
        bias = mask.bias if q.dim() == 4 or not mask.terms else _bias(q, k, mask, n_heads)
        terms = (None, *mask.terms) if mask.terms and q.dim() == 4 else ()
        inputs = (q, k, v, bias, None, None, mask.num_keys, *terms)
        attributes: dict[str, Any] = _num_heads(q, k, n_heads)
        if mask.terms:
            attributes["scale"] = _scale(q, mask, n_heads)
        shape, version = q.shape, OPSET
        return symbolic(name, inputs, attributes, dtype=q.dtype, shape=shape, version=version)
    if q.dim() == 4:
        return torch.stack([attend(*block, n_heads) for block in _blocks(q, k, v, mask)])
    bias, scale = _bias(q, k, mask, n_heads), _scale(q, mask, n_heads)
    q, k, v = _by_head(q, k, v, n_heads)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return context.transpose(1, 2).flatten(2)


def _scale(q: Tensor, mask: Mask, n_heads: int) -> float:
    head_dims = q.shape[-1] // n_heads
    return mask.terms.scale(head_dims) if mask.terms else 1 / math.sqrt(head_dims)


def _bias(q: Tensor, k: Tensor, mask: Mask, n_heads: int) -> Tensor:
    """The sum of the mask and of terms by distance, which is added to query times key."""
    bias = mask.as_bias(k.shape[1])
    if not mask.terms:
        return bias
    return bias + by_distance(q, k, mask.terms, n_heads) * _scale(q, mask, n_heads)


def attend_with_probabilities(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, n_heads: int, heads: Tensor
) -> tuple[Tensor, Tensor]:
    """`attend`, and the softmax of some heads `[h]`: `[B, h, S, S]`, queries before keys; in blocks
    `[G, B, h, w, K]`. An export takes queries in blocks only."""
    if is_in_onnx_export():
        terms = mask.terms or ()
        inputs = (q, k, v, mask.bias, None, None, mask.num_keys, heads, *terms)
        attributes: dict[str, Any] = {
            **_num_heads(q, k, n_heads),
            "qk_matmul_output_mode": AFTER_SOFTMAX,
        }
        if mask.terms:
            attributes["scale"] = _scale(q, mask, n_heads)
        num_blocks, batch, width, _ = q.shape
        shapes = (q.shape, (num_blocks, batch, heads.shape[0], width, k.shape[-2]))
        context, probabilities = symbolic_multi_out(
            _in_blocks(k), inputs, attributes, dtypes=(q.dtype, q.dtype), shapes=shapes,
            version=OPSET,
        )  # fmt: skip
        return context, probabilities
    if q.dim() == 4:
        blocks = _blocks(q, k, v, mask)
        outputs = [attend_with_probabilities(*block, n_heads, heads) for block in blocks]
        context, probabilities = map(torch.stack, zip(*outputs, strict=True))
        return context, probabilities
    bias, scale = _bias(q, k, mask, n_heads), _scale(q, mask, n_heads)
    q, k, v = _by_head(q, k, v, n_heads)
    scores = q @ k.transpose(2, 3) * scale + bias
    probabilities = scores.softmax(-1)
    return (probabilities @ v).transpose(1, 2).flatten(2), probabilities[:, heads]


def _num_heads(q: Tensor, k: Tensor, n_heads: int) -> dict[str, int]:
    """The attributes of ONNX's Attention."""
    return {"q_num_heads": n_heads, "kv_num_heads": n_heads * k.shape[-1] // q.shape[-1]}


def _by_head(q: Tensor, k: Tensor, v: Tensor, n_heads: int) -> list[Tensor]:
    """-> three `[B, H, S, e]`, keys and values repeated where several heads share them."""
    share = q.shape[-1] // k.shape[-1]
    heads = (n_heads, n_heads // share, n_heads // share)
    q, k, v = (
        x.unflatten(-1, (num, -1)).transpose(1, 2) for x, num in zip((q, k, v), heads, strict=True)
    )
    return [q, *((x if share == 1 else x.repeat_interleave(share, 1)) for x in (k, v))]


def _in_blocks(k: Tensor) -> str:
    return ATTENTION_IN_BLOCKS if k.dim() == 3 else ATTENTION_IN_BANDS


def _blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask
) -> Iterator[tuple[Tensor, Tensor, Tensor, Mask]]:
    """The inputs of each block of queries."""
    biases = [None] * len(q) if mask.bias is None else mask.bias
    keys, values = ((x if x.dim() == 4 else [x] * len(q)) for x in (k, v))
    terms = [None] * len(q) if mask.terms is None else mask.terms.blocks()
    for query, key, value, bias, term in zip(q, keys, values, biases, terms, strict=True):
        yield query, key, value, Mask(bias, mask.num_keys, term)
