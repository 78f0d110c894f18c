"""What onnxruntime is told of a GPU, and what it says back. No GPU is needed."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from addnorm.service.errors import StartupError
from addnorm.service.runtime.cuda.gpu import CUDA, Gpu
from addnorm.service.runtime.device.placement import CPU

GRAPH = Path("any.onnx")


def opening(*providers: str, **nodes: str) -> Callable[..., Any]:
    """An onnxruntime whose sessions have these providers, and a node on each of some."""
    parts = [
        SimpleNamespace(
            ep_name=name,
            get_nodes=lambda made=made: [SimpleNamespace(domain="", op_type=made, name="")],
        )
        for name, made in nodes.items()
    ]
    session = SimpleNamespace(
        get_providers=lambda: providers, get_provider_graph_assignment_info=lambda: parts
    )
    return lambda *_, **__: session


def with_gpu(opened: Callable[..., Any], **options: Any) -> Gpu:
    """onnxruntime has CUDA, and opens this."""
    return Gpu(opened=opened, providers=lambda: [CUDA, CPU], **options)


ALL_ON_GPU = opening(CUDA, CPU, **{CUDA: "Gemm"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, {"use_tf32": "0"}),
        ({"tf32": True}, {"use_tf32": "1"}),
        ({"memory_bytes": 2**30}, {"use_tf32": "0", "gpu_mem_limit": "1073741824"}),
    ],
)
def test_sessions_get_the_settings(options: dict[str, Any], told: dict[str, str]) -> None:
    asked = list[Any]()

    def opened(graph: Path, _: ort.SessionOptions, providers: list[Any]) -> Any:
        asked.extend(providers)
        return ALL_ON_GPU()

    with_gpu(opened, **options).open(GRAPH)
    (name, given), cpu = asked
    assert (name, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert given == {"arena_extend_strategy": "kSameAsRequested", "sdpa_kernel": "3", **told}


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (Gpu(opened=ALL_ON_GPU, providers=lambda: [CPU]), "this onnxruntime has no CUDA"),
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
        (Gpu(opened=ALL_ON_GPU, providers=lambda: [CPU]), False),
        (with_gpu(opening(CPU)), False),
        (with_gpu(ALL_ON_GPU), True),
    ],
)
def test_whether_there_is_a_gpu_is_seen_by_opening_a_graph(gpu: Gpu, runs: bool) -> None:
    assert gpu.runs(GRAPH) is runs


@pytest.mark.parametrize(("memory_bytes", "refused"), [(0, False), (99, True), (100, False)])
def test_a_limit_below_the_weights_is_refused(
    memory_bytes: int, refused: bool, tmp_path: Path
) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(bytes(60))
    graph.with_name("model.onnx.data").write_bytes(bytes(40))
    expected = (
        pytest.raises(StartupError, match=r"_BYTES is 99, but .* take 100: set more")
        if refused
        else nullcontext()
    )
    with expected:
        with_gpu(ALL_ON_GPU, memory_bytes=memory_bytes).open(graph)


def test_the_gpu_and_tf32_are_part_of_what_decides_bits(tmp_path: Path) -> None:
    assert Gpu().kind(tmp_path / "none") == "unknown GPU, no TF32"
    information = tmp_path / "0000:01:00.0" / "information"
    information.parent.mkdir()
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\n")
    assert Gpu(tf32=True).kind(tmp_path) == "NVIDIA H100 80GB HBM3, TF32"
