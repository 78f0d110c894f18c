"""Encoders of other kinds: recommenders, patches, series, tables, speech, sets."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V

NUM = 6  # numbers of a step or a patch
W = D // H


def layers(count=2, **options):
    layer = nn.TransformerEncoderLayer(D, H, 64, batch_first=True, **options)
    return nn.TransformerEncoder(layer, count, enable_nested_tensor=False)


class LstmAttention(nn.Module):
    """A classifier by an LSTM of both directions and one score for each step."""

    def __init__(self):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(V, D), nn.Linear(2 * D, 3)
        self.lstm = nn.LSTM(D, D, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.attention = nn.Linear(2 * D, 1)

    def forward(self, x):
        h, (hidden, _) = self.lstm(self.embedding(x))
        weights = torch.softmax(self.attention(torch.tanh(h)), dim=1)
        context = torch.bmm(weights.transpose(1, 2), h).squeeze(1)
        self.weights = weights
        return self.fc(context + hidden[-1].repeat(1, 2))


class GruTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(V, D, padding_idx=0), nn.Linear(2 * D, 7)
        self.gru = nn.GRU(D, D, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.out(self.gru(self.embedding(x))[0])


class SASRec(nn.Module):
    """Item 0 is a pad, whose rows are set to 0 after each part; [S, B] within attention."""

    def __init__(self):
        super().__init__()
        self.item_emb, self.pos_emb = nn.Embedding(V, D, padding_idx=0), nn.Embedding(T, D)
        self.norm1, self.norm2, self.last = (nn.LayerNorm(D, eps=1e-8) for _ in range(3))
        self.attention = nn.MultiheadAttention(D, 1, 0.2)
        self.conv1, self.conv2 = nn.Conv1d(D, D, 1), nn.Conv1d(D, D, 1)

    def forward(self, log_seqs):
        seqs = self.item_emb(log_seqs) * D**0.5 + self.pos_emb(torch.arange(log_seqs.shape[1]))
        timeline = log_seqs == 0
        seqs = seqs * ~timeline.unsqueeze(-1)
        tl = seqs.shape[1]
        mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool))
        seqs = torch.transpose(seqs, 0, 1)
        q = self.norm1(seqs)
        y, _ = self.attention(q, seqs, seqs, attn_mask=mask)
        seqs = torch.transpose(q + y, 0, 1)
        seqs = self.norm2(seqs)
        y = self.conv2(F.relu(self.conv1(seqs.transpose(-1, -2)))).transpose(-1, -2)
        seqs = (seqs + y) * ~timeline.unsqueeze(-1)
        return self.last(seqs) @ self.item_emb.weight.T


class Bert4Rec(nn.Module):
    """The mask is made of the ids, for every query."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(V, D, padding_idx=0), nn.Embedding(T, D)
        self.qkv = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.output, self.norms = nn.Linear(D, D), nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.ff = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))
        self.out = nn.Linear(D, V)

    def forward(self, x):
        mask = (x > 0).unsqueeze(1).repeat(1, x.size(1), 1).unsqueeze(1)
        batch = x.size(0)
        x = self.token(x) + self.position.weight.unsqueeze(0).repeat(batch, 1, 1)[:, : x.size(1)]
        y = self.norms[0](x)
        q, k, v = (m(y).view(batch, -1, H, W).transpose(1, 2) for m in self.qkv)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        weights = F.softmax(scores.masked_fill(mask == 0, -1e9), dim=-1)
        y = torch.matmul(weights, v).transpose(1, 2).contiguous().view(batch, -1, D)
        x = x + self.output(y)
        return self.out(x + self.ff(self.norms[1](x)))


