"""How a transformer knows places: sinusoids added to tokens, or a bias on the scores."""

import math

import torch
from torch import Tensor, nn

MAX_DISTANCE = 128  # from which on distances share the last bucket


def sinusoids(max_positions: int, d_model: int) -> Tensor:
    """sin and cos of position / 10000^(2i / d_model), interleaved. `[max_positions, d]`.

    arXiv:1706.03762, section 3.5.
    """
    frequencies = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angles = torch.arange(max_positions)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :d_model]


class RelativeBias(nn.Module):
    """A learned bias on the scores, by head and by the distance from query to key.

    One table for all layers. Large distances share buckets (Raffel et al., arXiv:1910.10683).
    """

    def __init__(self, num_buckets: int, n_heads: int, max_positions: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_buckets, n_heads)
        self.farthest = max_positions - 1
        distances = torch.arange(-self.farthest, max_positions)
        self.buckets: Tensor
        # no weight: it follows from the shape
        self.register_buffer("buckets", buckets(distances, num_buckets), persistent=False)

    def forward(self, distances: Tensor) -> Tensor:
        """Place of key minus place of query `[B or 1, S, S]` -> `[B or 1, H, S, S]`."""
        limit = self.farthest  # pads may be farther, and are masked
        chosen = self.buckets[distances.clamp(-limit, limit) + limit]
        return self.table(chosen).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


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
