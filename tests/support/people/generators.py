"""Causal models with rotary positions, gates and other parts, as readers of papers write them."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.people.encoders import D, H, T, V

W = D // H  # of a head


class RMS(nn.Module):
    def __init__(self, width=D, offset=0.0):
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.randn(width) * 0.1 + 1 - offset), offset

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (self.offset + self.weight) * x.to(dtype)


class RotaryCache(nn.Module):
    """Tables up to a length, made anew when a longer sequence comes."""

    def __init__(self, width=W, longest=T):
        super().__init__()
        rate = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
        self.register_buffer("inv_freq", rate, persistent=False)
        self._fill(longest)

    def _fill(self, longest):
        self.longest = longest
        angle = torch.outer(torch.arange(longest).float(), self.inv_freq)
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        if x.shape[-2] > self.longest:
            self._fill(x.shape[-2])
        return self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]


def rotate_half(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), -1)


def repeat_kv(x, times):
    b, heads, s, width = x.shape
    return x[:, :, None].expand(b, heads, times, s, width).reshape(b, heads * times, s, width)


class MistralBlock(nn.Module):
    """Two heads of keys and values, and a window of 8."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k_proj, self.v_proj = nn.Linear(D, 2 * W, bias=False), nn.Linear(D, 2 * W, bias=False)
        self.rotary, self.norm1, self.norm2 = RotaryCache(), RMS(), RMS()
        self.gate, self.up = nn.Linear(D, 64, bias=False), nn.Linear(D, 64, bias=False)
        self.down = nn.Linear(64, D, bias=False)

    def forward(self, x, mask):
        b, s, _ = x.size()
        y = self.norm1(x)
        q = self.q_proj(y).view(b, s, H, W).transpose(1, 2)
        k = self.k_proj(y).view(b, s, 2, W).transpose(1, 2)
        v = self.v_proj(y).view(b, s, 2, W).transpose(1, 2)
        cos, sin = self.rotary(v)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = repeat_kv(k, H // 2), repeat_kv(v, H // 2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(W) + mask
        scores = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        x = x + self.o_proj(torch.matmul(scores, v).transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Mistral(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(V, D), RMS()
        self.layers = nn.ModuleList(MistralBlock() for _ in range(2))
        self.lm_head = nn.Linear(D, V, bias=False)

    def forward(self, input_ids, attention_mask=None):
        s = input_ids.shape[1]
        mask = torch.full((s, s), torch.finfo(torch.float32).min)
        at = torch.arange(s)
        mask = mask.masked_fill((at[None] <= at[:, None]) & (at[:, None] - at[None] < 8), 0)
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return {"logits": self.lm_head(self.norm(x)), "last_hidden_state": x}


def complex_rotary(x, freqs):
    """Meta's own: pairs are complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    freqs = freqs.view(1, x.shape[1], 1, -1)
    return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)


class ComplexLlama(nn.Module):
    """Rotary positions as complex numbers, cut from a table."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.norm, self.ffn_norm = nn.Embedding(V, D), RMS(), RMS()
        self.wqkv, self.wo = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.w1, self.w2, self.w3 = nn.Linear(D, 64), nn.Linear(64, D), nn.Linear(D, 64)
        rate = 1.0 / (10000.0 ** (torch.arange(0, W, 2).float() / W))
        angle = torch.outer(torch.arange(T).float(), rate)
        self.freqs_cis = torch.polar(torch.ones_like(angle), angle)
        self.output = nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        b, s = tokens.shape
        x, freqs = self.tok_embeddings(tokens), self.freqs_cis[:s]
        q, k, v = (part.view(b, s, H, W) for part in self.wqkv(self.norm(x)).chunk(3, -1))
        q, k = complex_rotary(q, freqs), complex_rotary(k, freqs)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=s > 1
        )
        x = x + self.wo(y.transpose(1, 2).reshape(b, s, D))
        y = self.ffn_norm(x)
        return self.output(x + self.w2(F.silu(self.w1(y)) * self.w3(y))).float()


class Gemma(nn.Module):
    """Norms of 1 + weight, four in a block; capped scores and logits, one head of keys."""

    def __init__(self):
        super().__init__()
        self.embed, self.rotary = nn.Embedding(V, D), RotaryCache()
        self.q_proj, self.kv_proj = nn.Linear(D, D, bias=False), nn.Linear(D, 2 * W, bias=False)
        self.o_proj, self.norms = (
            nn.Linear(D, D, bias=False),
            nn.ModuleList(RMS(offset=1.0) for _ in range(5)),
        )
        self.gate, self.up, self.down = nn.Linear(D, 64), nn.Linear(D, 64), nn.Linear(64, D)

    def forward(self, ids):
        b, s = ids.shape
        x = self.embed(ids) * torch.tensor(D**0.5)
        y = self.norms[0](x)
        q = self.q_proj(y).view(b, s, H, W).transpose(1, 2)
        k, v = self.kv_proj(y).view(b, s, 1, 2 * W).transpose(1, 2).split([W, W], -1)
        cos, sin = self.rotary(q)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scores = 50 * torch.tanh(q @ k.mT * W**-0.5 / 50)
        scores = scores.masked_fill(~torch.ones(s, s).tril().bool(), -2.3819763e38)
        y = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, s, D)
        x = x + self.norms[1](self.o_proj(y))
        y = self.norms[2](x)
        x = x + self.norms[3](self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y)))
        logits = F.linear(self.norms[4](x), self.embed.weight)
        return torch.tanh(logits / 30.0) * 30.0


