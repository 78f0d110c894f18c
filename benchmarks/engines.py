"""all-MiniLM-L6-v2 by the engines that a user would take instead, each in a process of its own:
speed, memory, how near their vectors are to PyTorch's, and texts whose bits change with the batch.

Peers are timed where they run. Addnorm is asked over HTTP, which counts.
"""

import base64
import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from addnorm.load.servers import Server
from addnorm.load.stream import prose
from benchmarks import peers, processes
from benchmarks.contender import FP32, INT8
from benchmarks.findings import BUILD, MINILM, Findings, Options, newest
from benchmarks.tables import table

MODEL = "all-minilm-l6-v2"
PATIENT = {"ADDNORM_TIMEOUT_S": "600"}  # as the others
PYTHON, MADE = BUILD / "engines/bin/python", BUILD / "engines/made"
NUM_TEXTS, NUM_COMPARED, BATCH, NEAREST = 512, 96, 32, 10
START_S = 900.0  # some export or quantize the model first
BASE = "torch"
TITLES = {
    BASE: "sentence-transformers, PyTorch",
    "torch-bfloat16": "the same, bfloat16",
    "onnxruntime": "onnxruntime, plain fp32 export",
    "fastembed": "fastembed, the same file",
    "openvino": "OpenVINO, fp32",
    "ctranslate2": "CTranslate2, fp32",
    f"addnorm {FP32}": "**Addnorm fp32, over HTTP**",
    "onnxruntime-int8": "onnxruntime, usual int8 (`quantize_dynamic`)",
    "ctranslate2-int8": "CTranslate2, int8",
    "openvino-int8": "OpenVINO, static int8 (NNCF)",
    "openvino-int8-streams": "the same, two streams",
    "onnxruntime-ours": "Addnorm's int8 file in plain onnxruntime",
    f"addnorm {INT8}": "**Addnorm int8, over HTTP**",
}
Vectors = npt.NDArray[np.float32]  # [texts, d_model]
Timed = tuple[float, float, Vectors]  # seconds, CPU seconds, [texts, d_model]


@dataclass
class Engine:
    """encode: texts and the size of a batch -> what it took."""

    name: str
    encode: Callable[[Sequence[str], int], Timed]
    server: Server
    runs: list[Timed] = field(default_factory=list)
    num_changed: int = 0  # of NUM_COMPARED texts

    def compare(self, texts: Sequence[str]) -> None:
        """The same texts alone, in one batch size and in another order."""
        sample = list(texts[:NUM_COMPARED])
        order = random.Random(0).sample(range(NUM_COMPARED), NUM_COMPARED)
        _, _, alone = self.encode(sample, 1)
        _, _, batched = self.encode(sample, BATCH)
        _, _, turned = self.encode([sample[index] for index in order], 8)
        again = np.empty_like(turned)
        again[order] = turned
        changed = (alone != batched) | (alone != again)
        self.num_changed = int(changed.any(1).sum())


def run(options: Options) -> Findings:
    texts, calibration = prose(NUM_TEXTS), prose(256, seed=1)
    MADE.mkdir(parents=True, exist_ok=True)
    (MADE / "calibration.json").write_text(json.dumps(calibration))
    shutil.copyfile(newest(MODEL).graph(INT8), MADE / "addnorm.int8.onnx")
    with ExitStack() as stack:
        engines = [engine for name in TITLES if (engine := _start(name, stack, options))]
        rounds = options.times(3)
        for number in tqdm(range(1 + rounds), desc="rounds", disable=None):
            for engine in engines if number % 2 else reversed(engines):
                timed = engine.encode(texts, BATCH)
                if number:  # the first warms up
                    engine.runs.append(timed)
        for engine in engines:
            engine.compare(texts)
        by_engine = {engine.name: _figures(engine, engines) for engine in engines}
    columns = ("engine", *next(iter(by_engine.values())))
    rows = [(TITLES[name], *map(_format, figures.values())) for name, figures in by_engine.items()]
    plots = {"engines.png": lambda path: draw(by_engine, path)}
    missed = [
        f"{name}: {figures['texts of 96 whose bits change']} texts change"
        for name, figures in by_engine.items()
        if name.startswith("addnorm") and figures["texts of 96 whose bits change"]
    ]
    return Findings(table(columns, rows), missed, by_engine, plots)


