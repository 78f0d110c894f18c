"""Tokens per second and latency of the engine, beside PyTorch and beside matrix products alone.

All sides of a shape and a load are measured in turn. Tokens are real ones, and what comes back to
the host is part of the time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
import torch

from addnorm.load.measure.stream import PROFILES, make
from addnorm.service.inference import heads
from addnorm.service.loading import loader
from addnorm.service.models.model import Model
from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.batch import Batch, Ints
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Limits, Pooling
from benchmarks.bench.ceilings import matrix_flops_per_token, sorted_batches
from benchmarks.gpu import shapes
from benchmarks.gpu.agreement import LENGTHS, differences
from benchmarks.gpu.setup import Setup
from benchmarks.peers import torch_encoder

LOADS = ("small", "big", "hidden")
REPEATS = 8  # of a load's sequences: a GPU is through with them at once
ROUNDS = 3
LANES = (1, 2, 4)  # runs at once
TORCH_BATCH = 32  # sequences, in the order in which they come
TORCH_CELLS = 16384  # of a batch of like lengths
ALONE = (16, 128, 512)  # tokens of one caller's sequence
POOLING: Pooling = "mean"  # as in PyTorch
PRODUCT = {"cuda": 8192, "cpu": 512}  # rows and columns of the matrices
Run = Callable[[], object]


def speed(setup: Setup) -> None:
    """fp32 and fp16 of each shape and load, PyTorch's padded and sorted, and shares of the peak."""
    peak = matmul_tflops(setup)
    setup.report.put("speed", "torch.matmul, TFLOP/s", peak)
    for shape in setup.shapes:
        model = _loaded(setup, shape)
        flops = matrix_flops_per_token(asdict(shapes.SHAPES[shape])) / 1e12
        for load in LOADS:
            sequences = _sequences(load, model.bundle.manifest.limits)
            sides = {**_ours(model, load, sequences), **_peers(setup, shape, load, sequences)}
            found = _in_turn(sides, setup.seconds)
            for side, tokens_per_s in found.items():
                figures = {"tokens/s": tokens_per_s, "of matmul": tokens_per_s * flops / peak}
                setup.report.put("speed", f"{shape} {load} {side}", figures)


def tf32(setup: Setup) -> None:
    """fp32 where the engine may use TF32: speed, and differences from the CPU. A run of its own,
    since the setting is the process's."""
    for shape in setup.shapes:
        model = _loaded(setup, shape)
        limits = model.bundle.manifest.limits
        for load in LOADS:
            sides = _ours(model, load, _sequences(load, limits), ("fp32",))
            for tokens_per_s in _in_turn(sides, setup.seconds).values():
                setup.report.put("tf32", f"{shape} {load}", {"tokens/s": tokens_per_s})
        batch = selfcheck.sequences(limits, LENGTHS)
        expected = Engine(model.bundle, "fp32", "cpu").run(batch)
        compared = differences(model.engine("fp32").run(batch), expected, "fp16")
        found = {name: difference for name, difference, _ in compared}
        setup.report.put("tf32", f"{shape} parity", found)


def lanes(setup: Setup) -> None:
    """fp16 with several runs at once, on threads of their own, as worker threads do."""
    for shape in setup.shapes:
        model = _loaded(setup, shape)
        for load in LOADS:
            sequences = _sequences(load, model.bundle.manifest.limits)
            (batches,) = _ours(model, load, sequences, ("fp16",)).values()
            with ThreadPoolExecutor(max(LANES)) as threads:
                sides = {f"{num} at once": _at_once(batches, num, threads) for num in LANES}
                for side, tokens_per_s in _in_turn(sides, setup.seconds).items():
                    name = f"{shape} {load}, {side}"
                    setup.report.put("lanes", name, {"tokens/s": tokens_per_s})


def _at_once(
    batches: Sequence[tuple[int, Run]], num_threads: int, threads: ThreadPoolExecutor
) -> list[tuple[int, Run]]:
    """All batches as one run: each thread takes the next one that none has taken."""

    def run() -> None:
        left = iter([run for _, run in batches])

        def run_rest() -> None:
            for own in left:  # a list's iterator gives each run to one thread
                own()

        for done in [threads.submit(run_rest) for _ in range(num_threads)]:
            done.result()

    return [(sum(num for num, _ in batches), run)]


