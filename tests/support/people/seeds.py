"""Blocks of notebooks that explain LayerNorm, each in the smallest model around it."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V


class GammaBetaNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.gamma, self.beta = (
            nn.Parameter(torch.ones(d_model)),
            nn.Parameter(torch.zeros(d_model)),
        )
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        std = x.std(dim=-1, keepdim=True)
        x_norm = (x - mean) / (std + self.eps)
        return self.gamma * x_norm + self.beta


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        b, s, d = x.shape
        q, k, v = (w(x).view(b, s, H, d // H).transpose(1, 2) for w in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // H)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, s, d))


class Post(nn.Module):
    """Add & Norm, with the deviation of `torch.std` and eps beside it."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attention = MultiHeadAttention(D)
        self.norm1, self.norm2 = GammaBetaNorm(D), GammaBetaNorm(D)
        self.ffn = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))

    def forward(self, ids, mask=None):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.ffn(x))


class Single(nn.Module):
    """Matrices for each head in a list, one norm after both parts, gelu by its formula; matrices
    are multiplied from the right as the notebook does."""

    def __init__(self):
        super().__init__()
        draw = lambda *shape: nn.Parameter(torch.randn(*shape) * 0.1)  # noqa: E731
        self.E_token, self.E_pos = draw(V, D), draw(T, D)
        self.W_Q, self.W_K, self.W_V = (
            nn.ParameterList([draw(D, D // H) for _ in range(H)]) for _ in range(3)
        )
        self.W_O, self.W1, self.W2 = draw(D, D), draw(64, D), draw(D, 64)
        self.b1, self.b2 = draw(64), draw(D)
        self.gamma, self.beta = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))
        self.epsilon = 1e-5

    def forward(self, tokens):
        x = self.E_token[tokens] + self.E_pos[: tokens.shape[1]]
        heads = [self.head(x, h) for h in range(H)]
        attended = torch.cat(heads, -1) @ self.W_O.T
        hidden = attended @ self.W1.T + self.b1
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        ffn = 0.5 * hidden * (1 + torch.tanh(inner)) @ self.W2.T + self.b2
        return self.layer_norm(attended + ffn)

    def head(self, x, h):
        q, k, v = x @ self.W_Q[h], x @ self.W_K[h], x @ self.W_V[h]
        scores = q @ k.transpose(-2, -1) / math.sqrt(D // H)
        later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v

    def layer_norm(self, x):
        mean = x.sum(-1, keepdim=True) / D
        variance = ((x - mean) ** 2).sum(-1, keepdim=True) / D
        return self.gamma * ((x - mean) / torch.sqrt(variance + self.epsilon)) + self.beta


class UnbiasedNorm(nn.Module):
    """`var` of PyTorch's default, so that eps stands inside of an unbiased root."""

    def __init__(self, emb_dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.scale, self.shift = (
            nn.Parameter(torch.ones(emb_dim)),
            nn.Parameter(torch.zeros(emb_dim)),
        )

    def forward(self, x):
        mean, var = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True)
        return self.scale * ((x - mean) / torch.sqrt(var + self.eps)) + self.shift


class ScaleShift(nn.Module):
    """Pre-norm, as the GPT block of the notes."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attention, self.norm1, self.norm2 = (
            MultiHeadAttention(D),
            UnbiasedNorm(D),
            UnbiasedNorm(D),
        )
        self.up, self.down, self.final = nn.Linear(D, 64), nn.Linear(64, D), UnbiasedNorm(D)
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        s = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(s))
        x = x + self.attention(self.norm1(x), torch.ones(s, s).tril())
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.final(x))
