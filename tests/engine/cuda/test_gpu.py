"""What onnxruntime is told of a GPU, and what it says back. No GPU is needed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from addnorm.service.engine.cuda.gpu import CUDA, Gpu, gpu_name
from addnorm.service.engine.device.placement import CPU
from addnorm.service.errors import StartupError

GRAPH = Path("any.onnx")


def opening(*providers: str, **nodes: str) -> Callable[..., Any]:
    """An onnxruntime whose sessions have these providers, and a node on each of some."""
    parts = [
        SimpleNamespace(
            ep_name=name,
            get_nodes=lambda provider=provider: [
                SimpleNamespace(domain="", op_type=provider, name="")
            ],
        )
        for name, provider in nodes.items()
    ]
    session = SimpleNamespace(
        get_providers=lambda: providers, get_provider_graph_assignment_info=lambda: parts
    )
    return lambda *_, **__: session


def with_gpu(opened: Callable[..., Any]) -> Gpu:
    """onnxruntime has CUDA, and opens this."""
    return Gpu(new_session=opened, providers=lambda: [CUDA, CPU])


ALL_ON_GPU = opening(CUDA, CPU, **{CUDA: "Gemm"})


def test_sessions_get_the_options() -> None:
    calls = list[Any]()

    def opened(graph: Path, _: ort.SessionOptions, providers: list[Any]) -> Any:
        calls.extend(providers)
        return ALL_ON_GPU()

    with_gpu(opened).open(GRAPH)
    (name, given), cpu = calls
    assert (name, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert given == {
        "arena_extend_strategy": "kSameAsRequested",
        "sdpa_kernel": "3",
        "use_tf32": "0",
    }


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (Gpu(new_session=ALL_ON_GPU, providers=lambda: [CPU]), "this onnxruntime has no CUDA"),
        (with_gpu(opening(CPU, **{CPU: "Gemm"})), "fell back to the CPU"),
        (with_gpu(opening(CUDA, CPU, **{CUDA: "Gemm", CPU: "Attention"})), "1 x Attention"),
    ],
)
def test_what_would_run_on_the_cpu_is_refused(gpu: Gpu, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        gpu.open(GRAPH)


@pytest.mark.parametrize(
    ("gpu", "runs"),
    [
        (Gpu(new_session=ALL_ON_GPU, providers=lambda: [CPU]), False),
        (with_gpu(opening(CPU)), False),
        (with_gpu(ALL_ON_GPU), True),
    ],
)
def test_whether_there_is_a_gpu_is_seen_by_opening_a_graph(gpu: Gpu, runs: bool) -> None:
    assert gpu.runs(GRAPH) is runs


def test_the_gpu_is_named_as_its_driver_names_it(tmp_path: Path) -> None:
    assert gpu_name(tmp_path / "none") == "unknown GPU"
    information = tmp_path / "0000:01:00.0" / "information"
    information.parent.mkdir()
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\n")
    assert gpu_name(tmp_path) == "NVIDIA H100 80GB HBM3"
