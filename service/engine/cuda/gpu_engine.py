"""Engines on a GPU. The rows of our graphs stay there: the `DeviceRows` of batch.py."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from addnorm.service.engine.batch import Batch, Floats, Ints, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import OURS, Gpu, gpu_name
from addnorm.service.engine.engine import HEAD_ROWS, Engine, OpenEngine
from addnorm.service.engine.manifest import Pooling, RowKind
from addnorm.service.engine.own_engine import OwnEngine, open_engine
from addnorm.service.engine.session import Sessions
from addnorm.service.settings import Settings

WIDTH_STEP = 8  # columns of a grid: onnxruntime's memory-efficient kernel asks for 4
THE_GPU = Gpu()
# of a graph that pools: vectors `[num_sequences, d_model]`, and which sequences are finite,
# `[num_sequences, 3]`, for each part of Rows
POOLING_OUTPUTS = ("vectors", "finite")
# graphs that drop the pads of a part of Rows, and the dtype of what they leave
DTYPES: Mapping[RowKind, type[np.floating[Any]]] = {"activations": np.float32, "halves": np.float16}


def pooling_graph(kind: RowKind) -> Path:
    """Written by export/cuda/pooling_graphs.py."""
    return Path(__file__).parent / "pooling" / f"{kind}.onnx"


class OnGpu(Engine):
    """An engine whose body and heads run on a GPU, each placed there whole."""

    provider = "cuda"
    exact = on_cores = False
    # while one thread hands out what a run gave, the GPU has the next; not measured yet
    num_workers = 2
    remedy = OURS  # where a graph is not placed whole

    def __init__(
        self, bundle: Bundle, precision: str, num_threads: int = 1, gpu: Gpu = THE_GPU
    ) -> None:
        """StartupError as of `Gpu.open`."""
        self._gpu = gpu
        super().__init__(bundle, precision, num_threads)

    @staticmethod
    def clock() -> float:
        return time.monotonic()

    def run_on_all_cores(self, batch: Batch) -> Rows:
        """The same as `run`."""
        return self.run(batch)

    def head_rows(self, output: str) -> int:
        return HEAD_ROWS

    def _open_body(self, graph: Path, num_threads: int, fits_16_bits: bool) -> Sessions:
        session = self._gpu.open(graph, self.remedy)
        return Sessions(session, session)

    def _open_head(self, graph: Path) -> ort.InferenceSession:
        return self._gpu.open(graph, self.remedy)

    def _provider_in_words(self) -> str:
        return f"cuda: {gpu_name()}, no TF32"


class OwnGpuEngine(OnGpu, OwnEngine):
    """A graph as its authors wrote it. Sequences of one length run together; all rows come back to
    the host, which pools them."""

    budgets = (1024, 2048)  # such graphs may hold scores that grow with the square of the length
    remedy = "this graph is its authors' own: export the bundle as NAME@fp32 (int8 is for CPUs)"


class GpuEngine(OnGpu):
    """A graph of ours. Rows stay on the GPU and are pooled there, and only the requested values
    come back."""

    on_device = True
    budgets = (1024, 2048, 4096, 8192, 16384, 32768)

    def __init__(
        self, bundle: Bundle, precision: str, num_threads: int = 1, gpu: Gpu = THE_GPU
    ) -> None:
        """StartupError as of `Gpu.open`."""
        self._max_positions = bundle.manifest.limits.max_positions
        super().__init__(bundle, precision, num_threads, gpu)
        self.usual_pooling = bundle.manifest.pooling  # that most requests ask for
        kinds: tuple[RowKind, ...] = (*get_args(Pooling), *DTYPES)
        self._pooling = {kind: gpu.open(pooling_graph(kind)) for kind in kinds}

    def compute(self, batch: Batch) -> "GpuRows":
        """Attention with a mask takes its fast kernel only on a grid of a multiple of WIDTH_STEP
        columns."""
        longest = int(batch.lengths.max())
        width = max(longest, min(self._max_positions, -(-longest // WIDTH_STEP) * WIDTH_STEP))
        binding = self._body.io_binding()
        for name, cells in self._inputs(batch.grid(width)).items():
            binding.bind_cpu_input(name, cells)
        for name in Rows._fields:
            binding.bind_output(name, self._gpu.memory)
        self._body.run_with_iobinding(binding)
        return self.rows(batch, binding.get_outputs())

    def rows(self, batch: Batch, parts: Sequence[ort.OrtValue]) -> "GpuRows":
        """parts: of the batch's Rows on the GPU, each `[num_sequences, seq, ...]`, 0 at pads."""
        pool = cache(partial(self.pool, batch, parts))
        copy_rows = cache(partial(self._copy, batch, parts))
        return GpuRows(batch.offsets, self.usual_pooling, pool, copy_rows, 0, batch.num_tokens)

    def pool(
        self, batch: Batch, parts: Sequence[ort.OrtValue], pooling: Pooling
    ) -> list[NDArray[Any]]:
        """parts: of the batch's Rows, on the GPU -> POOLING_OUTPUTS, on the host."""
        binding = self._pooling[pooling].io_binding()
        for name, part in zip(Rows._fields, parts, strict=True):
            binding.bind_ortvalue_input(name, part)
        binding.bind_cpu_input("lengths", batch.lengths)
        for name in POOLING_OUTPUTS:
            binding.bind_output(name, "cpu")
        self._pooling[pooling].run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]

    def _copy(self, batch: Batch, parts: Sequence[ort.OrtValue], kind: RowKind) -> Rows:
        """parts: of the batch's Rows, on the GPU, each `[num_sequences, seq, ...]` -> those that
        the kind has, on the host, a row for each token. Pads are dropped on the GPU."""
        graph: RowKind = kind if kind in DTYPES else "activations"
        places = np.argwhere(np.arange(parts[0].shape()[1]) < batch.lengths[:, None])
        arrays = list[NDArray[Any]]()
        for index, part in enumerate(parts):
            is_copied = index == 0 or kind == "every"
            width = part.shape()[2] if is_copied else 0
            array = np.empty((len(places), width), DTYPES[graph])
            if array.size:
                binding = self._pooling[graph].io_binding()
                binding.bind_ortvalue_input("grid", part)
                binding.bind_cpu_input("places", places)
                # onnxruntime would copy what it had allocated itself once more
                address = array.ctypes.data
                binding.bind_output("rows", "cpu", 0, array.dtype.type, array.shape, address)
                self._pooling[graph].run_with_iobinding(binding)
            arrays.append(array)
        return Rows(*arrays)

    def _graph(self, bundle: Bundle, precision: str) -> Path:
        return bundle.graph(precision, on_gpu=True)


