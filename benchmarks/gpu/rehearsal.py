"""The CPU in the place of a GPU: the code for a GPU runs, and nothing of a GPU is shown."""

from dataclasses import dataclass
from pathlib import Path

from onnxruntime import InferenceSession

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import CUDA, OURS, Gpu
from addnorm.service.engine.cuda.gpu_engine import GpuEngine, OnGpu, OwnGpuEngine
from addnorm.service.engine.device.placement import Node
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.session import open_session


@dataclass(frozen=True)
class CpuAsGpu(Gpu):
    memory: str = "cpu"

    def open(self, graph: Path, remedy: str = OURS) -> InferenceSession:
        return open_session(graph)


class Rehearsed(OnGpu):
    """Runs on the CPU, and says of its nodes that they run on a GPU."""

    def __init__(self, bundle: Bundle, precision: str, num_threads: int = 1) -> None:
        super().__init__(bundle, precision, num_threads, CpuAsGpu())

    def nodes(self) -> dict[str, list[Node]]:
        return {
            graph: [node._replace(provider=CUDA) for node in nodes]
            for graph, nodes in super().nodes().items()
        }


class RehearsedEngine(Rehearsed, GpuEngine):
    """The engine of one of our graphs."""


class RehearsedOwnEngine(Rehearsed, OwnGpuEngine):
    """The engine of a graph as its authors wrote it."""


def rehearse(bundle: Bundle, precision: str, num_threads: int = 1) -> Engine:
    """The engine of a bundle, as `open_on_gpu` chooses it."""
    kind = RehearsedOwnEngine if bundle.manifest.as_it_is else RehearsedEngine
    return kind(bundle, precision, num_threads)
