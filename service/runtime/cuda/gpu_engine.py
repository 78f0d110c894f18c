"""Engines on a GPU, and whether a server takes them."""

import time
from functools import partial
from pathlib import Path

from onnxruntime import InferenceSession

from addnorm.service.runtime.batch import AnyRows, Batch, Rows
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.cuda.gpu import Gpu
from addnorm.service.runtime.cuda.gpu_rows import GpuBody, pooling_graph
from addnorm.service.runtime.engine import HEAD_ROWS, Engine, OpenEngine
from addnorm.service.runtime.session import Sessions
from addnorm.service.settings import Settings

WIDTH_STEP = 8  # columns of a grid: onnxruntime's memory-efficient kernel asks for 4
THE_GPU = Gpu()


class GpuEngine(Engine):
    """An engine whose body and heads run on a GPU. The rows of its runs stay there."""

    provider = "cuda"
    exact = on_cores = False
    # while one thread hands out what a run gave, the GPU has the next; not measured yet
    num_workers = 2
    budgets = (1024, 2048, 4096, 8192, 16384, 32768)

    def __init__(
        self, bundle: Bundle, precision: str, num_threads: int = 1, gpu: Gpu = THE_GPU
    ) -> None:
        """StartupError as of `Gpu.open`."""
        self._gpu, self._max_positions = gpu, bundle.manifest.limits.max_positions
        super().__init__(bundle, precision, num_threads)
        self._rows = GpuBody(self._body, gpu.open, bundle.manifest.pooling, gpu.memory)

    @staticmethod
    def clock() -> float:
        return time.monotonic()

    def compute(self, batch: Batch) -> AnyRows:
        return self._rows.run(batch, self._inputs(batch.grid(self._width(batch))))

    def run_on_all_cores(self, batch: Batch) -> Rows:
        """The same as `run`."""
        return self.run(batch)

    def head_rows(self, output: str) -> int:
        return HEAD_ROWS

    def _width(self, batch: Batch) -> int:
        """The grid's. Attention with a mask takes its fast kernel only at a multiple of
        WIDTH_STEP."""
        longest = int(batch.lengths.max())
        return max(longest, min(self._max_positions, -(-longest // WIDTH_STEP) * WIDTH_STEP))

    def _graph(self, bundle: Bundle, precision: str) -> Path:
        return bundle.graph(precision, on_gpu=True)

    def _open_body(self, graph: Path, num_threads: int, fits_16_bits: bool) -> Sessions:
        session = self._gpu.open(graph)
        return Sessions(session, session)

    def _open_head(self, graph: Path) -> InferenceSession:
        return self._gpu.open(graph)

    def _described(self) -> str:
        return f"cuda: {self._gpu.kind()}"


def engines_for(settings: Settings) -> OpenEngine:
    """What opens the engines of a server: on a GPU if ADDNORM_PROVIDER is cuda, or auto and there
    is one."""
    gpu = Gpu(settings.cuda_tf32, settings.cuda_memory_bytes)
    wanted = settings.provider == "cuda" or (
        settings.provider == "auto" and gpu.runs(pooling_graph("first"))
    )
    return partial(GpuEngine, gpu=gpu) if wanted else Engine
