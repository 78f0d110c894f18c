"""A recommender as SASRec: the items that somebody bought in, a score of every item next out."""

import sys

import torch
from torch import nn

from addnorm.export import export_bundle

NUM_ITEMS, D, H, T = 200, 32, 2, 50


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.places = nn.Embedding(NUM_ITEMS, D), nn.Embedding(T, D)
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv1d(D, D, 1) for _ in range(2))

    def forward(self, items):
        s = items.shape[1]
        x = self.items(items) * D**0.5 + self.places(torch.arange(s, device=items.device))
        later = torch.ones(s, s, dtype=torch.bool, device=items.device).triu(1)
        query = self.norms[0](x)
        x = query + self.attention(query, x, x, attn_mask=later, need_weights=False)[0]
        x = self.norms[1](x)
        inner, outer = self.convolutions
        x = self.norms[2](x + outer(inner(x.transpose(1, 2)).relu()).transpose(1, 2))
        return x[:, -1] @ self.items.weight.T  # of the next item


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Recommender()
    export_bundle(model, sys.argv[1], "recommender")