class ViT(nn.Module):
    """Patches as vectors, a class token before them."""

    def __init__(self):
        super().__init__()
        self.to_patch = nn.Sequential(nn.LayerNorm(NUM), nn.Linear(NUM, D), nn.LayerNorm(D))
        self.pos_embedding = nn.Parameter(torch.randn(1, T + 1, D))
        self.cls_token = nn.Parameter(torch.randn(1, 1, D))
        self.transformer = layers(norm_first=True, activation="gelu")
        self.mlp_head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4))

    def forward(self, patches):
        x = self.to_patch(patches)
        b, n, _ = x.shape
        x = torch.cat((self.cls_token.repeat(b, 1, 1), x), 1) + self.pos_embedding[:, : n + 1]
        return self.mlp_head(self.transformer(x)[:, 0])


class PatchTST(nn.Module):
    """Each channel of a series by itself, in patches of 8 at steps of 4: a forecast of 5 steps."""

    def __init__(self):
        super().__init__()
        self.embed, self.encoder, self.head = nn.Linear(8, D), layers(), nn.Linear(D, 5)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        x = ((x - mean) / std).transpose(1, 2)
        x = F.pad(x, (0, 8), mode="replicate").unfold(-1, 8, 4)
        b, channels, n, _ = x.shape
        y = self.encoder(self.embed(x.reshape(b * channels, n, 8))).mean(1)
        forecast = self.head(y).view(b, channels, 5).transpose(1, 2)
        return (forecast * std + mean).flatten(1)


class SeriesTransformer(nn.Module):
    """Sinusoids that are added to vectors, a causal mask, the forecast of the last row."""

    def __init__(self):
        super().__init__()
        self.src_mask, self.input, self.decoder = None, nn.Linear(NUM, D), nn.Linear(D, 1)
        self.encoder = layers()

    def forward(self, src):
        size = src.size(1)
        if self.src_mask is None or self.src_mask.size(0) != size:
            self.src_mask = nn.Transformer.generate_square_subsequent_mask(size)
        place = torch.arange(size).unsqueeze(1)
        rate = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
        pe = torch.zeros(size, D)
        pe[:, 0::2] = torch.sin(place * rate)
        pe[:, 1::2] = torch.cos(place * rate)
        return self.decoder(self.encoder(self.input(src) + pe, self.src_mask))[:, -1]


