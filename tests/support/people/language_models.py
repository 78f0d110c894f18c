"""Causal language models, as tutorials write them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V


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
    """Without biases; tied; at inference the last position alone."""

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
        return self.lm_head(self.ln_f(self.blocks(x))), None


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
