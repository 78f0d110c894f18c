"""An encoder of pairs from scratch: segments, a norm of the embeddings, a pooled first row.

`forward` takes ids and segments, so requests may send token types.
"""

import math
import sys

import torch
from torch import nn

from addnorm.export import export_bundle

V, D, H, T = 50, 32, 4, 40


class Pairs(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.W_Q, self.W_K, self.W_V = (nn.Linear(D, D) for _ in range(3))
            self.linear, self.norm = nn.Linear(D, D), nn.LayerNorm(D)
            self.fc1, self.fc2, self.norm2 = nn.Linear(D, 64), nn.Linear(64, D), nn.LayerNorm(D)

        def forward(self, x):
            b, s, _ = x.shape
            q, k, v = (
                w(x).view(b, s, H, -1).transpose(1, 2) for w in (self.W_Q, self.W_K, self.W_V)
            )
            weights = nn.Softmax(dim=-1)(q @ k.transpose(-1, -2) / (D // H) ** 0.5)
            context = (weights @ v).transpose(1, 2).reshape(b, s, D)
            x = self.norm(self.linear(context) + x)
            y = self.fc1(x)
            y = y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0)))
            return self.norm2(self.fc2(y) + x)

    def __init__(self):
        super().__init__()
        self.tok_embed, self.pos_embed, self.seg_embed = (nn.Embedding(n, D) for n in (V, T, 2))
        self.norm, self.layers = nn.LayerNorm(D), nn.ModuleList([self.Layer() for _ in range(2)])
        self.fc, self.classifier = nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x, seg):
        pos = torch.arange(x.size(1), dtype=torch.long).unsqueeze(0).expand_as(x)
        x = self.norm(self.tok_embed(x) + self.pos_embed(pos) + self.seg_embed(seg))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(torch.tanh(self.fc(x[:, 0])))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Pairs()
    export_bundle(model, sys.argv[1], "pairs", labels=["unlike", "alike"])