class TabTransformer(nn.Module):
    """A category for each of 7 columns, by an offset into one table."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.arange(7) * 7)
        self.embed, self.transformer = nn.Embedding(49, D), layers(1)
        self.mlp = nn.Sequential(nn.Linear(7 * D, D), nn.ReLU(), nn.Linear(D, 1))

    def forward(self, categories):
        x = self.transformer(self.embed(categories % 7 + self.offset))
        return self.mlp(x.flatten(1))


class Electra(nn.Module):
    """Small embeddings that are widened, and one number for each token."""

    def __init__(self):
        super().__init__()
        self.word, self.place, self.kind = (
            nn.Embedding(V, 16),
            nn.Embedding(T, 16),
            nn.Embedding(2, 16),
        )
        self.norm, self.project, self.encoder = (
            nn.LayerNorm(16),
            nn.Linear(16, D),
            layers(activation="gelu"),
        )
        self.dense, self.predict = nn.Linear(D, D), nn.Linear(D, 1)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = (
            self.word(input_ids)
            + self.place(torch.arange(input_ids.shape[1]))
            + self.kind(token_type_ids)
        )
        x = self.encoder(self.project(self.norm(x)))
        return self.predict(F.gelu(self.dense(x))).squeeze(-1)


class Albert(nn.Module):
    """One layer, run four times; a mask is made if none is given."""

    def __init__(self):
        super().__init__()
        self.word, self.place, self.map_in = (
            nn.Embedding(V, 16),
            nn.Embedding(T, 16),
            nn.Linear(16, D),
        )
        self.layer = nn.TransformerEncoderLayer(D, H, 64, activation="gelu", batch_first=True)
        self.pooler = nn.Linear(D, D)

    def forward(self, ids, mask=None):
        if mask is None:
            mask = torch.ones_like(ids)
        x = self.map_in(self.word(ids) + self.place.weight[: ids.shape[1]])
        for _ in range(4):
            x = self.layer(x, src_key_padding_mask=mask == 0)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Roberta(nn.Module):
    """Places are counted from ids that are no pads, from 2 on; id 1 is the pad."""

    def __init__(self):
        super().__init__()
        self.word, self.place = (
            nn.Embedding(V, D, padding_idx=1),
            nn.Embedding(T + 2, D, padding_idx=1),
        )
        self.norm, self.encoder, self.dense = (
            nn.LayerNorm(D),
            layers(activation="gelu"),
            nn.Linear(D, V),
        )

    def forward(self, input_ids):
        mask = input_ids.ne(1).int()
        position_ids = (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + 1
        x = self.norm(self.word(input_ids) + self.place(position_ids))
        return self.dense(self.encoder(x, src_key_padding_mask=input_ids.eq(1)))


class Deberta(nn.Module):
    """Content to position and back, by a table of distances."""

    def __init__(self):
        super().__init__()
        self.word, self.relative, self.norm = (
            nn.Embedding(V, D),
            nn.Embedding(2 * T, D),
            nn.LayerNorm(D),
        )
        self.q, self.k, self.v, self.pos_q, self.pos_k = (nn.Linear(D, D) for _ in range(5))

    def heads(self, x):
        return x.view(*x.shape[:-1], H, W).transpose(-2, -3)

    def forward(self, ids):
        x = self.norm(self.word(ids))
        s = ids.shape[1]
        q, k, v = (self.heads(m(x)) for m in (self.q, self.k, self.v))
        at = torch.arange(s)
        distance = torch.clamp(at[:, None] - at[None] + T, 0, 2 * T - 1)
        pos_q, pos_k = (self.heads(m(self.relative.weight)) for m in (self.pos_q, self.pos_k))
        c2p = torch.gather(q @ pos_k.mT, -1, distance.expand(len(ids), H, s, s))
        p2c = torch.gather(k @ pos_q.mT, -1, distance.expand(len(ids), H, s, s)).mT
        scores = (q @ k.mT + c2p + p2c) / math.sqrt(3 * W)
        return self.norm(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class T5(nn.Module):
    """Buckets of distances, no scale, norms without a mean."""

    def __init__(self):
        super().__init__()
        self.shared, self.bias = nn.Embedding(V, D), nn.Embedding(16, H)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.wi, self.wo = nn.Linear(D, 64, bias=False), nn.Linear(64, D, bias=False)
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(D)) for _ in range(3))

    def norm(self, x, at):
        return self.norms[at] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def bucket(self, relative):
        offsets = (relative > 0).to(torch.long) * 8
        n = torch.abs(relative)
        large = 4 + (torch.log(n.float() / 4) / math.log(128 / 4) * 4).to(torch.long)
        large = torch.min(large, torch.full_like(large, 7))
        return offsets + torch.where(n < 4, n, large)

    def forward(self, ids):
        x = self.shared(ids)
        b, s, _ = x.shape
        y = self.norm(x, 0)
        q, k, v = (m(y).view(b, -1, H, W).transpose(1, 2) for m in (self.q, self.k, self.v))
        at = torch.arange(s, dtype=torch.long)
        bias = self.bias(self.bucket(at[None] - at[:, None])).permute([2, 0, 1]).unsqueeze(0)
        weights = F.softmax((torch.matmul(q, k.transpose(3, 2)) + bias).float(), dim=-1)
        x = x + self.o(torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, -1, D))
        x = x + self.wo(F.relu(self.wi(self.norm(x, 1))))
        return self.norm(x, 2)


class Conformer(nn.Module):
    """Half feed-forwards, attention, and a gated convolution with a batch norm."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(NUM, D)
        self.ff1, self.ff2 = (
            nn.Sequential(
                nn.LayerNorm(D), nn.Linear(D, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, D)
            )
            for _ in range(2)
        )
        self.norm, self.attention = nn.LayerNorm(D), nn.MultiheadAttention(D, H, batch_first=True)
        self.conv_norm, self.final, self.out = nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 8)
        self.conv = nn.Sequential(
            nn.Conv1d(D, 2 * D, 1), nn.GLU(dim=1), nn.Conv1d(D, D, 7, padding=3, groups=D),
            nn.BatchNorm1d(D), nn.SiLU(), nn.Conv1d(D, D, 1),
        )  # fmt: skip

    def forward(self, frames):
        x = self.project(frames)
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.conv(self.conv_norm(x).transpose(1, 2)).transpose(1, 2)
        return F.log_softmax(self.out(self.final(x + 0.5 * self.ff2(x))), dim=-1)


