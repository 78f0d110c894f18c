"""Experiments for a machine with a GPU.

`answers`: of every preset and family with two layers, to the questions that processors are asked.
For each shape of a BERT of transformers with drawn weights, exported and certified on the CPU at
first use: `agreement` (what `addnorm verify --provider cuda` measures, over more drawn batches),
`speed` (the engine beside PyTorch) and `http` (the server beside PyTorch behind FastAPI). A step's
figures are in gpu/steps.json when it ends, with its seconds; one that fails does not end the run.
Without ADDNORM_PROVIDER=cuda the CPU rehearses it with tiny models.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn
from transformers import AutoModel

from addnorm.export import exporting, sources
from addnorm.export.cuda.on_gpu import measure
from addnorm.export.opening import Checkpoint, InMemory
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import Source
from addnorm.export.wishes import Wishes
from addnorm.load.run import Load
from addnorm.model.config import Config
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import CUDA
from addnorm.service.engine.cuda.gpu_engine import engines_for
from addnorm.service.engine.engine import OpenEngine
from addnorm.service.environment import read_settings
from addnorm.service.settings import Settings
from benchmarks import peers, processes
from benchmarks.contender import Contender, in_precision
from benchmarks.findings import Findings, Options
from benchmarks.gpu import answers, speed
from benchmarks.gpu.rehearsal import rehearse
from benchmarks.processors import models
from benchmarks.shapes import Shape

Figures = dict[str, Any]
PRECISIONS = ("fp32", "fp16")
CALLERS = {"small": 64, "big": 8}  # of each load over HTTP
NEAR = 0.03  # of the same model on the CPU: float16 has 11 bits
MOST_ALONE = 32  # sequences of a load that the CPU computes: of bert-large a second each


def _bert(width: int, heads: int, layers: int, vocabulary: int = 30522) -> Shape:
    sizes = {
        "vocab_size": vocabulary, "hidden_size": width, "num_attention_heads": heads,
        "intermediate_size": 4 * width, "num_hidden_layers": layers,
    }  # fmt: skip
    return Shape("Bert", 512, sizes)


AS_WRITTEN = "-as-written"  # ends the name of a shape that is exported with its authors' graph
SHAPES = {
    "minilm": _bert(384, 12, 6),
    f"minilm{AS_WRITTEN}": _bert(384, 12, 6),
    "bert-large": _bert(1024, 16, 24),
    "bert-base": _bert(768, 12, 12),
}
TINY = {name: _bert(64, 4, 2, vocabulary=1000) for name in ("tiny", f"tiny{AS_WRITTEN}")}


class HiddenStates(nn.Module):
    """A folder's model of transformers, as a module of one's own calls it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder)

    def forward(self, ids: Tensor) -> Tensor:
        """ids `[B, S]` -> hidden states `[B, S, d]`."""
        return self.model(input_ids=ids).last_hidden_state  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Setup:
    out: Path
    settings: Settings
    engines: Callable[[Settings], OpenEngine]
    device: str  # cuda or cpu
    shapes: Mapping[str, Shape]
    families: Sequence[str]  # names of two-layer models
    seconds: float  # of one measurement
    num_compositions: int  # drawn batches for each precision

    @property
    def report(self) -> Path:
        return self.out / "steps.json"

    def bundle(self, shape: str) -> Bundle:
        """It is exported at first use."""
        folder = self.out / "bundles" / shape / "1"
        if not folder.exists():
            with self.open_model(shape) as model:
                exporting.export(model, self.out / "bundles", shape, 1)
        return bundles.read(folder)

    def open_model(self, shape: str) -> AbstractContextManager[Source | Reference]:
        folder = self.checkpoint(shape)
        if not shape.endswith(AS_WRITTEN):
            return Checkpoint(str(folder)).packed(Wishes(precisions=PRECISIONS))
        config = self.config(shape)
        wishes = Wishes(
            pooling="mean", max_positions=config.max_positions, vocab_size=config.vocab_size
        )
        return InMemory(HiddenStates(folder)).as_written(wishes)

    def checkpoint(self, shape: str) -> Path:
        """A folder of transformers. It is written at first use."""
        folder = self.out / "checkpoints" / shape
        if not folder.exists():
            self.shapes[shape].write(folder)
        return folder

    def config(self, shape: str) -> Config:
        return sources.checkpoint(self.checkpoint(shape)).model.config

    def agreement(self, shape: str) -> Figures:
        """The section "cuda" of its certificate. CertificationError if a difference from PyTorch is
        beyond its limit, or rows go through the CPU."""
        bundle, engines = self.bundle(shape), self.engines(self.settings)
        with self.open_model(shape) as model:
            return measure(bundle, model, engines, self.num_compositions)

    def speed(self, shape: str) -> Figures:
        """Load and side -> useful tokens per second."""
        model = speed.load_model(self.bundle(shape), self.settings, self.engines)
        return speed.measure(model, self.config(shape), self.device, self.seconds)

    def answers(self, name: str) -> Figures:
        """Precision -> the largest difference from the CPU's answers, and whose words are others.
        Of a two-layer model."""
        folder = self.out / "families" / name
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
        return answers.measure(name, folder, self.device)

    def http(self, shape: str) -> Figures:
        """Load and side -> useful tokens per second over HTTP, the median of the rounds, and
        answers that were wrong. PyTorch is in float16 behind FastAPI."""
        bundle, folder = self.bundle(shape), str(self.checkpoint(shape))
        with ExitStack() as stack:
            addnorm_server = cache(lambda: stack.enter_context(processes.addnorm(bundle)))
            pytorch_server = cache(lambda: stack.enter_context(peers.pytorch(folder, self.device)))
            sides = {
                precision: in_precision(
                    addnorm_server, bundle, precision, NEAR, most_alone=MOST_ALONE
                )
                for precision in PRECISIONS
            }
            sides["PyTorch"] = Contender("PyTorch", pytorch_server, sides["fp32"].reference, bundle)
            figures: Figures = {}
            for traffic, callers in CALLERS.items():
                for side in sides.values():
                    side.prepare(traffic)
                load = Load(callers, 4 * self.seconds)
                rounds = [
                    {name: side.run(traffic, load) for name, side in sides.items()}
                    for _ in range(speed.ROUNDS)
                ]
                for name in sides:
                    runs = [by_side[name] for by_side in rounds]
                    figures[f"{traffic}, {name}"] = median(run["tokens_per_s"] for run in runs)
                    figures[f"{traffic}, {name}, p50 ms"] = median(run["p50_ms"] for run in runs)
                    figures[f"{traffic}, {name}, wrong"] = sum(run["num_errors"] for run in runs)
            wrong = [name for name, value in figures.items() if name.endswith("wrong") and value]
            return figures | {"missed": [f"{name}: {figures[name]}" for name in wrong]}


