"""Modules written after the recognition was, to see what it makes of them; and what none can be."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V


class Bravo(nn.Module):
    """Values, keys, queries in one matrix, in this order; the feed-forward inside of the block;
    a row is picked with a mask."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Embedding(V, D, padding_idx=0), nn.Embedding(T, D)
        self.stack = nn.ModuleList([self.Unit() for _ in range(3)])
        self.verdict = nn.Linear(D, 4)

    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.vkq, self.mix = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
            self.grow, self.shrink = nn.Linear(D, 80, bias=False), nn.Linear(80, D, bias=False)
            self.after = nn.ModuleList([nn.LayerNorm(D, bias=False) for _ in range(2)])

        def forward(self, t):
            n, s, _ = t.shape
            v, k, q = (u.unflatten(-1, (H, -1)).movedim(2, 1) for u in self.vkq(t).chunk(3, -1))
            weight = F.softmax(torch.baddbmm(
                torch.zeros(n * H, s, s), q.flatten(0, 1), k.flatten(0, 1).mT,
                alpha=(D // H) ** -0.5,
            ), 2)  # fmt: skip
            seen = torch.bmm(weight, v.flatten(0, 1)).view(n, H, s, -1).movedim(1, 2).flatten(2)
            t = self.after[0](t + self.mix(seen))
            return self.after[1](self.shrink(F.gelu(self.grow(t))) + t)

    def forward(self, numbers):
        real = (numbers != 0).float()
        t = self.one(numbers) + self.two.weight[: numbers.shape[1]]
        for unit in self.stack:
            t = unit(t)
        mean = (t * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.verdict(mean)


class Convolution(nn.Module):
    """Attention, and a convolution over neighbours in place of the feed-forward."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attention, self.norm = nn.MultiheadAttention(D, H, batch_first=True), nn.LayerNorm(D)
        self.filter = nn.Conv1d(D, D, 3, padding=1)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.attention(x, x, x)[0]
        return self.norm(x + self.filter(x.mT).mT)


class AcrossTokens(nn.Module):
    """A LayerNorm over tokens and features, as one notebook has it."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layer = nn.TransformerEncoderLayer(D, H, 64, batch_first=True)
        self.gamma, self.beta = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, ids):
        x = self.layer(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        mean = x.mean(dim=(-1, -2), keepdim=True)
        variance = ((x - mean) ** 2).mean(dim=(-1, -2), keepdim=True)
        return self.gamma * (x - mean) / (variance + 1e-5).sqrt() + self.beta


STRANGERS = {"bravo": Bravo}
