"""Useful tokens per second of an engine and of PyTorch on the same device, measured in turn. What
comes back to the host is part of the time."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.load.stream import PROFILES, make
from addnorm.model.config import Config
from addnorm.service.engine import heads, selfcheck
from addnorm.service.engine.batch import Batch, Ints
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine, OpenEngine
from addnorm.service.engine.manifest import Limits, RowKind
from addnorm.service.engine.model import Model
from addnorm.service.loading import loader
from addnorm.service.settings import Settings
from benchmarks.bench.ceilings import sorted_batches
from benchmarks.peers.torch_server import pad

# a load's sequences, and what comes back: rows of tokens, or None: vectors
LOADS: dict[str, tuple[str, RowKind | None]] = {
    "small": ("small", None), "big": ("big", None), "hidden": ("hidden", "activations"),
    "hidden float16": ("hidden", "halves"),
}  # fmt: skip
REPEATS = 8  # of a load's sequences: a GPU is through with them at once
ALONE = (128, 512)  # tokens of one caller's sequence
ROUNDS = 3
TORCH_BATCH = 32  # sequences, in the order in which they come
TORCH_CELLS = 16384  # of a batch of like lengths
Run = Callable[[], object]
Side = list[tuple[int, Run]]  # batches: tokens, and what computes them


# The comparison: a BERT in PyTorch with scaled_dot_product_attention, as most people run it. Kept
# as it is on purpose: do not make it slower.


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.d_model
        self.n_heads = config.n_heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, config.eps) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:  # [B, S, d] -> [B, S, d]
        heads = (part.unflatten(-1, (self.n_heads, -1)) for part in self.qkv(x).chunk(3, -1))
        q, k, v = (part.transpose(1, 2) for part in heads)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.out(context.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Token ids and lengths -> hidden states, or their means."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.types = nn.Embedding(config.type_vocab_size, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, config.eps)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """ids `[B, S]` padded on the right, lengths `[B]` -> hidden `[B, S, d]`, means `[B, d]`."""
        columns = torch.arange(ids.shape[1], device=ids.device)
        real = columns < lengths[:, None]
        # without a mask PyTorch takes its fastest kernel
        mask = None if bool(real.all()) else real[:, None, None, :]
        x = self.norm(self.tokens(ids) + self.positions(columns) + self.types.weight[0])
        for layer in self.layers:
            x = layer(x, mask)
        weights = real[:, :, None].to(x.dtype)
        return x, (x * weights).sum(1) / lengths[:, None].to(x.dtype)


def encoder(config: Config, device: str) -> Encoder:
    """An encoder with random weights, in float16 on a GPU and float32 on the CPU."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    model: Any = Encoder(config).eval().to(device, dtype)
    return model  # type: ignore[no-any-return]


def load_model(
    bundle: Bundle, settings: Settings, engines: Callable[[Settings], OpenEngine]
) -> Model:
    """Checked and warmed up as the server does it."""
    return loader.load(bundle, settings, engines=engines)


def measure(model: Model, config: Config, device: str, seconds: float) -> dict[str, float]:
    """Load and side -> tokens per second, the median of the rounds."""
    peer, figures = encoder(config, device), dict[str, float]()
    for load, sequences, rows in _loads(model.bundle.manifest.limits):
        sides = {**_ours(model, sequences, rows), **_pytorch(peer, device, sequences, rows)}
        rates = _in_turn(sides, seconds)
        figures |= {f"{load}, {side}": tokens_per_s for side, tokens_per_s in rates.items()}
    return figures


def _loads(limits: Limits) -> Iterator[tuple[str, list[Ints], RowKind | None]]:
    for load, (profile, rows) in LOADS.items():
        requests = make(PROFILES[profile], limits).requests
        sequences = [sequence for request in requests for sequence in request.sequences]
        yield load, sequences * REPEATS, rows
    for length in ALONE:
        yield f"{length} tokens alone", [selfcheck.sequences(limits, [length]).tokens], None


def _ours(model: Model, sequences: list[Ints], kind: RowKind | None) -> dict[str, Side]:
    return {
        precision: [
            (batch.num_tokens, _of_engine(engine, batch, kind))
            for batch in sorted_batches(sequences, model.target(precision).token_budget)
        ]
        for precision, engine in model.engines.items()
    }


def _of_engine(engine: Engine, batch: Batch, kind: RowKind | None) -> Run:
    """The run of a worker for requests of rows of this kind, or of vectors."""

    def run() -> object:
        rows = engine.compute(batch)
        rows.not_finite()
        starts, ends = batch.offsets[:-1], batch.offsets[1:]
        return rows.on_host(kind) if kind else heads.pooled(rows, starts, ends, "mean")

    return run


def _pytorch(
    peer: Encoder, device: str, sequences: list[Ints], kind: RowKind | None
) -> dict[str, Side]:
    """Over batches as they come, and over batches of like lengths."""
    as_they_come = [
        sequences[start : start + TORCH_BATCH] for start in range(0, len(sequences), TORCH_BATCH)
    ]
    sides = {"PyTorch padded": as_they_come, "PyTorch sorted": [*_alike(sequences)]}
    return {
        side: [(sum(map(len, batch)), _of_torch(peer, device, batch, kind)) for batch in batches]
        for side, batches in sides.items()
    }


def _alike(sequences: list[Ints]) -> Iterator[list[Ints]]:
    """Batches of at most TORCH_CELLS cells, pads counted, longest first."""
    batch: list[Ints] = []
    for sequence in sorted(sequences, key=len, reverse=True):
        if batch and len(batch[0]) * (len(batch) + 1) > TORCH_CELLS:
            yield batch
            batch = []
        batch.append(sequence)
    yield batch


def _of_torch(peer: Encoder, device: str, batch: list[Ints], kind: RowKind | None) -> Run:
    def run() -> Any:
        with torch.inference_mode():
            states, pooled = peer(*pad(batch, device))
            values = states if kind else pooled
            return (values.half() if kind == "halves" else values.float()).cpu()

    return run


def _in_turn(sides: dict[str, Side], seconds: float) -> dict[str, float]:
    """Tokens per second of each side, after a round that does not count."""
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS + 1):
        for side, batches in sides.items():
            rates[side].append(_rate(batches, seconds))
    return {side: median(values[1:]) for side, values in rates.items()}


def _rate(batches: Side, seconds: float) -> float:
    started, num_tokens = time.perf_counter(), 0
    while True:
        for num, run in batches:
            run()
            num_tokens += num
            if (spent := time.perf_counter() - started) >= seconds:
                return num_tokens / spent
