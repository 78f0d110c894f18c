"""A Llama from scratch: RMSNorm, rotary positions, grouped queries and a gated feed-forward.

It is not recognized, and so is served as it is: its own graph.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from addnorm.export import export_bundle

V, D, H, KV, T = 60, 32, 4, 2, 64


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x, cos, sin):
    """Rotary positions of `[B, heads, S, width]`."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.kv = nn.Linear(D, 2 * KV * D // H, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q = self.q(x).view(b, s, H, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, s, 2 * KV, -1).transpose(1, 2).chunk(2, 1)
        k, v = (part.repeat_interleave(H // KV, 1) for part in (rotate(k, cos, sin), v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, s, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = RMSNorm(), Attention(), RMSNorm()
        self.gate, self.up = nn.Linear(D, 86, bias=False), nn.Linear(D, 86, bias=False)
        self.down = nn.Linear(86, D, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(V, D), RMSNorm()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(D, V)
        rate = 10000.0 ** (-torch.arange(0, D // H, 2) / (D // H))
        angles = torch.arange(T)[:, None] * torch.cat([rate, rate])
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids):
        x, s = self.tokens(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:s], self.sin[:s])
        return self.head(self.norm(x))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Llama()
    export_bundle(model, sys.argv[1], "llama", config={"max_positions": T})
