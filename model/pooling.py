"""One vector for each sequence of a grid, made of its tokens' activations."""

from collections.abc import Callable

import torch
from torch import Tensor

from addnorm.model.config import Pick

# by places `[B, S]`, 1 for a sequence's first token and 0 at pads, and lengths `[B, 1]`
WEIGHTS: dict[Pick, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda places, lengths: places == 1,
    "last": lambda places, lengths: places == lengths,
    "mean": lambda places, lengths: (places > 0) / lengths,
    "weighted_mean": lambda places, lengths: 2 * places / (lengths * (lengths + 1)),
    "mean_sqrt": lambda places, lengths: (places > 0) / lengths.sqrt(),
}


def pick_vectors(pick: Pick, activations: Tensor, attention_mask: Tensor) -> Tensor:
    """activations `[B, S, d]`, attention_mask `[B, S]`, non-zero = real token -> `[B, d]`.

    Zeros for a row of pads alone. For "every", the activations as they are.
    """
    if pick == "every":
        return activations
    real = attention_mask != 0
    if pick == "max":
        highest = activations.masked_fill(~real[:, :, None], -torch.inf).amax(1)
        return torch.where(real.any(1, keepdim=True), highest, 0.0)
    lengths = real.sum(1, keepdim=True).clamp(min=1)
    weights = WEIGHTS[pick](real.cumsum(1) * real, lengths)
    return torch.einsum("bs,bsd->bd", weights.to(activations.dtype), activations)
