"""A language model of characters as nanoGPT writes it: one fused matrix, no biases, tied, flash.

It answers with the last position alone; the bundle has the logits of every position.
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


class BiasNorm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class FlashAttention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D, bias=bias), nn.Linear(D, D, bias=bias)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(D, dim=2)
        q, k, v = (y.view(b, t, H, c // H).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, attention, activation, bias):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = BiasNorm(D, bias), attention, BiasNorm(D, bias)
        self.mlp = nn.ModuleDict({
            "c_fc": nn.Linear(D, 4 * D, bias=bias), "c_proj": nn.Linear(4 * D, D, bias=bias),
            "act": activation, "dropout": nn.Dropout(0.1),
        })  # fmt: skip

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        m = self.mlp
        return x + m.dropout(m.c_proj(m.act(m.c_fc(self.ln_2(x)))))


class NanoGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(V, D), "wpe": nn.Embedding(T, D), "drop": nn.Dropout(0.1),
            "h": nn.ModuleList([Block(FlashAttention(False), nn.GELU(), False) for _ in range(2)]),
            "ln_f": BiasNorm(D, False),
        })  # fmt: skip
        self.lm_head = nn.Linear(D, V, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        _, t = idx.size()
        assert t <= T, f"Cannot forward sequence of length {t}, block size is only {T}"
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
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
    model = NanoGPT()
    train(model)
    export_bundle(model, sys.argv[1], "nano-gpt", vocabulary=VOCABULARY)
