"""A language model of characters as a well-known lecture writes it: a module for each head.

Scores are divided by the root of the whole width, not of a head's: that is found by trial.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from addnorm.export import export_bundle

D, H, T = 32, 4, 40
TEXT = "a norm is taken of every row, and a row is added to every norm. " * 3
VOCABULARY = {character: index for index, character in enumerate(sorted(set(TEXT)))}
V = len(VOCABULARY)


class LectureHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, D // H, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(T, T)))

    def forward(self, x):
        _, t, c = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * c**-0.5
        wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class LectureBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.proj = nn.ModuleList([LectureHead() for _ in range(H)]), nn.Linear(D, D)
        self.net = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.proj(torch.cat([h(y) for h in self.heads], dim=-1))
        return x + self.net(self.ln2(x))


class Lecture(nn.Module):
    """A module for each head; scores are divided by the root of the model's width."""

    def __init__(self):
        super().__init__()
        self.token_embedding_table, self.position_embedding_table = (
            nn.Embedding(n, D) for n in (V, T)
        )
        self.blocks = nn.Sequential(LectureBlock(), LectureBlock())
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, idx, targets=None):
        x = self.token_embedding_table(idx)
        x = x + self.position_embedding_table(torch.arange(idx.shape[1], device=idx.device))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, V), targets.view(-1))


def train(model, steps=20):
    ids = torch.tensor([[VOCABULARY[character] for character in TEXT]])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps):
        start = step % (ids.shape[1] - T)
        _, loss = model(ids[:, start : start + T], ids[:, start + 1 : start + T + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Lecture()
    train(model)
    export_bundle(model, sys.argv[1], "lecture-gpt", vocabulary=VOCABULARY)
