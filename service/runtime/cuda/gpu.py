"""An NVIDIA GPU as onnxruntime's CUDA provider sees it: what opens sessions there, and its name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import onnxruntime as ort

from addnorm.service.errors import StartupError
from addnorm.service.runtime.cuda.rows_on_cpu import refuse_rows_on_cpu
from addnorm.service.runtime.session import file_bytes, open_session

CUDA = "CUDAExecutionProvider"
GPUS = Path("/proc/driver/nvidia/gpus")  # a folder each, as NVIDIA's driver on Linux makes them
# bits of onnxruntime's sdpa_kernel. Its third kernel needs no bit: it takes what these cannot
FLASH, MEMORY_EFFICIENT = 1, 2


class Runtime(NamedTuple):
    """What is asked of onnxruntime."""

    open: Callable[..., ort.InferenceSession] = ort.InferenceSession
    providers: Callable[[], list[str]] = ort.get_available_providers


ONNXRUNTIME = Runtime()


@dataclass(frozen=True)
class Gpu:
    """The first GPU."""

    tf32: bool = False  # products of float32 with 10 bits of mantissa
    memory_bytes: int = 0  # of the arena of each graph; 0: no limit
    runtime: Runtime = ONNXRUNTIME
    memory: str = "cuda"  # where rows stay, as onnxruntime calls it

    def require(self) -> None:
        """StartupError if this onnxruntime has no CUDA."""
        if CUDA not in self.runtime.providers():
            raise StartupError(
                "cuda is asked for, but this onnxruntime has no CUDA:"
                " install onnxruntime-gpu, or set ADDNORM_PROVIDER=cpu"
            )

    def runs(self, graph: Path) -> bool:
        """Whether onnxruntime has CUDA, and opens this graph on a GPU."""
        return CUDA in self.runtime.providers() and CUDA in self._opened(graph).get_providers()

    def open(self, graph: Path) -> ort.InferenceSession:
        """StartupError if the graph cannot be loaded, or would run on the CPU, all of it or what
        computes rows."""
        self.require()
        self._check_limit(graph)
        session = self._opened(graph)
        if CUDA not in session.get_providers():
            raise StartupError(
                "cuda is asked for, but onnxruntime fell back to the CPU:"
                " check the GPU and its driver, or set ADDNORM_PROVIDER=cpu"
            )
        refuse_rows_on_cpu(graph, session)
        return session

    def kind(self, gpus: Path = GPUS) -> str:
        """What decides the bits beside the graph. gpus: the driver's folder."""
        return f"{gpu_name(gpus)}, {'TF32' if self.tf32 else 'no TF32'}"

    def _opened(self, graph: Path) -> ort.InferenceSession:
        return open_session(graph, providers=[(CUDA, self._options())], opened=self.runtime.open)

    def _options(self) -> dict[str, str]:
        """The options by onnxruntime's names. Each worker thread has CUDA streams of its own in
        each session, so runs of several threads may overlap."""
        options = {
            "use_tf32": str(int(self.tf32)),
            # the default doubles the arena up to steps of 1 GiB
            "arena_extend_strategy": "kSameAsRequested",
            # without cuDNN's, which takes fp16 where all sequences have one token, and builds a
            # plan for each number of them
            "sdpa_kernel": str(FLASH | MEMORY_EFFICIENT),
        }
        if self.memory_bytes:
            options["gpu_mem_limit"] = str(self.memory_bytes)
        return options

    def _check_limit(self, graph: Path) -> None:
        """StartupError if the weights alone are more. onnxruntime would then have no limit
        (1.31.1)."""
        if 0 < self.memory_bytes < (weights := file_bytes(graph)):
            raise StartupError(
                f"ADDNORM_CUDA_MEMORY_BYTES is {self.memory_bytes}, but the weights of {graph}"
                f" alone take {weights}: set more, or 0 for no limit"
            )


@cache
def gpu_name(gpus: Path = GPUS) -> str:
    """The name of the first GPU, as its driver reports it."""
    for file in sorted(gpus.glob("*/information")):
        for line in file.read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "Model":
                return value.strip()
    return "unknown GPU"