def _start(name: str, stack: ExitStack, options: Options) -> Engine | None:
    if not options.wants(name):
        return None
    if name.startswith("addnorm"):
        server = stack.enter_context(processes.addnorm(newest(MODEL), **PATIENT))
        return Engine(name, _asking(server, name.split()[1]), server)
    if not PYTHON.exists():
        return None
    command = (PYTHON, peers.program("engine"), name, MINILM, MADE)
    server = stack.enter_context(processes.program(command, START_S))
    return Engine(name, _timer(server), server)


def _timer(server: Server) -> Callable[[Sequence[str], int], Timed]:
    def encode(texts: Sequence[str], batch: int) -> Timed:
        body = json.dumps({"texts": list(texts), "batch": batch}).encode()
        answer = server.ask(body, "/timed")
        seconds, cpu_s = np.frombuffer(answer[:16], np.float64)
        vectors = np.frombuffer(answer[16:], np.float32).reshape(len(texts), -1)
        return float(seconds), float(cpu_s), vectors

    return encode


def _asking(server: Server, precision: str) -> Callable[[Sequence[str], int], Timed]:
    """All texts in one request, or so many as it is asked for where these are few."""
    options = {
        "model": MODEL,
        "encoding_format": "base64",
        "precision": precision,
        "truncate": True,
    }

    def encode(texts: Sequence[str], batch: int) -> Timed:
        size = len(texts) if len(texts) == NUM_TEXTS else batch
        entries, before, started = [], server.cpu_s() or 0.0, time.perf_counter()
        for start in range(0, len(texts), size):
            body = json.dumps({**options, "input": list(texts[start : start + size])}).encode()
            entries += json.loads(server.ask(body, "/v1/embeddings"))["data"]
        took = time.perf_counter() - started, (server.cpu_s() or 0.0) - before
        bits = b"".join(base64.b64decode(entry["embedding"]) for entry in entries)
        return *took, np.frombuffer(bits, np.float32).reshape(len(texts), -1)

    return encode


def _figures(engine: Engine, engines: Sequence[Engine]) -> dict[str, float]:
    base = engines[0]
    expected, vectors = base.runs[0][2], engine.runs[0][2]
    pairs = zip(engine.runs, base.runs, strict=True)
    return {
        "texts/s": median(NUM_TEXTS / seconds for seconds, _, _ in engine.runs),
        f"beside {TITLES[base.name]}": median(base_run[0] / run[0] for run, base_run in pairs),
        "CPU s": median(cpu_s for _, cpu_s, _ in engine.runs),
        "MiB": engine.server.memory_mib() or 0.0,
        "lowest cosine": float((vectors * expected).sum(1).min()),
        f"overlap@{NEAREST}": overlap(vectors, expected),
        "texts of 96 whose bits change": engine.num_changed,
    }


def overlap(vectors: Vectors, expected: Vectors, num: int = NEAREST) -> float:
    """The share of each text's nearest texts that both have."""
    pairs = zip(_nearest(vectors, num), _nearest(expected, num), strict=True)
    return float(np.mean([len(np.intersect1d(*pair)) / num for pair in pairs]))


def _nearest(vectors: Vectors, num: int) -> npt.NDArray[np.intp]:
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    return similarity.argsort(1, kind="stable")[:, -num:]


def _format(figure: float) -> str:
    return str(figure) if isinstance(figure, int) else f"{figure:,.4g}"


def draw(by_engine: dict[str, dict[str, float]], path: Path) -> None:
    """Bars of texts per second; beside each how near it is and how many texts change."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    names = [name for name in TITLES if name in by_engine][::-1]
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(names) + 0.9))
    rates = [by_engine[name]["texts/s"] for name in names]
    colours = ["#c2410c" if name.startswith("addnorm") else "#94a3b8" for name in names]
    axes.barh([TITLES[name].replace("*", "").replace("`", "") for name in names], rates,
              color=colours)  # fmt: skip
    for at, name in enumerate(names):
        changed = by_engine[name]["texts of 96 whose bits change"]
        near = by_engine[name][f"overlap@{NEAREST}"]
        axes.text(rates[at], at, f"  {near:.3f}, {changed} of 96", va="center", fontsize=8)
    axes.set_xlim(0, 1.3 * max(rates))
    axes.set_xlabel("texts per second; beside the bar: overlap@10 with PyTorch,\n"
                    "and texts of 96 whose bits change with their batch", fontsize=8)  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