class Qwen(nn.Module):
    """Queries and keys are normed for each head; places by ids that the caller may leave out."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm1, self.norm2, self.norm = nn.Embedding(V, D), RMS(), RMS(), RMS()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(D, D) for _ in range(3))
        self.q_norm, self.k_norm, self.o_proj = RMS(W), RMS(W), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 128, bias=False), nn.Linear(64, D, bias=False)
        self.register_buffer("inv_freq", 1e6 ** (-torch.arange(0, W, 2) / W))

    def forward(self, input_ids, position_ids=None, use_cache=False):
        b, s = input_ids.shape
        if position_ids is None:
            position_ids = torch.arange(s, device=input_ids.device)[None].expand(b, s)
        angle = position_ids[:, :, None].float() * self.inv_freq
        cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))
        x = self.embed(input_ids)
        y = self.norm1(x)
        q = self.q_norm(self.q_proj(y).view(b, s, H, W)).transpose(1, 2)
        k = self.k_norm(self.k_proj(y).view(b, s, H, W)).transpose(1, 2)
        v = self.v_proj(y).view(b, s, H, W).transpose(1, 2)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, s, D))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * up)
        return self.norm(x) @ self.embed.weight.T


class Falcon(nn.Module):
    """One head of keys and values, and both parts beside one another after one norm."""

    def __init__(self):
        super().__init__()
        self.word_embeddings, self.rotary = nn.Embedding(V, D), RotaryCache()
        self.query_key_value, self.dense = nn.Linear(D, D + 2 * W, bias=False), nn.Linear(D, D)
        self.input_layernorm, self.ln_f = nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, ids):
        x = self.word_embeddings(ids)
        b, s, _ = x.shape
        y = self.input_layernorm(x)
        fused = self.query_key_value(y).view(b, s, H + 2, W)
        q, k, v = (part.transpose(1, 2) for part in fused.split([H, 1, 1], 2))
        cos, sin = self.rotary(q)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        y2 = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        x = x + self.dense(y2.transpose(1, 2).flatten(2)) + self.mlp(y)
        return self.ln_f(x)


class NeoX(nn.Module):
    """A quarter of each head is rotated; the two parts have norms of their own."""

    def __init__(self):
        super().__init__()
        self.embed_in, self.embed_out = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.rotary = RotaryCache(W // 4 * 2)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.query_key_value, self.dense = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.register_buffer("bias", torch.tril(torch.ones(T, T, dtype=torch.bool))[None, None])
        self.register_buffer("masked_bias", torch.tensor(-1e9))

    def forward(self, ids):
        x = self.embed_in(ids)
        fused = self.query_key_value(self.norms[0](x)).view(*ids.shape, H, 3 * W)
        q, k, v = fused.permute(0, 2, 1, 3).chunk(3, -1)
        cos, sin = self.rotary(q)
        r = cos.shape[-1]
        turned = (
            torch.cat([y[..., :r] * cos + rotate_half(y[..., :r]) * sin, y[..., r:]], -1)
            for y in (q, k)
        )
        q, k = turned
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * W**-0.5
        s = scores.shape[-1]
        scores = torch.where(self.bias[:, :, :s, :s], scores, self.masked_bias)
        y = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(*ids.shape, D)
        x = x + self.dense(y) + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.embed_out(self.norms[2](x))


def slopes(num):
    return torch.tensor([2 ** (-8 * (at + 1) / num) for at in range(num)])


class Bloom(nn.Module):
    """A slope for each head in place of positions, and a norm of the embeddings."""

    def __init__(self):
        super().__init__()
        self.words, self.norms = (
            nn.Embedding(V, D),
            nn.ModuleList(nn.LayerNorm(D) for _ in range(4)),
        )
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU("tanh"), nn.Linear(4 * D, D))

    def forward(self, ids):
        real = torch.ones_like(ids)
        alibi = slopes(H)[:, None, None] * ((real.cumsum(-1) - 1) * real)[:, None, None, :]
        x = self.norms[0](self.words(ids))
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norms[1](x)).view(b, s, H, 3, W).permute(3, 0, 2, 1, 4).unbind(0)
        q, k = q.reshape(b * H, s, W), k.reshape(b * H, s, W)
        bias = alibi.expand(b, H, s, s).reshape(b * H, s, s)
        scores = torch.baddbmm(bias, q, k.mT, beta=1.0, alpha=W**-0.5).view(b, H, s, s)
        later = torch.triu(torch.ones(s, s, dtype=torch.bool), diagonal=1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, D))
        return F.linear(self.norms[3](x + self.mlp(self.norms[2](x))), self.words.weight)


class TransformerXL(nn.Module):
    """Relative positions by a shift of the scores; two learned biases."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.norm2 = nn.Embedding(V, D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.r, self.o = (nn.Linear(D, n * D, bias=False) for n in (3, 1, 1))
        self.u, self.v = nn.Parameter(torch.randn(H, W)), nn.Parameter(torch.randn(H, W))
        self.ff = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D))
        self.register_buffer("rate", 1 / (10000 ** (torch.arange(0.0, D, 2.0) / D)))

    def shift(self, x):
        b, h, s, t = x.size()
        x = torch.cat([torch.zeros(b, h, s, 1, device=x.device, dtype=x.dtype), x], 3)
        return x.view(b, h, t + 1, s)[:, :, 1:].view_as(x[..., 1:])

    def forward(self, data, mems=None):
        b, s = data.shape
        x = self.embed(data) * D**0.5
        place = torch.arange(s - 1, -1, -1.0)
        sinusoid = torch.outer(place, self.rate)
        r = self.r(torch.cat([sinusoid.sin(), sinusoid.cos()], -1)).view(s, H, W)
        q, k, v = (part.view(b, s, H, W) for part in self.qkv(x).chunk(3, -1))
        content = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        position = self.shift(torch.einsum("bihd,jhd->bhij", q + self.v, r))
        scores = (content + position) / W**0.5
        mask = torch.triu(torch.ones(s, s), 1).bool()
        scores = scores.float().masked_fill(mask[None, None], -float("inf"))
        y = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(b, s, D)
        x = self.norm(x + self.o(y))
        return self.norm2(x + self.ff(x)), mems


