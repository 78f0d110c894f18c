"""Rows that stay on the GPU that computed them: the `DeviceRows` of batch.py. Vectors are pooled
there, and only what is asked for comes back."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from addnorm.service.runtime.batch import Batch, Floats, Ints, Rows
from addnorm.service.runtime.manifest import Pooling

# of a graph that pools: vectors `[num_sequences, d_model]`, and which sequences are finite,
# `[num_sequences, 3]`, for each part of Rows
POOLING_OUTPUTS = ("vectors", "finite")


def pooling_graph(pooling: Pooling) -> Path:
    """Written by export/cuda/pooling_graphs.py."""
    return Path(__file__).parent / "pooling" / f"{pooling}.onnx"


class GpuBody:
    """A body whose outputs stay on the GPU, and graphs that pool them there. Thread-safe."""

    def __init__(
        self,
        body: ort.InferenceSession,
        open_graph: Callable[[Path], ort.InferenceSession],
        usual: Pooling,
        memory: str,
    ) -> None:
        """open_graph: on the GPU; usual: the pooling that most requests ask for; memory: where rows
        stay, as onnxruntime calls it."""
        self.usual = usual
        self._body, self._open_graph, self._memory = body, open_graph, memory
        self._pooling: dict[Pooling, ort.InferenceSession] = {}
        self._session(usual)

    def run(self, batch: Batch, inputs: Mapping[str, Ints]) -> "GpuRows":
        """inputs: the grid of the batch, each `[num_sequences, seq]`."""
        binding = self._body.io_binding()
        for name, cells in inputs.items():
            binding.bind_cpu_input(name, cells)
        for name in Rows._fields:
            binding.bind_output(name, self._memory)
        self._body.run_with_iobinding(binding)
        grid = _Grid(self, binding.get_outputs(), batch.lengths)
        return GpuRows(grid, batch.offsets, 0, batch.num_tokens)

    def pooled(
        self, rows: Sequence[ort.OrtValue], lengths: Ints, pooling: Pooling
    ) -> list[NDArray[Any]]:
        """rows: on the GPU, as a run made them -> POOLING_OUTPUTS, on the host."""
        session = self._session(pooling)
        binding = session.io_binding()
        for name, part in zip(Rows._fields, rows, strict=True):
            binding.bind_ortvalue_input(name, part)
        binding.bind_cpu_input("lengths", lengths)
        for name in POOLING_OUTPUTS:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]

    def _session(self, pooling: Pooling) -> ort.InferenceSession:
        """Opened at first use. If two threads do it at once, one of them goes unused."""
        if pooling not in self._pooling:
            self._pooling[pooling] = self._open_graph(pooling_graph(pooling))
        return self._pooling[pooling]


class _Grid:
    """What one run made, and what was asked of it so far. Of one thread."""

    def __init__(self, body: GpuBody, rows: Sequence[ort.OrtValue], lengths: Ints) -> None:
        """rows: the parts of Rows, each `[num_sequences, seq, ...]`."""
        self._body, self._rows, self._lengths = body, rows, lengths
        self._vectors: dict[Pooling, Floats] = {}
        self._finite: NDArray[np.bool_] | None = None
        self._on_host: Rows | None = None

    @property
    def finite(self) -> NDArray[np.bool_]:
        """`[num_sequences, 3]`"""
        if self._finite is None:
            self.vectors(self._body.usual)
        assert self._finite is not None
        return self._finite

    def vectors(self, pooling: Pooling) -> Floats:
        """`[num_sequences, d_model]`"""
        if pooling not in self._vectors:
            made = self._body.pooled(self._rows, self._lengths, pooling)
            self._vectors[pooling], self._finite = made
        return self._vectors[pooling]

    def on_host(self) -> Rows:
        """A row for each token, pads dropped."""
        if self._on_host is None:
            grids = [part.numpy() for part in self._rows]
            real = np.arange(grids[0].shape[1]) < self._lengths[:, None]
            self._on_host = Rows(*(grid[real] for grid in grids))
        return self._on_host


class GpuRows:
    """A row per token of some sequences, still on the GPU. Of one thread."""

    def __init__(self, grid: _Grid, offsets: Ints, start: int, end: int) -> None:
        """offsets: of all sequences of the grid; start, end: tokens, where sequences do."""
        self._grid, self._offsets, self._start, self._end = grid, offsets, start, end

    @property
    def num_tokens(self) -> int:
        return self._end - self._start

    def span(self, start: int, end: int) -> "GpuRows":
        """Rows start to end, which are those of whole sequences."""
        return GpuRows(self._grid, self._offsets, self._start + start, self._start + end)

    def pooled(self, pooling: Pooling) -> Floats:
        """A vector for each sequence `[num_sequences, d_model]`, finite or not."""
        return self._grid.vectors(pooling)[self._sequences()]

    def not_finite(self) -> str | None:
        """The name of the first output that holds NaN or infinity."""
        for name, finite in zip(Rows._fields, self._grid.finite[self._sequences()].T, strict=True):
            if not finite.all():
                return name
        return None

    def on_host(self) -> Rows:
        """Copies the rows of the whole run, once."""
        return self._grid.on_host().span(self._start, self._end)

    def _sequences(self) -> slice:
        first, last = np.searchsorted(self._offsets, (self._start, self._end)).tolist()
        return slice(first, last)
