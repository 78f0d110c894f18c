"""Modules written after the recognition was, to see what it makes of them; and what none can be."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V


class Alpha(nn.Module):
    """Raw parameters, heads as an axis of a weight, places from the front of a long table."""

    def __init__(self):
        super().__init__()
        self.lex = nn.Parameter(torch.randn(V, D))
        self.where = nn.Parameter(torch.randn(T, D))
        self.pack = nn.Parameter(torch.randn(2, 3, H, D, D // H) * 0.2)
        self.unpack = nn.Parameter(torch.randn(2, H, D // H, D) * 0.2)
        self.wide, self.slim = (
            nn.Parameter(torch.randn(2, a, b) * 0.2) for a, b in ((D, 48), (48, D))
        )
        self.g, self.o = nn.Parameter(torch.ones(5, D)), nn.Parameter(torch.zeros(5, D))

    def forward(self, sentence):
        z = self.lex[sentence] + self.where[: sentence.shape[1]]
        for i in range(2):
            y = F.layer_norm(z, (D,), self.g[2 * i], self.o[2 * i], 1e-3)
            a, b, c = torch.einsum("bsd,jhde->jbhse", y, self.pack[i])
            w = torch.softmax(torch.einsum("bhse,bhte->bhst", a, b) / (D // H) ** 0.5, -1)
            z = z + torch.einsum("bhst,bhte,hed->bsd", w, c, self.unpack[i])
            y = F.layer_norm(z, (D,), self.g[2 * i + 1], self.o[2 * i + 1], 1e-3)
            z = z + torch.relu(y @ self.wide[i]) @ self.slim[i]
        return F.layer_norm(z, (D,), self.g[4], self.o[4], 1e-3)


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


class Charlie(nn.Module):
    """Functions in place of modules, a causal mask that is added, tied, and never trained."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        names = ("kq", "v", "o", "a", "b")
        sizes = ((D, 2 * D), (D, D), (D, D), (D, 100), (100, D))
        self.maps = nn.ModuleDict({n: nn.Linear(*s) for n, s in zip(names, sizes, strict=True)})
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(3)])

    def forward(self, ids, past=None):
        count = ids.shape[1]
        future = torch.full((count, count), -1e9).triu(1)
        rows = self.table(ids) + self.places(torch.arange(count))
        rows = rows + self.attend(self.norms[0](rows), future)
        rows = rows + self.maps["b"](F.silu(self.maps["a"](self.norms[1](rows))))
        return {"hidden": rows, "logits": F.linear(self.norms[2](rows), self.table.weight)}

    def attend(self, rows, future):
        k, q = self.maps["kq"](rows).split(D, -1)
        v = self.maps["v"](rows)
        k, q, v = (x.reshape(*x.shape[:2], -1, H).permute(0, 3, 1, 2) for x in (k, q, v))
        p = torch.softmax((q @ k.mT).div((D / H) ** 0.5) + future, dim=-1)
        return self.maps["o"]((p @ v).permute(0, 2, 3, 1).flatten(2))


class Delta(nn.Module):
    """Masks and sums in place, a list of layers run backwards, weight norm on one of them."""

    def __init__(self):
        super().__init__()
        self.vocab, self.start = nn.Embedding(V, 24), nn.Linear(24, D)
        self.slots = nn.Embedding(T, 24)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(D, 2, 40, batch_first=True, bias=False) for _ in range(2)
        ])  # fmt: skip
        for layer in self.layers:
            nn.utils.parametrizations.weight_norm(layer.linear1)
        self.pool = nn.Linear(D, D)

    def forward(self, ids):
        count = ids.size(1)
        hidden = torch.zeros(count, count, dtype=torch.bool)
        hidden[torch.triu(torch.ones_like(hidden), 1)] = True
        x = self.vocab(ids)
        x += self.slots(torch.arange(count))
        x = self.start(x)
        for layer in reversed(self.layers):
            x = layer(x, src_mask=hidden)
        return torch.tanh(self.pool(x[:, -1]))


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


STRANGERS = {"alpha": Alpha, "bravo": Bravo, "charlie": Charlie, "delta": Delta}
