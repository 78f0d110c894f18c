"""The CPU in the place of a GPU: the code for a GPU runs, and nothing of a GPU is shown."""

from dataclasses import dataclass
from pathlib import Path

from onnxruntime import InferenceSession

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import CUDA, Gpu
from addnorm.service.engine.cuda.gpu_engine import GpuEngine
from addnorm.service.engine.device.placement import Node
from addnorm.service.engine.session import open_session


@dataclass(frozen=True)
class CpuAsGpu(Gpu):
    memory: str = "cpu"

    def open(self, graph: Path) -> InferenceSession:
        return open_session(graph)


class RehearsedEngine(GpuEngine):
    """Runs on the CPU, and says of its nodes that they run on a GPU."""

    def __init__(self, bundle: Bundle, precision: str, num_threads: int = 1) -> None:
        super().__init__(bundle, precision, num_threads, CpuAsGpu())

    def nodes(self) -> dict[str, list[Node]]:
        return {
            graph: [node._replace(provider=CUDA) for node in nodes]
            for graph, nodes in super().nodes().items()
        }
