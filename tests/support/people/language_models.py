"""Causal language models, as tutorials write them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V
from tests.support.people.examples import example

Block = example("nano_gpt")["Block"]  # minGPT's too, with biases


class MaskedAttention(nn.Module):
    """minGPT's."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.register_buffer("bias", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(D, dim=2)
        q, k, v = (y.view(b, t, H, c // H).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class NewGELU(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class MinGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.h = nn.ModuleList([Block(MaskedAttention(), NewGELU(), True) for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long).unsqueeze(0)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x)), None


class ScaleShiftNorm(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.eps = 1e-5
        self.scale, self.shift = (
            nn.Parameter(torch.ones(emb_dim)),
            nn.Parameter(torch.zeros(emb_dim)),
        )

    def forward(self, x):
        mean, var = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(var + self.eps) + self.shift


class SeparateAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.out_proj, self.dropout = nn.Linear(D, D), nn.Dropout(0.1)
        self.register_buffer("mask", torch.triu(torch.ones(T, T), diagonal=1))

    def forward(self, x):
        b, n, _ = x.shape
        keys, queries, values = (
            w(x).view(b, n, H, D // H).transpose(1, 2)
            for w in (self.W_key, self.W_query, self.W_value)
        )
        scores = queries @ keys.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:n, :n], -torch.inf)
        weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
        context = (weights @ values).transpose(1, 2).contiguous().view(b, n, D)
        return self.out_proj(context)


class FromScratchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.att, self.drop_shortcut = SeparateAttention(), nn.Dropout(0.1)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), NewGELU(), nn.Linear(4 * D, D))
        self.norm1, self.norm2 = ScaleShiftNorm(D), ScaleShiftNorm(D)

    def forward(self, x):
        shortcut = x
        x = self.drop_shortcut(self.att(self.norm1(x)))
        x = x + shortcut
        shortcut = x
        x = self.drop_shortcut(self.ff(self.norm2(x)))
        return x + shortcut


class FromScratch(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(V, D), nn.Embedding(T, D)
        self.drop_emb = nn.Dropout(0.1)
        self.trf_blocks = nn.Sequential(FromScratchBlock(), FromScratchBlock())
        self.final_norm, self.out_head = ScaleShiftNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, in_idx):
        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(in_idx.shape[1]))
        return self.out_head(self.final_norm(self.trf_blocks(self.drop_emb(x))))