class Performer(nn.Module):
    """Softmax by 16 random features that are drawn once."""

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.qkv, self.out, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)
        self.register_buffer("projection", torch.linalg.qr(torch.randn(16, 16))[0][:, :W] * W**0.5)

    def features(self, x, is_query):
        x = x * W**-0.25
        product = torch.einsum("bhnd,md->bhnm", x, self.projection)
        square = (x**2).sum(-1, keepdim=True) / 2
        largest = (
            torch.amax(product, -1, keepdim=True)
            if is_query
            else torch.amax(product, (-1, -2), keepdim=True)
        )
        return 16**-0.5 * (torch.exp(product - square - largest) + 1e-4)

    def forward(self, ids):
        b, n = ids.shape
        x = self.embed(ids) + self.places(torch.arange(n, device=ids.device))
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, H, W).permute(2, 0, 3, 1, 4)
        q, k = self.features(q, True), self.features(k, False)
        scale = 1.0 / torch.einsum("bhnm,bhm->bhn", q, k.sum(-2))
        context = torch.einsum("bhnm,bhne->bhme", k, v)
        y = torch.einsum("bhme,bhnm,bhn->bhne", context, q, scale)
        return x + self.out(y.transpose(1, 2).reshape(b, n, D))


class LinearCausal(nn.Module):
    """elu(x) + 1, summed over what was before."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        q, k = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1
        q, k, v = (y.unflatten(-1, (H, W)) for y in (q, k, self.v(x)))
        kv = torch.einsum("bshd,bshe->bshde", k, v).cumsum(1)
        z = 1 / (torch.einsum("bshd,bshd->bsh", q, k.cumsum(1)) + 1e-6)
        return self.head(x + torch.einsum("bshd,bshde,bsh->bshe", q, kv, z).flatten(2))


class Retention(nn.Module):
    """RetNet's parallel form: decay by distance, a group norm, a gate."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.group = nn.Embedding(V, D), nn.LayerNorm(D), nn.GroupNorm(H, D)
        self.qkv, self.gate, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Linear(D, D)
        self.gammas = 1 - torch.exp2(torch.linspace(-5, -9, H))

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        b, s, _ = x.shape
        n = torch.arange(s)[:, None] - torch.arange(s)
        decay = (self.gammas[:, None, None] ** n) * (n >= 0)
        decay[decay != decay] = 0
        q, k, v = (y.view(b, s, H, W).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = ((q @ k.transpose(-1, -2)) * decay) @ v
        y = self.group(y.transpose(1, 2).reshape(b * s, D)).view(b, s, D)
        return self.out(F.silu(self.gate(x)) * y)


class Mixtral(nn.Module):
    """Each token goes to two of four experts, which are called with their tokens alone."""

    def __init__(self):
        super().__init__()
        self.embed, self.places, self.norm = nn.Embedding(V, D), nn.Embedding(T, D), RMS()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)
        self.gate = nn.Linear(D, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 48), nn.SiLU(), nn.Linear(48, D)) for _ in range(4)
        )

    def forward(self, ids):
        x = self.embed(ids) + self.places.weight[: ids.size(1)]
        x = x + self.attention(x, x, x)[0]
        rows = self.norm(x).view(-1, D)
        weights, chosen = torch.topk(F.softmax(self.gate(rows), 1), 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        answer = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == index)
            answer[token] += weights[token, rank, None] * expert(rows[token])
        return x + answer.view_as(x)


GENERATORS = {
    "Mistral": Mistral, "Llama, complex": ComplexLlama, "Gemma": Gemma, "Qwen": Qwen,
    "Falcon": Falcon, "GPT-NeoX": NeoX, "BLOOM, ALiBi": Bloom, "Transformer-XL": TransformerXL,
    "Performer": Performer, "linear attention": LinearCausal, "RetNet": Retention,
    "experts, two of four": Mixtral,
}  # fmt: skip
