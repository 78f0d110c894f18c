"""Engines on a GPU. The CPU takes its place: the same code, the same graphs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from addnorm.export.certificate import tolerances
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Floats, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import CUDA
from addnorm.service.engine.cuda.gpu_engine import GpuEngine, GpuRows, engines_for
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.heads import pooled
from addnorm.service.engine.manifest import Limits, Pooling
from addnorm.service.engine.model import Model, measure_rates
from addnorm.service.engine.registry import Models
from addnorm.service.errors import NotFinite, StartupError
from addnorm.service.loading.loader import load, load_all
from addnorm.service.server.wiring import build, num_workers
from addnorm.service.settings import Settings
from benchmarks.gpu.rehearsal import RehearsedEngine
from tests.conftest import OWN, ExportPreset, serving
from tests.support import web

LENGTHS = (5, 1, 17, 3)
POOLINGS = get_args(Pooling)


@pytest.fixture(scope="module")
def bundle(export_preset: ExportPreset) -> Bundle:
    return bundles.read(export_preset("gpt") / "1")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, "fp32")


@pytest.fixture(scope="module")
def on_gpu(bundle: Bundle) -> GpuEngine:
    return RehearsedEngine(bundle, "fp32")


def drawn(lengths: tuple[int, ...] = LENGTHS) -> Batch:
    draws = np.random.default_rng(0)
    return Batch.of([draws.integers(0, 30, length) for length in lengths])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_made_on_the_gpu_are_those_made_on_the_host(
    pooling: Pooling, engine: Engine, on_gpu: GpuEngine
) -> None:
    batch = drawn()
    rows = on_gpu.compute(batch)
    assert isinstance(rows, GpuRows)
    expected = pooled(engine.run(batch), batch.offsets[:-1], batch.offsets[1:], pooling)
    vectors = pooled(rows, batch.offsets[:-1], batch.offsets[1:], pooling)
    if pooling in ("first", "last", "max"):
        assert vectors.tobytes() == expected.tobytes()
    np.testing.assert_allclose(vectors, expected, rtol=1e-6, atol=1e-6)
    spans = [rows.span(start, end).pool(pooling) for start, end in pairwise(batch.offsets)]
    assert np.concatenate(spans).tobytes() == vectors.tobytes()


def test_rows_come_to_the_host_whole(engine: Engine, on_gpu: GpuEngine) -> None:
    batch = drawn()
    rows, expected = on_gpu.compute(batch), engine.run(batch)
    assert selfcheck.same_bits(rows.on_host(), expected)
    start, end = batch.offsets[1:3].tolist()
    span = rows.span(start, end)
    assert span.num_tokens == end - start
    assert selfcheck.same_bits(span.on_host(), expected.span(start, end))


class NotingEngine(RehearsedEngine):
    def __init__(self, bundle: Bundle, precision: str) -> None:
        super().__init__(bundle, precision)
        self.widths, self.asked = list[int](), list[Pooling]()

    def rows(self, batch: Batch, parts: Any) -> GpuRows:
        self.widths.append(parts[0].shape()[1])
        return super().rows(batch, parts)

    def pool(self, batch: Batch, parts: Any, pooling: Pooling) -> Any:
        self.asked.append(pooling)
        return super().pool(batch, parts, pooling)


@pytest.mark.parametrize(
    ("lengths", "width"), [((3, 1), 8), ((8,), 8), ((9, 2), 16), ((61,), 64), ((64,), 64)]
)
def test_the_grid_is_as_wide_as_attention_wants(
    lengths: tuple[int, ...], width: int, bundle: Bundle
) -> None:
    """And no wider than the model has positions."""
    for max_positions, wide in ((bundle.manifest.limits.max_positions, width), (max(lengths),) * 2):
        engine = NotingEngine(with_positions(bundle, max_positions), "fp32")
        engine.compute(drawn(lengths))
        assert engine.widths == [wide]


def with_positions(bundle: Bundle, max_positions: int) -> Bundle:
    limits = bundle.manifest.limits.model_copy(update={"max_positions": max_positions})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))


def test_each_pooling_runs_once(bundle: Bundle) -> None:
    engine, batch = NotingEngine(bundle, "fp32"), drawn()
    rows, usual = engine.compute(batch), engine.usual_pooling
    assert rows.not_finite() is None
    for start, end in pairwise(batch.offsets):
        rows.span(start, end).pool(usual)
        rows.span(start, end).pool("max")
    assert engine.asked == [usual, "max"]


@pytest.mark.parametrize("part", Rows._fields)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(part: str, value: float, on_gpu: GpuEngine) -> None:
    batch = drawn()
    shape = len(batch), max(LENGTHS)
    grid = {
        name: np.full((*shape, width), 3e38, np.float32)
        for name, width in zip(Rows._fields, (4, 2, 2), strict=True)
    }
    for values in grid.values():
        values[batch.grid().attention_mask == 0] = 0
    grid[part][2, 16, 1] = value
    held = [ort.OrtValue.ortvalue_from_numpy(values) for values in grid.values()]
    rows = on_gpu.rows(batch, held)
    assert rows.not_finite() == part
    not_finite = [rows.span(start, end).not_finite() for start, end in pairwise(batch.offsets)]
    assert not_finite == [None, None, part, None]


def test_a_vector_that_is_not_finite_names_its_sequence(on_gpu: GpuEngine) -> None:
    batch = drawn((2, 2))
    values = np.zeros((2, 2, 4), np.float32)
    values[1] = 3e38  # their sum is beyond float32
    held = [ort.OrtValue.ortvalue_from_numpy(values)] * 3
    rows = on_gpu.rows(batch, held)
    assert rows.not_finite() is None
    with pytest.raises(NotFinite) as raised:
        pooled(rows, batch.offsets[:-1], batch.offsets[1:], "mean_sqrt", [7, 9])
    assert raised.value.sequence == 9


@pytest.fixture(scope="module")
def clients(small: Path, bundle: Bundle) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of a server whose rows lie on the host, and of one whose rows lie on a GPU."""
    settings = Settings(**OWN)
    model = load(bundle, settings, engines=lambda _: RehearsedEngine)
    with (
        serving(build(load_all(small, settings), settings)) as host,
        serving(build(Models([model]), settings)) as gpu,
        web.client(base_url=host) as first,
        web.client(base_url=gpu) as second,
    ):
        yield first, second


