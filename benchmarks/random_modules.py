"""Random modules, exported by one call: how many are recognized, served as they are, refused, and
how many would be served wrongly.

A module is drawn from tables of parts as people write them, some of them odd. What is exported is
asked for sequences that the export has not seen, alone, beside others and with equal tokens, and
compared with the module.
"""

import contextlib
import io
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.heads import pooled
from addnorm.service.engine.model import Model
from benchmarks.findings import Findings, Options, figures_table
from benchmarks.tables import table

V, D, H, LONGEST = 40, 16, 2, 40
NEAR = 1e-3  # of the largest number: what a limit of 1e-4 of few sequences leaves to others
NUM_PROBES = 24
Layer = Callable[[], nn.Module]


class RMS(nn.Module):
    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Applied(nn.Module):
    """A function of rows, with a few weights."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.function(x, *self.layers)
        return answer


def heads(x: Tensor) -> Tensor:
    by_head: Tensor = x.unflatten(-1, (H, -1)).transpose(1, 2)
    return by_head


def causal(x: Tensor) -> Tensor:
    return torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rate = 100.0 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * rate
    low, high = x[..., :half], x[..., half:]
    return torch.cat(
        [low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1
    )


def scores(x: Tensor, qkv: nn.Module, change: Callable[[Tensor], Tensor]) -> Tensor:
    q, k, v = (heads(part) for part in qkv(x).chunk(3, -1))
    weights = change(q @ k.transpose(-2, -1) / math.sqrt(D / H)).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def flash(x: Tensor, qkv: nn.Module, turn: Callable[[Tensor], Tensor], **options: Any) -> Tensor:
    q, k, v = (heads(part) for part in qkv(x).chunk(3, -1))
    return F.scaled_dot_product_attention(turn(q), turn(k), v, **options).transpose(1, 2).flatten(2)


def same(x: Tensor) -> Tensor:
    return x


def mha(is_causal: bool) -> nn.Module:
    def attend(x: Tensor, layer: nn.Module) -> Tensor:
        answer: Tensor = layer(
            x, x, x, attn_mask=causal(x) if is_causal else None, need_weights=False
        )[0]
        return answer

    return Applied(attend, nn.MultiheadAttention(D, H, batch_first=True))


def qkv_layer(bias: bool = True) -> nn.Module:
    return nn.Linear(D, 3 * D, bias=bias)


def distance(x: Tensor) -> Tensor:
    place = torch.arange(x.shape[-1])
    return (place[:, None] - place).abs()


MIXERS: dict[str, Layer] = {
    "nn.MultiheadAttention": lambda: mha(False),
    "nn.MultiheadAttention, causal": lambda: mha(True),
    "own attention": lambda: Applied(lambda x, qkv: scores(x, qkv, same), qkv_layer()),
    "flash": lambda: Applied(lambda x, qkv: flash(x, qkv, same), qkv_layer(False)),
    "flash, causal": lambda: Applied(
        lambda x, qkv: flash(x, qkv, same, is_causal=True), qkv_layer()
    ),
    "rotary": lambda: Applied(lambda x, qkv: flash(x, qkv, rotate), qkv_layer(False)),
    "ALiBi": lambda: Applied(lambda x, qkv: scores(x, qkv, lambda s: s - distance(s)), qkv_layer()),
    "window": lambda: Applied(
        lambda x, qkv: scores(x, qkv, lambda s: s.masked_fill(distance(s) > 3, -1e9)), qkv_layer()
    ),
    "cosine attention": lambda: Applied(
        lambda x, qkv: flash(x, qkv, lambda y: F.normalize(y, dim=-1)), qkv_layer()
    ),
    "linear attention": lambda: Applied(
        lambda x, q, k, v: q(x).softmax(-1) @ (k(x).softmax(1).transpose(1, 2) @ v(x)),
        *(nn.Linear(D, D) for _ in range(3)),
    ),
    "convolution": lambda: Applied(
        lambda x, layer: layer(x.transpose(1, 2)).transpose(1, 2), nn.Conv1d(D, D, 3, padding=1)
    ),
    "LSTM": lambda: Applied(lambda x, layer: layer(x)[0], nn.LSTM(D, D, batch_first=True)),
    "mean": lambda: Applied(
        lambda x, layer: layer(x.mean(1, keepdim=True)).expand_as(x), nn.Linear(D, D)
    ),
    "shift": lambda: Applied(
        lambda x, layer: layer(F.pad(x, (0, 0, 1, 0))[:, :-1]), nn.Linear(D, D)
    ),
    "cumulative mean": lambda: Applied(
        lambda x: x.cumsum(1) / (1 + torch.arange(x.shape[1]))[:, None]
    ),
}  # fmt: skip


def mlp(activation: Callable[[Tensor], Tensor]) -> nn.Module:
    return Applied(
        lambda x, up, down: down(activation(up(x))), nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
    )


def gated_mlp(activation: Callable[[Tensor], Tensor]) -> nn.Module:
    return Applied(
        lambda x, gate, up, down: down(activation(gate(x)) * up(x)),
        nn.Linear(D, 2 * D), nn.Linear(D, 2 * D), nn.Linear(2 * D, D),
    )  # fmt: skip


FORWARDS: dict[str, Layer] = {
    "relu": lambda: mlp(F.relu),
    "gelu": lambda: mlp(F.gelu),
    "tanh": lambda: mlp(torch.tanh),
    "mish": lambda: mlp(F.mish),
    "squared relu": lambda: mlp(lambda x: F.relu(x) ** 2),
    "SwiGLU": lambda: gated_mlp(F.silu),
    "GEGLU": lambda: gated_mlp(F.gelu),
    "experts": lambda: Applied(
        lambda x, route, *experts: sum(
            route(x).softmax(-1)[..., at : at + 1] * expert(x) for at, expert in enumerate(experts)
        ),
        nn.Linear(D, 3), *(nn.Linear(D, D) for _ in range(3)),
    ),
    "convolution of width 1": lambda: Applied(
        lambda x, layer: layer(x.transpose(1, 2)).transpose(1, 2).relu(), nn.Conv1d(D, D, 1)
    ),
}  # fmt: skip
NORMS: dict[str, Layer] = {
    "nn.LayerNorm": lambda: nn.LayerNorm(D),
    "nn.LayerNorm, eps": lambda: nn.LayerNorm(D, eps=1e-3),
    "RMSNorm": RMS,
    "BatchNorm1d": lambda: Applied(
        lambda x, layer: layer(x.transpose(1, 2)).transpose(1, 2), nn.BatchNorm1d(D)
    ),
    "length 1": lambda: Applied(lambda x: F.normalize(x, dim=-1)),
    "none": nn.Identity,
}
ORDERS: dict[str, Callable[[Tensor, nn.Module, nn.Module], Tensor]] = {
    "post": lambda x, norm, part: norm(x + part(x)),
    "pre": lambda x, norm, part: x + part(norm(x)),
    "scaled": lambda x, norm, part: norm(x + 0.5 * part(x)),
    "sandwich": lambda x, norm, part: x + norm(part(norm(x))),
}
POSITIONS = ("none", "learned", "sinusoids", "multiplied")
ENDS: dict[str, Callable[[Tensor, nn.Module], Any]] = {
    "rows": lambda x, head: x,
    "logits": lambda x, head: head(x),
    "first": lambda x, head: head(x[:, 0]),
    "last": lambda x, head: head(x[:, -1]),
    "mean": lambda x, head: head(x.mean(1)),
    "largest": lambda x, head: head(x.amax(1)),
    "mean of length 1": lambda x, head: F.normalize(x.mean(1), dim=-1),
    "log_softmax": lambda x, head: head(x).log_softmax(-1),
    "one number": lambda x, head: head(x.mean(1))[:, 0].sigmoid(),
    "a tuple": lambda x, head: (head(x), x),
    "a dict": lambda x, head: {"logits": head(x.mean(1)), "rows": x},
}
# in between, rarely: those behind the line must not be served as they are drawn here
ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: x.clamp(-2, 2),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "round": lambda x: (x * 4).round() / 4,
    "flip": lambda x: x.flip(1),
    "softmax over tokens": lambda x: x * x.softmax(1),
    "largest row": lambda x: x + x.amax(1, keepdim=True),
    "sorted": lambda x: x + x.sort(1)[0],
    "length": lambda x: x * (1 + 0.1 * math.log(x.shape[1])),
    "median": lambda x: x + x.median(1, keepdim=True)[0],
    "noise": lambda x: x + 0.1 * torch.randn_like(x),
    "dropout": lambda x: F.dropout(x, 0.2, training=True),
    "longer than 20": lambda x: 2 * x if x.shape[1] > 20 else x,
    "even lengths": lambda x: -x if x.shape[1] % 2 else x,
    "others of the batch": lambda x: x - x.mean(0, keepdim=True),
    "values": lambda x: x if float(x.sum()) > 0 else -x,
}


class Drawn(nn.Module):
    """`names` says what it is made of."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draws = random.Random(seed)
        torch.manual_seed(seed)

        def pick(table: Mapping[str, Any]) -> str:
            return draws.choice([*table])

        self.width = draws.choice((0, 0, 0, 5, 12))  # of vectors; 0: it takes ids
        mixer, forward, norm, order = pick(MIXERS), pick(FORWARDS), pick(NORMS), pick(ORDERS)
        self.positions, end = draws.choice(POSITIONS), pick(ENDS)
        odd = pick(ODD) if draws.random() < 0.3 else None
        if draws.random() < 0.3:  # as most tutorials
            mixer, forward, norm, order, odd = (
                draws.choice(["nn.MultiheadAttention", "own attention", "flash, causal"]),
                draws.choice(["relu", "gelu"]),
                "nn.LayerNorm",
                draws.choice(["post", "pre"]),
                None,
            )
        self.names = (
            f"vectors of {self.width}" if self.width else "ids",
            *(self.positions, mixer, forward, norm, order, odd or "", end),
        )
        self.embedding = nn.Linear(self.width, D) if self.width else nn.Embedding(V, D)
        self.places = nn.Embedding(LONGEST, D)
        num = draws.choice((1, 1, 2))
        parts = [(MIXERS[mixer], FORWARDS[forward])] * num
        self.parts = nn.ModuleList(make() for block in parts for make in block)
        self.norms = nn.ModuleList(NORMS[norm]() for _ in self.parts)
        self.head, self.odd_at = nn.Linear(D, 3), draws.randrange(2 * num)
        self._order, self._end, self._odd = ORDERS[order], ENDS[end], ODD.get(odd or "")
        for parameter in self.parameters():  # beginnings of training hide mistakes
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=1.2 * parameter.shape[-1] ** -0.5)

    def forward(self, tokens: Tensor) -> Any:
        x, length = self.embedding(tokens), tokens.shape[1]
        if self.positions == "learned":
            x = x + self.places(torch.arange(length))
        elif self.positions == "sinusoids":
            rate = torch.exp(torch.arange(0, D, 2) * (-math.log(100.0) / D))
            angle = torch.arange(length)[:, None] * rate
            x = x + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        elif self.positions == "multiplied":
            x = x * self.places(torch.arange(length))
        for at, (norm, part) in enumerate(zip(self.norms, self.parts, strict=True)):
            x = self._order(x, norm, part)
            if self._odd and at == self.odd_at:
                x = self._odd(x)
        return self._end(x, self.head)


