"""The comparison: a BERT in PyTorch with scaled_dot_product_attention, as most people run it.

Kept as it is on purpose: do not make it slower.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from addnorm.model.config import Config


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.d_model
        self.n_heads = config.n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, config.eps) for _ in range(2))

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:  # [B, S, d] -> [B, S, d]
        heads = (part.unflatten(-1, (self.n_heads, -1)) for part in self.qkv(x).chunk(3, -1))
        q, k, v = (part.transpose(1, 2) for part in heads)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = self.norm1(x + self.out(context.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Token ids and lengths -> hidden states, or their means."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.types = nn.Embedding(config.type_vocab_size, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, config.eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """ids `[B, S]` padded on the right, lengths `[B]` -> hidden `[B, S, d]`, means `[B, d]`."""
        columns = torch.arange(ids.shape[1], device=ids.device)
        real = columns < lengths[:, None]
        # without a mask PyTorch takes its fastest kernel
        seen = None if bool(real.all()) else real[:, None, None, :]
        x = self.norm(self.tokens(ids) + self.positions(columns) + self.types.weight[0])
        for layer in self.layers:
            x = layer(x, seen)
        weights = real[:, :, None].to(x.dtype)
        return x, (x * weights).sum(1) / lengths[:, None].to(x.dtype)


def encoder(config: Config, device: str) -> Encoder:
    """An encoder with random weights, in float16 on a GPU and float32 on the CPU."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    made: Any = Encoder(config).eval().to(device, dtype)
    return made  # type: ignore[no-any-return]


def save(config: Config, folder: Path, seed: int) -> None:
    """The same model as a folder of transformers, with weights of this seed."""
    torch.manual_seed(seed)
    sizes = BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        intermediate_size=config.d_ff,
        max_position_embeddings=config.max_positions,
    )
    BertModel(sizes, add_pooling_layer=False).save_pretrained(folder)