def latency(setup: Setup) -> None:
    """Measures a single caller: milliseconds for one sequence, in turn with PyTorch."""
    for shape in setup.shapes:
        model = _loaded(setup, shape)
        peer = torch_encoder.encoder(shapes.SHAPES[shape], setup.provider)
        for length in ALONE:
            sequence = selfcheck.sequences(model.bundle.manifest.limits, [length])
            runs = {
                precision: _of_engine(engine, sequence, hidden=False)
                for precision, engine in model.engines.items()
            }
            runs["PyTorch"] = _of_torch(setup, peer, [sequence.tokens], hidden=False)
            for side, seconds in _timed_in_turn(runs, setup.seconds * ROUNDS).items():
                ms = [1000 * found for found in np.percentile(seconds, [50, 99]).tolist()]
                figures = {"p50 ms": ms[0], "p99 ms": ms[1], "runs": len(seconds)}
                setup.report.put("latency", f"{shape} {length} tokens {side}", figures)


def matmul_tflops(setup: Setup) -> float:
    """What torch.matmul reaches: float16 on a GPU, float32 on the CPU."""
    size, device = PRODUCT[setup.provider], setup.provider
    dtype = torch.float16 if device == "cuda" else torch.float32
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def run() -> None:
        torch.matmul(one, other)
        if device == "cuda":
            torch.cuda.synchronize()

    run()
    seconds = _timed_in_turn({"matmul": run}, setup.seconds)["matmul"]
    return float(2 * size**3 / median(seconds) / 1e12)


def _loaded(setup: Setup, shape: str) -> Model:
    """Checked and warmed up as the server does it, with its settings."""
    model = loader.load(shapes.bundle(setup, shape), setup.settings())
    if setup.provider == "cpu":  # the rehearsal's GPU
        for engine in model.engines.values():
            engine.keep_rows_on("cpu")
    return model


def _sequences(load: str, limits: Limits) -> list[Ints]:
    requests = make(PROFILES[load], limits).requests
    return [sequence for request in requests for sequence in request.sequences] * REPEATS


def _ours(
    model: Model, load: str, sequences: list[Ints], precisions: Sequence[str] = shapes.PRECISIONS
) -> dict[str, list[tuple[int, Run]]]:
    """Side -> its batches: number of tokens, and the run."""
    hidden = PROFILES[load].output == "activations"
    return {
        precision: [
            (batch.num_tokens, _of_engine(model.engine(precision), batch, hidden))
            for batch in sorted_batches(sequences, model.target(precision).token_budget)
        ]
        for precision in precisions
    }


def _of_engine(engine: Engine, batch: Batch, hidden: bool) -> Run:
    """What a worker does for requests of hidden states, or of vectors."""

    def run() -> object:
        rows = engine.compute(batch)
        rows.not_finite()
        return rows.on_host() if hidden else heads.pooled(rows, batch.offsets, POOLING)

    return run


def _peers(
    setup: Setup, shape: str, load: str, sequences: list[Ints]
) -> dict[str, list[tuple[int, Run]]]:
    """PyTorch over batches as they come, and over batches of like lengths."""
    peer = torch_encoder.encoder(shapes.SHAPES[shape], setup.provider)
    as_they_come = [
        sequences[start : start + TORCH_BATCH] for start in range(0, len(sequences), TORCH_BATCH)
    ]
    sides = {"PyTorch padded": as_they_come, "PyTorch sorted": [*_alike(sequences)]}
    hidden = PROFILES[load].output == "activations"
    return {
        side: [(sum(map(len, batch)), _of_torch(setup, peer, batch, hidden)) for batch in batches]
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


def _of_torch(setup: Setup, peer: torch_encoder.Encoder, batch: list[Ints], hidden: bool) -> Run:
    def run() -> Any:
        with torch.inference_mode():
            states, pooled = peer(*torch_encoder.padded(batch, setup.provider))
            return (states if hidden else pooled).float().cpu()

    return run


def _in_turn(sides: dict[str, list[tuple[int, Run]]], seconds: float) -> dict[str, float]:
    """Tokens per second of each side, the median of its rounds, after one that does not count."""
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS + 1):
        for side, batches in sides.items():
            rates[side].append(_rate(batches, seconds))
    return {side: median(found[1:]) for side, found in rates.items()}


def _rate(batches: list[tuple[int, Run]], seconds: float) -> float:
    started, num_tokens = time.perf_counter(), 0
    while True:
        for num, run in batches:
            run()
            num_tokens += num
            if (spent := time.perf_counter() - started) >= seconds:
                return num_tokens / spent


def _timed_in_turn(runs: dict[str, Run], seconds: float) -> dict[str, list[float]]:
    """Seconds of each run, one after the other for so long, after some that do not count."""
    spent: dict[str, list[float]] = {side: [] for side in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for side, run in runs.items():
            started = time.perf_counter()
            run()
            spent[side].append(time.perf_counter() - started)
    return spent
