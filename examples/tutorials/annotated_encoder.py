"""The encoder of the Annotated Transformer: its own LayerNorm, and a mask made of ids.

Pads are id 0 wherever they stand, so the bundle takes that id at pads alone.
"""

import math
import sys

import torch
from torch import nn

from addnorm.export import export_bundle

V, D, H = 50, 32, 4


def sinusoids(rows):
    table, place = torch.zeros(rows, D), torch.arange(rows)[:, None]
    rate = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
    table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return table


class StdNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class MultiHeaded(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value)
        x = x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Sublayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = StdNorm(D), nn.Dropout(0.1)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = MultiHeaded(H, D)
        self.w_1, self.w_2 = nn.Linear(D, 64), nn.Linear(64, D)
        self.sublayer = nn.ModuleList([Sublayer(), Sublayer()])

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, lambda x: self.w_2(self.w_1(x).relu()))


class Annotated(nn.Module):
    """The encoder of the Annotated Transformer, with the mask that its `Batch` makes of ids."""

    def __init__(self):
        super().__init__()
        self.lut, self.norm = nn.Embedding(V, D), StdNorm(D)
        self.layers = nn.ModuleList([EncoderLayer() for _ in range(2)])
        self.register_buffer("pe", sinusoids(64)[None])

    def forward(self, src):
        mask = (src != 0).unsqueeze(-2)
        x = self.lut(src) * math.sqrt(D)
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Annotated()
    export_bundle(model, sys.argv[1], "annotated", pooling="mean")