def run(options: Options) -> Findings:
    counts, whys, wrong = Counter[str](), Counter[str](), list[str]()
    num = options.times(1000, 10)
    for seed in range(num):
        kind, reason = outcome(Drawn(seed))
        counts[kind] += 1
        whys[reason] += kind == "refused"
        if kind == "wrong":
            wrong.append(f"module {seed} is served wrongly: {reason}")
        if seed % 20 == 19:
            print(f"{seed + 1} of {num} modules: {dict(counts)}", flush=True)
    tables = [
        figures_table({"modules": num, **counts}),
        table(["refused", "why"], [(number, reason) for reason, number in (+whys).most_common()]),
    ]
    return Findings("\n\n".join(tables), wrong, dict(counts))


def outcome(module: Drawn) -> tuple[str, str]:
    """recognized, as it is, refused or wrong; and why."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            bundle = export_bundle(module, folder, "drawn", config={"max_positions": LONGEST})
        except ExportError as error:
            words = str(error).rpartition("Nor can it be served as it is: ")[2]
            return "refused", f"{module.names[6]}: {words[:120]}"
        wrong = next(differences(bundle, module), "")
    if wrong:
        return "wrong", f"{', '.join(module.names)}: {wrong}"
    return ("as it is" if bundle.manifest.as_it_is else "recognized"), ""


def differences(bundle: Bundle, module: Drawn) -> Iterator[str]:
    """Answers to sequences that the export has not drawn: each alone beside the module, then all
    together beside each alone, bit for bit."""
    engine, draws = Model(bundle).engine(None), np.random.default_rng(1)
    probes = list[NDArray[Any]]()
    for at in range(NUM_PROBES):
        length = int(draws.integers(1, bundle.manifest.limits.max_positions + 1))
        vocabulary = draws.integers(0, V, 1 + at % 4) if at % 2 else np.arange(V)
        ids = draws.choice(vocabulary, length)
        width = module.width
        probes.append(
            draws.standard_normal((V, width), np.float32)[ids] if width else ids.astype(np.int64)
        )
    alone = list[NDArray[Any]]()
    for probe in probes:
        batch = Batch.of([probe])
        alone.append(engine.run(batch).activations)
        with torch.no_grad():
            expected = _all(module.eval()(torch.from_numpy(probe)[None]))
        for got, tensor in zip(
            served_tensors(bundle, engine, batch, expected[0].size), expected, strict=False
        ):
            off, largest = np.abs(got.ravel() - tensor.ravel()).max(), np.abs(tensor).max()
            if not off <= NEAR * max(largest, 1e-3):
                yield f"{len(probe)} tokens differ by {off:.3g}"
    together = engine.run(Batch.of(probes)).activations
    if together.tobytes() != np.concatenate(alone).tobytes():
        yield "other bits in company"


def served_tensors(bundle: Bundle, engine: Engine, batch: Batch, size: int) -> list[NDArray[Any]]:
    """The outputs that stand for the module's answer, whose first tensor has so many numbers."""
    rows, manifest = engine.run(batch), bundle.manifest
    if manifest.as_it_is:
        ends = np.cumsum([tensor.width for tensor in manifest.as_it_is])[:-1]
        return [
            part[-1:] if tensor.of == "sequence" else part
            for part, tensor in zip(
                np.split(rows.activations, ends, 1), manifest.as_it_is, strict=True
            )
        ]
    head = manifest.heads.get("logits")
    pick = head.pick if head else ("every" if size == rows.activations.size else manifest.pooling)
    values: NDArray[Any] = rows.activations
    if pick != "every":
        values = pooled(rows, batch.offsets[:-1], batch.offsets[1:], pick)
    return [engine.head("logits", values) if head else values]


def _all(answer: Any) -> list[NDArray[Any]]:
    """The tensors of an answer."""
    parts = answer.values() if isinstance(answer, dict) else answer
    return [part.numpy() for part in ([answer] if isinstance(answer, Tensor) else parts)]
