"""An NVIDIA GPU as onnxruntime's CUDA provider sees it: its name, and sessions that run there.

onnxruntime places each node on the first provider that has a kernel for it, without a warning.
Therefore a session is refused if a node that computes rows is on the CPU.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime as ort

from addnorm.service.engine.device.placement import CPU, count_nodes, nodes
from addnorm.service.engine.session import open_session
from addnorm.service.errors import StartupError

CUDA = "CUDAExecutionProvider"
GPUS = Path("/proc/driver/nvidia/gpus")  # a folder each, as NVIDIA's driver on Linux makes them
# bits of onnxruntime's sdpa_kernel. Its third kernel needs no bit: it takes what these cannot
FLASH, MEMORY_EFFICIENT = 1, 2
OURS = "export the bundle as NAME@fp32,fp16 (int8 is for CPUs)"  # of graphs of ours: a remedy
# Older ones leave out the float16 nodes that no provider has a kernel for, which run on the CPU
# (microsoft/onnxruntime#28268; 1.26 lists 149 of the 194 nodes that 1.27 lists).
LISTS_ALL = (1, 27)
# onnxruntime runs nodes on the CPU on purpose where only shapes go in: in 1.31.1 our graphs' Add,
# Cast, Concat, Div, Mul, Squeeze and Sub. The others here make positions and masks, and no row goes
# through them. (Rows are added, cast and multiplied too, by kernels that CUDA has for all types.)
SHAPES_AND_INDICES = frozenset({
    "Abs", "Add", "And", "Cast", "Concat", "Constant", "CumSum", "Div", "Equal", "Expand", "Floor",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "NonZero", "Not", "Or", "Range",
    "Shape", "Sign", "Squeeze", "Sub", "Unsqueeze",
})  # fmt: skip


@dataclass(frozen=True)
class Gpu:
    """The first GPU."""

    memory: str = "cuda"  # where rows stay, as onnxruntime calls it
    new_session: Callable[..., ort.InferenceSession] = ort.InferenceSession
    providers: Callable[[], list[str]] = ort.get_available_providers

    def require(self) -> None:
        """StartupError if this onnxruntime has no CUDA."""
        if CUDA not in self.providers():
            raise StartupError(
                "cuda is requested, but this onnxruntime has no CUDA: install onnxruntime-gpu, or"
                " set ADDNORM_PROVIDER=cpu"
            )

    def runs(self, graph: Path) -> bool:
        """Onnxruntime has CUDA, and opens this graph on a GPU."""
        return CUDA in self.providers() and CUDA in self._session(graph).get_providers()

    def open(self, graph: Path, remedy: str = OURS) -> ort.InferenceSession:
        """StartupError if the graph cannot be loaded, or if all of it, or a node that computes
        rows, would run on the CPU. remedy: other than the CPU, in words."""
        self.require()
        session = self._session(graph)
        if CUDA not in session.get_providers():
            raise StartupError(
                "cuda is requested, but onnxruntime fell back to the CPU: check the GPU and its"
                " driver, or set ADDNORM_PROVIDER=cpu"
            )
        refuse_rows_on_cpu(graph, session, remedy)
        return session

    def _session(self, graph: Path) -> ort.InferenceSession:
        """Each worker thread has CUDA streams of its own in each session, so runs of several
        threads may overlap."""
        options = {
            "use_tf32": "0",  # products of float32 would have 10 bits of mantissa
            # the default doubles the arena up to steps of 1 GiB
            "arena_extend_strategy": "kSameAsRequested",
            # without cuDNN's, which takes fp16 where all sequences have one token, and builds a
            # plan for each number of them
            "sdpa_kernel": str(FLASH | MEMORY_EFFICIENT),
        }
        return open_session(graph, providers=[(CUDA, options)], new_session=self.new_session)


def refuse_rows_on_cpu(
    graph: Path, session: ort.InferenceSession, remedy: str = OURS, version: str = ort.__version__
) -> None:
    """StartupError names the operators of a session on CUDA that compute rows and run on the CPU.
    Also for a version of onnxruntime that does not list them. remedy: as of `Gpu.open`."""
    if tuple(map(int, version.split(".")[:2])) < LISTS_ALL:
        raise StartupError(
            f"onnxruntime {version} does not report for every node whether it runs on the GPU:"
            f" install onnxruntime-gpu {'.'.join(map(str, LISTS_ALL))} or newer, or set"
            " ADDNORM_PROVIDER=cpu"
        )
    placement = count_nodes(nodes(session))
    if not placement:
        raise StartupError(
            f"onnxruntime does not report where the nodes of {graph} run: set ADDNORM_PROVIDER=cpu"
        )
    cpu_nodes = [
        f"{num} x {operator}"
        for operator, num in placement.get(CPU, {}).items()
        if operator not in SHAPES_AND_INDICES
    ]
    if cpu_nodes:
        raise StartupError(
            f"{graph}: onnxruntime has no GPU kernels for {', '.join(cpu_nodes)}, and would compute"
            f" rows on the CPU: {remedy}, or set ADDNORM_PROVIDER=cpu"
        )


@cache
def gpu_name(gpus: Path = GPUS) -> str:
    """The name of the first GPU, as its driver reports it."""
    texts = [file.read_text() for file in sorted(gpus.glob("*/information"))]
    match = re.search(r"^Model:\s*(.*\S)", "\n".join(texts), re.MULTILINE)
    return match[1] if match else "unknown GPU"