class Chomp(nn.Module):
    def forward(self, x):
        return x[:, :, :-2].contiguous()


class Tcn(nn.Module):
    """Causal convolutions whose weights are normed, then attention over steps."""

    def __init__(self):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.net = nn.Sequential(
            norm(nn.Conv1d(NUM, D, 2, padding=2, dilation=2)), Chomp(), nn.ReLU(), nn.Dropout(0.1)
        )
        self.attention, self.out = nn.MultiheadAttention(D, H, batch_first=True), nn.Linear(D, 2)

    def forward(self, x):
        y = self.net(x.permute(0, 2, 1)).permute(0, 2, 1)
        y, self.attention_weights = self.attention(y, y, y)
        return self.out(y[:, -1, :])


class Linformer(nn.Module):
    """Keys and values of the longest sequence are projected to 8; shorter ones use a part."""

    def __init__(self):
        super().__init__()
        self.embed, self.e = nn.Embedding(V, D), nn.Parameter(torch.randn(T, 8) / 8)
        self.q, self.k, self.v, self.norm = *(nn.Linear(D, D) for _ in range(3)), nn.LayerNorm(D)

    def forward(self, ids):
        x = self.embed(ids)
        n = x.shape[1]
        k, v = (torch.einsum("bnd,nk->bkd", m(x), self.e[:n]) for m in (self.k, self.v))
        weights = (self.q(x) @ k.mT / D**0.5).softmax(-1)
        return self.norm(x + weights @ v)


class SetTransformer(nn.Module):
    """Sets of vectors: induced points, then one learned query."""

    def __init__(self):
        super().__init__()
        self.up, self.points = nn.Linear(NUM, D), nn.Parameter(torch.randn(1, 4, D))
        self.seed, self.out = nn.Parameter(torch.randn(1, 1, D)), nn.Linear(D, 2)
        self.mabs = nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(3))

    def forward(self, x):
        x = self.up(x)
        points = self.points.repeat(x.size(0), 1, 1)
        h = points + self.mabs[0](points, x, x)[0]
        x = x + self.mabs[1](x, h, h)[0]
        seed = self.seed.repeat(x.size(0), 1, 1)
        return self.out(seed + self.mabs[2](seed, x, x)[0]).squeeze()


class Perceiver(nn.Module):
    """Five latents look at vectors twice."""

    def __init__(self):
        super().__init__()
        self.latents, self.norm = nn.Parameter(torch.randn(5, D)), nn.LayerNorm(D)
        self.cross = nn.MultiheadAttention(D, 1, kdim=NUM, vdim=NUM, batch_first=True)
        self.inner, self.head = layers(1), nn.Linear(D, 3)

    def forward(self, data):
        x = self.latents.expand(data.shape[0], -1, -1)
        for _ in range(2):
            x = self.inner(x + self.cross(self.norm(x), data, data)[0])
        return self.head(x.mean(dim=-2))


