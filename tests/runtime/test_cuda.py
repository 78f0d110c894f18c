"""What onnxruntime is told where sessions run on a GPU. No GPU is needed."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest

from addnorm.service.errors import StartupError
from addnorm.service.models.model import Model
from addnorm.service.models.warm_up import measured_rates
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime import session
from addnorm.service.runtime.batch import Batch
from addnorm.service.runtime.device.cuda import CudaOptions
from addnorm.service.runtime.manifest import Limits
from addnorm.service.runtime.session import Runtime
from addnorm.service.server.wiring import num_workers
from addnorm.service.settings import Settings

ON_GPU: dict[str, Any] = {"provider": "cuda", "compute": None, "run_on_all_cores": None}

GEMM = SimpleNamespace(domain="", op_type="Gemm", name="")
ALL_ON_GPU = SimpleNamespace(ep_name=session.PROVIDERS["cuda"], get_nodes=lambda: [GEMM])


def with_gpu(opened: Callable[..., Any]) -> Runtime:
    """An onnxruntime that has CUDA, and opens this."""
    return Runtime(opened, lambda: list(session.PROVIDERS.values()))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (CudaOptions(), {"use_tf32": "0"}),
        (CudaOptions(tf32=True), {"use_tf32": "1"}),
        (CudaOptions(memory_bytes=2**30), {"use_tf32": "0", "gpu_mem_limit": "1073741824"}),
    ],
)
def test_sessions_get_the_settings(options: CudaOptions, told: dict[str, str]) -> None:
    asked = list[Any]()

    def opened(graph: Path, _: ort.SessionOptions, providers: list[Any]) -> SimpleNamespace:
        asked.extend(providers)
        return SimpleNamespace(
            get_providers=lambda: [name for name, _ in providers[:1]],
            get_provider_graph_assignment_info=lambda: [ALL_ON_GPU],
        )

    session.open_session(Path("any.onnx"), "cuda", cuda=options, runtime=with_gpu(opened))
    (name, given), cpu = asked
    assert (name, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert given == {"arena_extend_strategy": "kSameAsRequested", "sdpa_kernel": "3", **told}


def test_a_session_that_fell_back_to_the_cpu_is_refused() -> None:
    fell_back: Any = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    runtime = with_gpu(lambda *_, providers: fell_back)
    with pytest.raises(StartupError, match="fell back to the CPU"):
        session.open_session(Path("any.onnx"), "cuda", runtime=runtime)


@pytest.mark.parametrize(("memory_bytes", "refused"), [(0, False), (99, True), (100, False)])
def test_a_limit_below_the_weights_is_refused(
    memory_bytes: int, refused: bool, tmp_path: Path
) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(bytes(60))
    graph.with_name("model.onnx.data").write_bytes(bytes(40))
    opened: Any = SimpleNamespace(
        get_providers=lambda: [session.PROVIDERS["cuda"]],
        get_provider_graph_assignment_info=lambda: [ALL_ON_GPU],
    )
    runtime = with_gpu(lambda *_, providers: opened)
    expected = (
        pytest.raises(StartupError, match=r"_BYTES is 99, but .* take 100: set more")
        if refused
        else nullcontext()
    )
    with expected:
        options = CudaOptions(memory_bytes=memory_bytes)
        session.open_session(graph, "cuda", cuda=options, runtime=runtime)


def test_the_gpu_and_tf32_are_part_of_what_decides_bits(tmp_path: Path) -> None:
    assert CudaOptions().kind(tmp_path / "none") == "unknown GPU, no TF32"
    information = tmp_path / "0000:01:00.0" / "information"
    information.parent.mkdir()
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\n")
    assert CudaOptions(tf32=True).kind(tmp_path) == "NVIDIA H100 80GB HBM3, TF32"


@pytest.mark.parametrize(
    ("provider", "worker_threads", "num"), [("cuda", 0, 2), ("cuda", 5, 5), ("cpu", 7, 7)]
)
def test_a_gpu_has_two_worker_threads(provider: str, worker_threads: int, num: int) -> None:
    model: Any = SimpleNamespace(engines={"fp16": SimpleNamespace(provider=provider)})
    models: Any = SimpleNamespace(all=lambda: [model])
    assert num_workers(models, Settings(worker_threads=worker_threads)) == num


def test_what_waits_for_a_gpu_is_not_shared_out(notebook: Path) -> None:
    bundle = bundles.read(notebook)
    assert Model(bundle, "cpu").target("fp32").is_shared_out
    on_gpu: Any = SimpleNamespace(**ON_GPU)
    assert not Model(bundle, "cuda", open_engine=lambda *_: on_gpu).target("fp32").is_shared_out


def test_warm_up_ends_where_the_memory_of_a_gpu_does(caplog: pytest.LogCaptureFixture) -> None:
    """And no engine is served that runs nothing."""
    limits = Limits(max_positions=512, vocab_size=9)

    def rates(most: int) -> dict[int, float]:
        def compute(batch: Batch) -> SimpleNamespace:
            if batch.num_tokens > most:
                raise RuntimeError("bfc_arena.cc: Failed to allocate memory")
            return SimpleNamespace(not_finite=lambda: None)

        engine: Any = SimpleNamespace(provider="cuda", compute=compute)
        return measured_rates(engine, limits, 60.0)

    assert [*rates(5000)] == [1024, 2048, 4096]
    assert "8190 tokens at once do not run here: bfc_arena.cc: Failed" in caplog.text
    with pytest.raises(RuntimeError, match="Failed to allocate"):
        rates(1000)