@dataclass(frozen=True, eq=False)
class GpuRows:
    """A row per token of some sequences of a run, still on the GPU. Of one thread."""

    offsets: Ints  # of all sequences of the run
    usual_pooling: Pooling  # that most requests ask for
    pool_run: Callable[[Pooling], list[NDArray[Any]]]  # POOLING_OUTPUTS of the run, made once
    copy_run: Callable[[RowKind], Rows]  # all rows of the run, copied once for each kind
    start: int  # in tokens, where sequences begin and end
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    def span(self, start: int, end: int) -> "GpuRows":
        """Rows start to end, which belong to whole sequences."""
        return replace(self, start=self.start + start, end=self.start + end)

    def pool(self, pooling: Pooling) -> Floats:
        """A vector for each sequence `[num_sequences, d_model]`, finite or not."""
        return self.pool_run(pooling)[0][self._sequences()]

    def not_finite(self) -> str | None:
        """The name of the first output that holds NaN or infinity."""
        parts = zip(
            Rows._fields, self.pool_run(self.usual_pooling)[1][self._sequences()].T, strict=True
        )
        return next((name for name, finite in parts if not finite.all()), None)

    def on_host(self, kind: RowKind = "every") -> Rows:
        return self.copy_run(kind).span(self.start, self.end)

    def _sequences(self) -> slice:
        return slice(*np.searchsorted(self.offsets, (self.start, self.end)).tolist())


def open_on_gpu(bundle: Bundle, precision: str, num_threads: int = 1, gpu: Gpu = THE_GPU) -> Engine:
    """The engine of a bundle on a GPU. StartupError as of `Gpu.open`."""
    kind = OwnGpuEngine if bundle.manifest.as_it_is else GpuEngine
    return kind(bundle, precision, num_threads, gpu)


def engines_for(settings: Settings) -> OpenEngine:
    """Opens a server's engines: on a GPU if ADDNORM_PROVIDER is cuda, or auto and there is one."""
    has_gpu = settings.provider == "auto" and THE_GPU.runs(pooling_graph("first"))
    return open_on_gpu if has_gpu or settings.provider == "cuda" else open_engine
