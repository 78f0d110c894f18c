"""Encoders, as tutorials write them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, D, H, T = 50, 32, 4, 40


def sinusoids(rows: int = T) -> Tensor:
    table, place = torch.zeros(rows, D), torch.arange(rows)[:, None]
    rate = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
    table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return table


class SequenceFirst(nn.Module):
    """PyTorch's word language model: `[S, B]` in, a norm of the whole after the last layer."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(V, D)
        self.register_buffer("pe", sinusoids()[:, None])
        layer = nn.TransformerEncoderLayer(D, H, 64)
        self.transformer_encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D))
        self.decoder = nn.Linear(D, V)

    def forward(self, src, src_mask=None):
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        src = self.encoder(src) * math.sqrt(D)
        return self.decoder(self.transformer_encoder(src + self.pe[: src.size(0)], src_mask))


class PreNorm(nn.Module):
    """Learned positions, a [CLS] row and a head of two layers."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Parameter(torch.randn(1, T, D) * 0.02)
        layer = nn.TransformerEncoderLayer(
            D, H, 64, activation="gelu", batch_first=True, norm_first=True, layer_norm_eps=1e-6
        )
        norm = nn.LayerNorm(D, eps=1e-6)
        self.encoder = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(D, 24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 3))

    def forward(self, ids):
        x = self.encoder(self.tok(ids) + self.pos[:, : ids.shape[1]])
        return self.head(x[:, 0])


class OwnLayers(nn.Module):
    """nn.MultiheadAttention in own blocks, as Keras' text classification; token and position."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.att = nn.MultiheadAttention(D, H, batch_first=True)
            self.ffn = nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, D))
            self.layernorm1, self.layernorm2 = (nn.LayerNorm(D, eps=1e-6) for _ in range(2))
            self.dropout1, self.dropout2 = nn.Dropout(0.1), nn.Dropout(0.1)

        def forward(self, inputs):
            attention, _ = self.att(inputs, inputs, inputs)
            out1 = self.layernorm1(inputs + self.dropout1(attention))
            return self.layernorm2(out1 + self.dropout2(self.ffn(out1)))

    def __init__(self):
        super().__init__()
        self.token_emb, self.pos_emb = nn.Embedding(V, D), nn.Embedding(T, D)
        self.block = self.Block()

    def forward(self, x):
        positions = torch.arange(0, x.size(-1), device=x.device)
        return self.block(self.token_emb(x) + self.pos_emb(positions))


class FusedByHead(nn.Module):
    """One matrix for queries, keys and values, head by head, with learned numbers for places."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv_proj, self.o_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
            self.linear_net = nn.Sequential(
                nn.Linear(D, 64), nn.ReLU(inplace=True), nn.Linear(64, D)
            )
            self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

        def forward(self, x):
            b, s, _ = x.size()
            qkv = self.qkv_proj(x).reshape(b, s, H, 3 * D // H).permute(0, 2, 1, 3)
            q, k, v = qkv.chunk(3, dim=-1)
            logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
            values = torch.matmul(F.softmax(logits, dim=-1), v)
            x = self.norm1(x + self.o_proj(values.permute(0, 2, 1, 3).reshape(b, s, D)))
            return self.norm2(x + self.linear_net(x))

    def __init__(self):
        super().__init__()
        self.input, self.blocks = nn.Embedding(V, D), nn.Sequential(self.Block(), self.Block())
        self.output_net = nn.Sequential(
            nn.Linear(D, D), nn.GELU(approximate="tanh"), nn.Linear(D, 7)
        )
        self.register_buffer("pe", sinusoids()[None])

    def forward(self, x):
        x = self.input(x)
        x += self.pe[:, : x.shape[1]]
        return self.output_net(self.blocks(x))


class Einsum(nn.Module):
    """Axes by letters, no biases but the output's."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
            self.to_qkv, self.to_out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
            self.ff = nn.Sequential(nn.Linear(D, 64), nn.SiLU(), nn.Linear(64, D))

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = self.to_qkv(self.norm1(x)).view(b, n, 3, H, -1).permute(2, 0, 3, 1, 4)
            dots = torch.einsum("bhid,bhjd->bhij", q * (D // H) ** -0.5, k)
            out = torch.einsum("bhij,bhjd->bhid", dots.softmax(-1), v)
            x = self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, D)) + x
            return self.ff(self.norm2(x)) + x

    def __init__(self):
        super().__init__()
        self.token_emb, self.pos_emb = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers, self.norm = nn.Sequential(self.Block(), self.Block()), nn.LayerNorm(D)

    def forward(self, x):
        x = self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1]))[None]
        return self.norm(self.layers(x)).max(dim=1).values
