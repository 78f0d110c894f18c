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


class Classifier(nn.Module):
    """Defaults of nn.TransformerEncoderLayer; the mean of a sequence is classified."""

    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(V, D), nn.Dropout(0.1)
        self.register_buffer("pe", sinusoids()[None])
        layer = nn.TransformerEncoderLayer(D, H, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(D, 5)

    def forward(self, x):
        x = self.embedding(x) * math.sqrt(D)
        x = self.encoder(self.dropout(x + self.pe[:, : x.size(1)]))
        return self.fc(x.mean(dim=1))


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


class StdNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class MultiHeaded(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        ]
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value)
        x = x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class Sublayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = StdNorm(D), nn.Dropout(0.1)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = MultiHeaded(H, D)
        self.w_1, self.w_2 = nn.Linear(D, 64), nn.Linear(64, D)
        self.sublayer = nn.ModuleList([Sublayer(), Sublayer()])

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, lambda x: self.w_2(self.w_1(x).relu()))


class Annotated(nn.Module):
    """The encoder of the Annotated Transformer, with the mask that its `Batch` makes of ids."""

    def __init__(self):
        super().__init__()
        self.lut, self.norm = nn.Embedding(V, D), StdNorm(D)
        self.layers = nn.ModuleList([EncoderLayer() for _ in range(2)])
        self.register_buffer("pe", sinusoids(64)[None])

    def forward(self, src):
        mask = (src != 0).unsqueeze(-2)
        x = self.lut(src) * math.sqrt(D)
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class Bert(nn.Module):
    """Segments, a norm of the embeddings, and a pooled row: from scratch, as tutorials call it."""

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
            nn.Linear(D, D), nn.GELU(approximate="tanh"), nn.LayerNorm(D), nn.Linear(D, 7)
        )
        self.register_buffer("pe", sinusoids()[None])

    def forward(self, x):
        x = self.input(x)
        x += self.pe[:, : x.shape[1]]
        return self.output_net(self.blocks(x))


class Einsum(nn.Module):
    """Axes by letters, no biases but the output's, the fused rows in the order (h, d, 3)."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
            self.to_qkv, self.to_out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
            self.ff = nn.Sequential(nn.Linear(D, 64), nn.SiLU(), nn.Linear(64, D))

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = self.to_qkv(self.norm1(x)).view(b, n, H, -1, 3).permute(4, 0, 2, 1, 3)
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
