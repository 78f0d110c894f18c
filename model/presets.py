"""The presets by name, each a shape that the project promises to export, certify and serve."""

import math
import random

import torch
from torch import Tensor

from addnorm.model.config import Config, HeadConfig, Positions
from addnorm.model.transformer import Block, Head, Transformer, randomize

PRESETS = {
    # "Layer Normalization" from a notebook series that builds a transformer by hand: one residual,
    # one norm
    "notebook": Config(
        vocab_size=6, d_model=16, n_heads=2, d_ff=64, n_layers=1, max_positions=5, causal=True,
        block="single", activation="gelu_tanh", eps=1e-5, attention_bias=False,
        heads={"logits": HeadConfig("every", 6, bias=False)},
    ),
    # "Why Not Batch Normalization?": its LayerNorm divides by (unbiased std + eps)
    "postnorm": Config(
        vocab_size=1000, d_model=128, n_heads=4, d_ff=512, n_layers=2, max_positions=512,
        activation="relu", norm="std", eps=1e-6,
        heads={"logits": HeadConfig("every", 1000)},
    ),
    # "Normalization Layers", GPT: pre-norm, causal, a final norm
    "gpt": Config(
        vocab_size=1000, d_model=128, n_heads=4, d_ff=512, n_layers=4, max_positions=512,
        causal=True, block="pre", activation="gelu_tanh", eps=1e-5, final_norm=True,
        heads={"logits": HeadConfig("every", 1000)},
    ),
    # the original encoder (Vaswani et al., 2017)
    "encoder": Config(
        vocab_size=1000, d_model=512, n_heads=8, d_ff=2048, n_layers=6, max_positions=512,
        activation="relu", eps=1e-6,
        positions=Positions("sinusoidal"), embedding_scale=math.sqrt(512),
        heads={"logits": HeadConfig("every", 1000)},
    ),
    # the shape of small sentence-embedding models
    "minilm": Config(
        vocab_size=30522, d_model=384, n_heads=12, d_ff=1536, n_layers=6, max_positions=512,
        activation="gelu", eps=1e-12, embedding_norm=True,
        heads={"logits": HeadConfig("every", 30522)},
    ),
}  # fmt: skip


def build(name: str, layout: str = "packed", seed: int = 42) -> Transformer:
    """The preset's model in evaluation mode, its weights drawn from `seed`.

    KeyError for an unknown name.
    """
    model = Transformer(PRESETS[name], layout)
    if name == "notebook":
        load_notebook(model, seed)
    else:
        randomize(model, seed)
    return model.eval()


def load_notebook(model: Transformer, seed: int) -> None:
    """Draws the weights in the notebook's order, then the head's. gamma is 1, beta 0."""
    config, draws = model.config, random.Random(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.tensor([[draws.gauss(0, 0.1) for _ in range(columns)] for _ in range(rows)])

    block = model.blocks[0]
    head = model.heads["logits"]
    assert isinstance(block, Block)
    assert isinstance(head, Head)
    with torch.no_grad():
        model.tokens.weight.copy_(matrix(config.vocab_size, config.d_model))
        model.positions.weight.copy_(matrix(config.max_positions, config.d_model))
        d_head = config.d_model // config.n_heads
        # x @ W with W [d_model, d_head], head by head, for Q, then K, then V
        parts = [matrix(config.d_model, d_head).T for _ in range(3 * config.n_heads)]
        block.attention.qkv.weight.copy_(torch.cat(parts))
        block.attention.out.weight.copy_(matrix(config.d_model, config.d_model))
        for linear in (block.ffn.up, block.ffn.down):
            linear.weight.copy_(matrix(*linear.weight.shape))
            linear.bias.copy_(matrix(1, linear.out_features)[0])
        head.linear.weight.copy_(matrix(config.vocab_size, config.d_model))
