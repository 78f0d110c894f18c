"""What to run on a machine with a GPU.

Steps, in this order: `tests` (pytest -m cuda), then for each shape `export` (a BERT of
transformers, drawn weights, certified on the CPU), `agreement` (what `addnorm verify --provider
cuda` measures, over more drawn batches), `speed` (the engine beside PyTorch) and `http` (the server
beside PyTorch behind FastAPI). A step's figures are in gpu/steps.json when it ends; one that fails
does not end the run. Without ADDNORM_PROVIDER=cuda the CPU rehearses it with a tiny model.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from addnorm.export import writer
from addnorm.export.cuda.on_gpu import measured
from addnorm.export.sources import sources
from addnorm.export.writer import Plan
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer
from addnorm.service.environment import read_settings
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.cuda.gpu import CUDA
from addnorm.service.runtime.cuda.gpu_engine import engines_for
from addnorm.service.runtime.engine import OpenEngine
from addnorm.service.settings import Settings
from benchmarks.findings import Findings, Options
from benchmarks.gpu import over_http, speed, torch_encoder
from benchmarks.gpu.rehearsal import RehearsedEngine

Figures = dict[str, Any]
Step = Callable[[], Figures]
TESTS = Path(__file__).resolve().parents[2] / "tests/runtime/cuda"
PRECISIONS = ("fp32", "fp16")
SEED = 0


def _bert(d_model: int, n_heads: int, n_layers: int, vocab_size: int = 30522) -> Config:
    return Config(
        vocab_size=vocab_size, d_model=d_model, n_heads=n_heads, d_ff=4 * d_model,
        n_layers=n_layers, max_positions=512, type_vocab_size=2, eps=1e-12, embedding_norm=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Setup:
    out: Path
    settings: Settings
    engines: Callable[[Settings], OpenEngine]
    device: str  # of PyTorch
    shapes: Mapping[str, Config]
    seconds: float  # of one measurement
    num_compositions: int  # drawn batches for each precision

    @property
    def report(self) -> Path:
        return self.out / "steps.json"

    def bundle(self, shape: str) -> Bundle:
        """StartupError if it was not exported."""
        return bundles.read(self.out / "bundles" / shape / "1")

    def checkpoint(self, shape: str) -> Path:
        """A folder of transformers. It is written at first use."""
        folder = self.out / "checkpoints" / shape
        if not folder.exists():
            torch_encoder.save(self.shapes[shape], folder, SEED)
        return folder

    def model(self, shape: str, layout: str) -> Transformer:
        return sources.checkpoint(self.checkpoint(shape)).in_layout(layout)


def on_gpu(out: Path, settings: Settings) -> Setup:
    shapes = {
        "minilm": _bert(384, 12, 6),
        "bert-base": _bert(768, 12, 12),
        "bert-large": _bert(1024, 16, 24),
    }
    return Setup(out / "gpu", settings, engines_for, "cuda", shapes, 0.5, 2000)


def rehearsal(out: Path, settings: Settings) -> Setup:
    shapes = {"tiny": _bert(64, 4, 2, vocab_size=1000)}
    place = out / "gpu-rehearsal"
    return Setup(place, settings, lambda _: RehearsedEngine, "cpu", shapes, 0.05, 20)


def run(options: Options) -> Findings:
    settings = read_settings()
    if settings.provider != "cuda":
        return tried(options, rehearsal(options.out, settings))
    if missing := [*_missing()]:
        return Findings("", [f"this needs {' and '.join(missing)}"])
    onnxruntime.preload_dlls()  # of CUDA and cuDNN, where pip put them
    return tried(options, on_gpu(options.out, settings))


def _missing() -> Iterator[str]:
    if CUDA not in onnxruntime.get_available_providers():
        yield "onnxruntime-gpu in place of onnxruntime"
    if not torch.cuda.is_available():
        yield "PyTorch with CUDA and a GPU"


def tried(options: Options, setup: Setup) -> Findings:
    """Every step that is wanted, though one before it failed."""
    setup.out.mkdir(parents=True, exist_ok=True)
    failed = list[str]()
    for name, step in steps(setup).items():
        if options.wants(name):
            try:
                figures = step()
            except Exception as error:  # whatever it is, the next step may say something
                figures = {"failed": f"{type(error).__name__}: {error}"}
                failed.append(f"{name}: {figures['failed']}")
            _keep(setup.report, name, figures)
    where = "a GPU" if setup.device == "cuda" else "the CPU: a rehearsal, which says nothing of one"
    return Findings(f"On {where}. All figures: {setup.report}", failed, _kept(setup.report))


def steps(setup: Setup) -> dict[str, Step]:
    parts = {"export": export, "agreement": agreement, "speed": beside_pytorch, "http": served}
    of_shapes = {
        f"{name} {shape}": partial(part, setup, shape)
        for shape in setup.shapes
        for name, part in parts.items()
    }
    return {"tests": tests, **of_shapes}


def tests() -> Figures:
    """Runs the tests marked `cuda`, which are skipped without CUDA."""
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, str(TESTS)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-4000:]}")
    return {"pytest": done.stdout.strip().splitlines()[-1]}


def export(setup: Setup, shape: str) -> Figures:
    """One that is there is taken."""
    if not (setup.out / "bundles" / shape / "1").exists():
        source = sources.checkpoint(setup.checkpoint(shape))
        plan = Plan("packed", PRECISIONS, PRECISIONS[0], lens=False)
        writer.export(source, setup.out / "bundles", shape, 1, plan)
    bundle = setup.bundle(shape)
    return {"MiB": sum(file.num_bytes for file in bundle.manifest.files.values()) / 2**20}


def agreement(setup: Setup, shape: str) -> Figures:
    """The section "cuda" of its certificate. CertificationError if a difference from PyTorch is
    beyond its limit, or rows go through the CPU."""
    return measured(
        setup.bundle(shape),
        setup.model(shape, "padded"),
        open_engine=setup.engines(setup.settings),
        num_compositions=setup.num_compositions,
    )


def beside_pytorch(setup: Setup, shape: str) -> Figures:
    """Load and side -> useful tokens per second."""
    model = speed.loaded(setup.bundle(shape), setup.settings, setup.engines)
    return speed.measured(model, setup.shapes[shape], setup.device, setup.seconds)


def served(setup: Setup, shape: str) -> Figures:
    """Load and side -> useful tokens per second over HTTP, and answers that were wrong."""
    bundle, folder = setup.bundle(shape), setup.checkpoint(shape)
    return over_http.measured(bundle, folder, setup.device, 4 * setup.seconds)


def _kept(file: Path) -> dict[str, Figures]:
    """Steps by name. Empty before the first."""
    return json.loads(file.read_text()) if file.exists() else {}


def _keep(file: Path, name: str, figures: Figures) -> None:
    """Replaces what the step had."""
    file.write_text(json.dumps({**_kept(file), name: figures}, indent=1))
    shown = figures.get("holds", figures)
    print(f"{name}: {json.dumps(shown)}", flush=True)
