"""A transformer's positions: what is added to tokens, rotated into queries and keys, or added
to the scores."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.model.config import Config, Rotary

MAX_DISTANCE = 128  # from which on distances share the last bucket


def sinusoids(max_positions: int, d_model: int) -> Tensor:
    """sin and cos of position / 10000^(2i / d_model), interleaved. `[max_positions, d]`.

    arXiv:1706.03762, section 3.5.
    """
    frequencies = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angles = torch.arange(max_positions)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :d_model]


class Rotation(NamedTuple):
    """The angles by which rows are rotated."""

    cos: Tensor  # [N, 1, e / 2]
    sin: Tensor


class RotaryTable(nn.Module):
    """The angles of all places, place / theta^(2i / e): e dimensions of a head, each of the first
    half rotated against its twin in the second (Su et al., arXiv:2104.09864). See Bands.

    Tables of cos and sin are made in float64 and rounded once: processors differ in cos.
    """

    def __init__(self, max_positions: int, head_dims: int, rotary: Rotary) -> None:
        super().__init__()
        exponents = torch.arange(0, head_dims, 2, dtype=torch.float64) / head_dims
        places = torch.arange(max_positions, dtype=torch.float64)[:, None] / rotary.scale
        periods = rotary.theta**exponents
        angles = places / periods
        if bands := rotary.bands:
            turns = bands.trained / (2 * math.pi * periods)
            fast = ((turns - bands.low) / (bands.high - bands.low)).clamp(0, 1)
            angles = angles * (fast + (1 - fast) / bands.factor)
        self.cos: Tensor
        self.sin: Tensor
        # no weights: they follow from the shape
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, position_ids: Tensor) -> Rotation:
        """`[N]` -> the angles of each."""
        cos, sin = (F.embedding(position_ids, table)[:, None] for table in (self.cos, self.sin))
        return Rotation(cos, sin)


def rotary_tables(config: Config) -> nn.ModuleDict:
    """Tables of angles, for layers with a window and for the others; empty if none are rotated."""
    rotary = config.positions.rotary
    if not rotary:
        return nn.ModuleDict()
    dims, longest = config.head_dims, config.max_positions
    full = RotaryTable(longest, dims, rotary)
    if rotary.local_theta is None:
        return nn.ModuleDict({"full": full, "local": full})
    local = RotaryTable(longest, dims, replace(rotary, theta=rotary.local_theta))
    return nn.ModuleDict({"full": full, "local": local})


def rotate(qkv: Tensor, rotation: Rotation, num_turned: int) -> Tensor:
    """Rows of queries, keys, values `[N, (H + 2K) * e]` -> the same with queries and keys rotated.
    num_turned: H + K, the heads of queries and keys."""
    cos, sin = rotation
    width = num_turned * 2 * cos.shape[-1]
    first, second = qkv[:, :width].unflatten(-1, (num_turned, 2, -1)).unbind(-2)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return torch.cat([turned.flatten(1), qkv[:, width:]], -1)


class RelativeBias(nn.Module):
    """A bias on the scores, by head and by the distance from query to key.

    One table for all layers. Learned, large distances share buckets (Raffel et al.,
    arXiv:1910.10683). With alibi, each distance has a bucket, for keys behind and ahead, and the
    bias is minus the distance times the head's slope (Press et al., arXiv:2108.12409).
    """

    def __init__(self, num_buckets: int, n_heads: int, max_positions: int, alibi: bool) -> None:
        super().__init__()
        self.farthest = max_positions - 1
        distances = torch.arange(-self.farthest, max_positions)
        if alibi:
            self.table = nn.Embedding.from_pretrained(falling(num_buckets, n_heads))
            chosen = distances.abs().clamp(max=num_buckets - 1)
        else:
            self.table = nn.Embedding(num_buckets, n_heads)
            chosen = buckets(distances, num_buckets)
        self.buckets: Tensor
        # no weight: it follows from the shape
        self.register_buffer("buckets", chosen, persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """Place of key minus place of query `[B or 1, S, S]` -> `[B or 1, H, S, S]`."""
        limit = self.farthest  # pads may be farther, and are masked
        chosen = self.buckets[distances.clamp(-limit, limit) + limit]
        return self.table(chosen).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def falling(num_distances: int, n_heads: int) -> Tensor:
    """`[num_distances, H]`: minus the distance times each head's slope.

    Of a power of two, slopes are powers of 2^(-8 / H). Of other numbers, those of the next lower
    power of two come first, then every other one of twice as many.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    distances = torch.arange(num_distances, dtype=torch.float64)
    return -(distances[:, None] * torch.tensor(slopes[:n_heads], dtype=torch.float64)).float()


def buckets(distances: Tensor, num_buckets: int) -> Tensor:
    """Distances of any shape -> bucket of each: half for keys behind, half for keys ahead.

    In each half, the first half is for one distance each, and the others grow logarithmically.
    """
    half = num_buckets // 2
    exact = half // 2
    far = distances.abs()
    # of 0 .. 1 from the first such distance to MAX_DISTANCE; in this order, for the same rounding
    share = (far.float().clamp(min=1) / exact).log() / math.log(MAX_DISTANCE / exact)
    logarithmic = exact + (share * (half - exact)).long()
    near = far < exact
    return (distances > 0) * half + torch.where(near, far, logarithmic.clamp(max=half - 1))