@pytest.mark.parametrize("outputs", [["pooled"], ["activations", "norm_stats"], ["logits"]])
def test_a_server_answers_from_a_gpu(
    outputs: list[str], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    body = {
        "model": "gpt",
        "input_ids": [[1, 3, 4, 0], [5, 2, 0, 0], [0, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]],
        "outputs": outputs,
    }
    on_host, on_gpu = (client.post("/v1/infer", json=body).json() for client in clients)
    for output in outputs:
        for one, other in zip(arrays(on_host[output]), arrays(on_gpu[output]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def arrays(value: Any) -> list[Floats]:
    return [np.array(part) for part in (value.values() if isinstance(value, dict) else [value])]


@pytest.mark.parametrize(("wanted", "worker_threads", "num"), [(99, 0, 99), (99, 5, 5), (0, 7, 7)])
def test_an_engine_may_want_a_number_of_worker_threads(
    wanted: int, worker_threads: int, num: int
) -> None:
    """A GPU wants two, however many cores there are."""
    assert GpuEngine.num_workers == 2
    engine = SimpleNamespace(num_workers=wanted)
    models: Any = SimpleNamespace(all=lambda: [SimpleNamespace(engines={"fp16": engine})])
    assert num_workers(models, Settings(worker_threads=worker_threads)) == num


def test_a_target_on_a_gpu_is_not_shared_out_and_promises_no_bits(bundle: Bundle) -> None:
    on_cpu, on_gpu = (
        Model(bundle, open_engine=kind).target("fp32") for kind in (Engine, RehearsedEngine)
    )
    assert on_cpu.is_shared_out
    assert on_cpu.exact
    assert not on_gpu.is_shared_out
    assert not on_gpu.exact
    assert on_gpu.run_on_all_cores is None
    assert (on_cpu.token_budget, on_gpu.token_budget) == (256, 2048)


def test_warm_up_ends_where_the_memory_of_a_gpu_does(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    """And no engine is served that runs nothing."""

    class Full(RehearsedEngine):
        most = 5000

        def compute(self, batch: Batch) -> Any:
            if batch.num_tokens > self.most:
                raise RuntimeError("bfc_arena.cc: Failed to allocate memory")
            return SimpleNamespace(not_finite=lambda: None)

    limits, engine = Limits(max_positions=512, vocab_size=9), Full(bundle, "fp32")
    assert [*measure_rates(engine, limits, 60.0)] == [1024, 2048, 4096]
    assert "8190 tokens at once do not run here: bfc_arena.cc: Failed" in caplog.text
    engine.most = 1000
    with pytest.raises(RuntimeError, match="Failed to allocate"):
        measure_rates(engine, limits, 60.0)


def test_the_fingerprint_names_the_gpu(bundle: Bundle, engine: Engine, on_gpu: GpuEngine) -> None:
    assert engine.fingerprint.provider == "cpu"
    assert on_gpu.fingerprint.provider == "cuda: unknown GPU, no TF32"


@pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="there is CUDA")
def test_a_server_takes_a_gpu_as_its_settings_say(bundle: Bundle) -> None:
    """Without CUDA: cuda is refused where a graph is opened, auto takes the CPU."""
    assert engines_for(Settings()) is Engine
    assert engines_for(Settings(provider="auto")) is Engine
    with pytest.raises(StartupError, match="cuda is requested, but this onnxruntime has no CUDA"):
        load(bundle, Settings(provider="cuda"))


@pytest.mark.cuda
@pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="no onnxruntime-gpu")
def test_cuda_gives_nearly_the_same(notebook_in_fp16: Bundle) -> None:
    """fp16 on CUDA is as near to fp32 on the CPU as the certificate allows fp16 to be."""
    batch = selfcheck.sequences(notebook_in_fp16.manifest.limits, [1, 2, 3, 5])
    expected = Engine(notebook_in_fp16, "fp32").run(batch)
    got = GpuEngine(notebook_in_fp16, "fp16").run(batch)
    compared = tolerances.vectors("activations", got.activations, expected.activations, "fp16")
    assert [result for result in compared if not result[1] <= result[2]] == []