class FNet(nn.Module):
    """The real part of Fourier transforms in place of attention."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm1, self.norm2 = nn.Embedding(V, D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, ids):
        x = self.embed(ids)
        x = self.norm1(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return self.norm2(x + self.ff(x))


class ClipText(nn.Module):
    """The row of the highest id, projected and of length 1."""

    def __init__(self):
        super().__init__()
        self.token_embedding, self.positional = (
            nn.Embedding(V, D),
            nn.Parameter(torch.randn(T, D) * 0.1),
        )
        self.attn, self.ln_1, self.ln_2 = (
            nn.MultiheadAttention(D, H),
            nn.LayerNorm(D),
            nn.LayerNorm(D),
        )
        self.c_fc, self.c_proj = nn.Linear(D, 64), nn.Linear(64, D)
        self.ln_final, self.projection = nn.LayerNorm(D), nn.Parameter(torch.randn(D, 12) * D**-0.5)

    def forward(self, text):
        x = self.token_embedding(text) + self.positional[: text.shape[1]]
        x = x.permute(1, 0, 2)
        mask = torch.empty(len(x), len(x)).fill_(float("-inf")).triu_(1)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        y = self.c_fc(self.ln_2(x))
        x = (x + self.c_proj(y * torch.sigmoid(1.702 * y))).permute(1, 0, 2)
        x = self.ln_final(x)
        x = x[torch.arange(x.shape[0]), text.argmax(dim=-1)] @ self.projection
        return x / x.norm(dim=1, keepdim=True)


class ConvBert(nn.Module):
    """Characters through convolutions of three widths, the largest of each, and attention."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(3 * D, 2)
        self.convs = nn.ModuleList(nn.Conv1d(D, D, k, padding=k // 2) for k in (1, 3, 5))
        self.encoder = layers(1)

    def forward(self, text):
        x = self.encoder(self.embed(text)).transpose(1, 2)
        pooled = [
            F.max_pool1d(y, y.shape[2]).squeeze(2) for y in (F.relu(c(x)) for c in self.convs)
        ]
        return self.head(torch.cat(pooled, 1))


class Seq2Seq(nn.Module):
    """nn.Transformer: an encoder, and a decoder of what was said so far."""

    def __init__(self):
        super().__init__()
        self.src_embed, self.tgt_embed, self.generator = (
            nn.Embedding(V, D),
            nn.Embedding(V, D),
            nn.Linear(D, V),
        )
        self.transformer = nn.Transformer(D, H, 1, 1, 64, batch_first=True)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        return self.generator(
            self.transformer(self.src_embed(src), self.tgt_embed(tgt), tgt_mask=mask)
        )


class FTTransformer(nn.Module):
    """A row of 9 numbers `[B, 9]`, each with a vector of its own, behind a class token."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(9, D)), nn.Parameter(torch.randn(9, D))
        self.cls, self.encoder, self.head = nn.Parameter(torch.randn(D)), layers(1), nn.Linear(D, 2)

    def forward(self, x):
        x = x[..., None] * self.weight + self.bias
        x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


KINDS = {
    "LSTM and attention": LstmAttention, "GRU tagger": GruTagger, "SASRec": SASRec,
    "BERT4Rec": Bert4Rec, "ViT on patches": ViT, "PatchTST": PatchTST,
    "series, causal": SeriesTransformer, "TabTransformer": TabTransformer, "ELECTRA": Electra,
    "ALBERT": Albert, "RoBERTa": Roberta, "DeBERTa": Deberta, "T5 encoder": T5,
    "Conformer": Conformer, "TCN and attention": Tcn, "Linformer": Linformer,
    "Set Transformer": SetTransformer, "Perceiver": Perceiver, "FNet": FNet,
    "CLIP text": ClipText, "convolutions of characters": ConvBert,
    "encoder and decoder": Seq2Seq, "FT-Transformer": FTTransformer,
}  # fmt: skip
OF_VECTORS = ("ViT on patches", "PatchTST", "series, causal", "Conformer", "TCN and attention",
              "Set Transformer", "Perceiver")  # fmt: skip