def rehearsal(out: Path, settings: Settings) -> Setup:
    folder = out / "gpu-rehearsal"
    return Setup(folder, settings, lambda _: rehearse, "cpu", TINY, ("embedder",), 0.05, 20)


def run(options: Options) -> Findings:
    settings = read_settings()
    if settings.provider != "cuda":
        return try_steps(options, rehearsal(options.out, settings))
    if missing := [*_missing()]:
        return Findings("", [f"this needs {' and '.join(missing)}"])
    onnxruntime.preload_dlls()  # of CUDA and cuDNN, where pip put them
    out = options.out / "gpu"
    return try_steps(
        options, Setup(out, settings, engines_for, "cuda", SHAPES, models.names(), 0.5, 2000)
    )


def _missing() -> Iterator[str]:
    if CUDA not in onnxruntime.get_available_providers():
        yield "onnxruntime-gpu in place of onnxruntime"
    if not torch.cuda.is_available():
        yield "PyTorch with CUDA and a GPU"


def _parts(shape: str) -> tuple[str, ...]:
    """Whose figures no other shape gives."""
    if shape.endswith(AS_WRITTEN):
        return ("agreement", "speed")
    return ("http",) if shape == "bert-large" else ("agreement", "speed", "http")


def try_steps(options: Options, setup: Setup) -> Findings:
    """Every step that is wanted, though one before it failed."""
    setup.out.mkdir(parents=True, exist_ok=True)
    parts = {"agreement": setup.agreement, "speed": setup.speed, "http": setup.http}
    steps = {f"answers {name}": partial(setup.answers, name) for name in setup.families}
    steps |= {
        f"{name} {shape}": partial(parts[name], shape)
        for shape in setup.shapes
        for name in _parts(shape)
    }
    figures: dict[str, Figures] = (
        json.loads(setup.report.read_text()) if setup.report.exists() else {}
    )
    misses = list[str]()
    for name, step in steps.items():
        if options.wants(name):
            start_s = time.monotonic()
            try:
                figures[name] = step()
            except Exception as error:  # whatever it is, the next step may say something
                figures[name] = {"failed": f"{type(error).__name__}: {error}"}
                misses.append(f"{name}: {figures[name]['failed']}")
            misses += [f"{name}: {sentence}" for sentence in figures[name].get("missed", ())]
            figures[name]["step's seconds"] = round(time.monotonic() - start_s, 1)
            setup.report.write_text(json.dumps(figures, indent=1))
            print(f"{name}: {json.dumps(figures[name].get('holds', figures[name]))}", flush=True)
    place = "a GPU" if setup.device == "cuda" else "the CPU: a rehearsal, which says nothing of one"
    return Findings(f"On {place}. All figures: {setup.report}", misses, figures)
