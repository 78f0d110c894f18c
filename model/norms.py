"""Norms of rows, and their statistics."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.model.config import Config


class LayerNorm(nn.Module):
    """gamma * (x - mean) / denominator + beta over the trailing axes `normalized_shape`.

    kind "layer": the denominator is sqrt(biased variance + eps) (Ba et al., arXiv:1607.06450).
    kind "std": it is unbiased std + eps, as many tutorials write it.
    kind "rms": it is sqrt(mean(x^2) + eps), and 0 stands for the mean (Zhang and Sennrich,
    arXiv:1910.07467).
    bias: whether there is a beta.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        kind: Literal["layer", "std", "rms"] = "layer",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.shape = (
            (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        )
        self.eps, self.kind = eps, kind
        self.gamma = nn.Parameter(torch.ones(self.shape))
        self.beta = nn.Parameter(torch.zeros(self.shape)) if bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[..., *normalized_shape]` -> y like x; mean, 1 / denominator `[..., 1, ...]`."""
        if self.kind == "layer":  # one ONNX LayerNormalization node, whose statistics come for free
            return torch.native_layer_norm(x, self.shape, self.gamma, self.beta, self.eps)
        axes = list(range(-len(self.shape), 0))
        if self.kind == "rms":
            square = (x * x).mean(axes, keepdim=True)
            # not zeros_like, whose shape to_half would take for numbers
            centred, mean, rstd = x, square * 0.0, (1.0 / (square + self.eps)).sqrt()
        else:
            mean = x.mean(axes, keepdim=True)
            centred = x - mean
            variance = centred.square().sum(axes, keepdim=True) / (math.prod(self.shape) - 1)
            rstd = 1.0 / (variance.sqrt() + self.eps)
        y = self.gamma * (centred * rstd)
        return y if self.beta is None else y + self.beta, mean, rstd


def norm(config: Config, width: int | None = None) -> LayerNorm:
    """width: d_model if None."""
    return LayerNorm(width or config.d_model, config.eps, config.norm, config.norm_bias)
