"""Engines on a GPU. The CPU takes its place: the same code, the same graphs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from addnorm.export import export_bundle
from addnorm.export.certificate import tolerances
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import CUDA, Gpu
from addnorm.service.engine.cuda.gpu_engine import GpuEngine, GpuRows, engines_for, open_on_gpu
from addnorm.service.engine.device.placement import CPU
from addnorm.service.engine.engine import Engine, OpenEngine
from addnorm.service.engine.heads import pooled
from addnorm.service.engine.manifest import Limits, Pooling, RowKind
from addnorm.service.engine.model import Model, measure_rates
from addnorm.service.engine.outputs.values import Dense
from addnorm.service.engine.own_engine import open_engine
from addnorm.service.engine.registry import Models
from addnorm.service.errors import InvalidInput, NotFinite, StartupError
from addnorm.service.loading.loader import load
from addnorm.service.server.wiring import Service, build, num_workers
from addnorm.service.settings import Settings
from benchmarks.gpu.rehearsal import RehearsedEngine, rehearse
from tests.conftest import OWN, ExportPreset, client_of
from tests.support.people.unrecognized import Several

LENGTHS = (5, 1, 17, 3)
POOLINGS = get_args(Pooling)


@pytest.fixture(scope="module")
def bundle(export_preset: ExportPreset) -> Bundle:
    return bundles.read(export_preset("gpt") / "1")


@pytest.fixture(scope="module")
def as_written(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A graph as its authors wrote it, with a tensor of tokens and one of sequences."""
    return export_bundle(
        Several(), tmp_path_factory.mktemp("own"), "own", outputs=["rows", "first"]
    )


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


@pytest.mark.parametrize(("kind", "dtype"), [("activations", np.float32), ("halves", np.float16)])
def test_activations_alone_come_to_the_host_in_their_dtype(
    kind: RowKind, dtype: type, engine: Engine, on_gpu: GpuEngine
) -> None:
    """Parts without numbers are not copied."""
    batch = drawn()
    rows, expected = on_gpu.compute(batch).on_host(kind), engine.run(batch).activations
    assert rows.activations.dtype == dtype
    assert rows.activations.tobytes() == expected.astype(dtype).tobytes()
    assert rows.norm_mean.shape == rows.norm_rstd.shape == (batch.num_tokens, 0)


def test_numbers_beyond_float16_are_rejected_by_name(on_gpu: GpuEngine) -> None:
    values = np.full((1, 2, 4), 7e4, np.float32)
    rows = on_gpu.rows(drawn((2,)), [ort.OrtValue.ortvalue_from_numpy(values)] * 3)
    assert rows.not_finite() is None
    with pytest.raises(InvalidInput, match="activations has the value inf, the limit of float16"):
        Dense(rows.on_host("halves").activations).halved("activations")


class NotingEngine(RehearsedEngine):
    def __init__(self, bundle: Bundle, precision: str, num_threads: int = 1) -> None:
        super().__init__(bundle, precision, num_threads)
        self.widths, self.asked, self.copied = list[int](), list[Pooling](), list[RowKind]()

    def _copy(self, batch: Batch, parts: Any, kind: RowKind) -> Rows:
        self.copied.append(kind)
        return super()._copy(batch, parts, kind)

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
def clients(
    bundle: Bundle, as_written: Bundle, task_bundles: Path, multi_vector_bundles: Path
) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of a server whose rows lie on the host, and of one whose rows lie on a GPU."""
    paths = [task_bundles / "classifier", task_bundles / "tagger", multi_vector_bundles / "colbert"]
    served = [bundle, as_written, *(bundles.read(path / "1") for path in paths)]
    host, gpu = (service_of(kind, *served) for kind in (open_engine, rehearse))
    with client_of(host) as first, client_of(gpu) as second:
        yield first, second


def service_of(open_engine: OpenEngine, *served: Bundle, cache_bytes: int = 0) -> Service:
    models = [Model(one, token_budget=256, open_engine=open_engine) for one in served]
    return build(Models(models), Settings(**{**OWN, "cache_bytes": cache_bytes}))


GRID = {
    "input_ids": [[1, 3, 4, 0], [5, 2, 0, 0], [0, 0, 0, 0]],
    "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]],
}
LONG = "the same text , padding costs nothing . " * 20


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("infer", {"model": "gpt", **GRID, "outputs": ["pooled"]}),
        ("infer", {"model": "gpt", **GRID, "outputs": ["activations", "norm_stats"]}),
        ("infer", {"model": "gpt", **GRID, "outputs": ["logits"]}),
        ("infer", {"model": "gpt", "input_ids": [[1, 3, 4]], "spans": [[[0, 2]]],
                   "outputs": ["pooled"]}),
        ("infer", {"model": "own", **GRID}),
        ("classify", {"model": "classifier", "texts": [LONG, "a"], "windows": {"overlap": 8}}),
        ("tag", {"model": "tagger", "texts": [LONG, "a"], "windows": {"overlap": 8}}),
        ("infer", {"model": "colbert", "texts": ["the text", "a"], "input_type": "document",
                   "outputs": ["token_vectors"]}),
        ("rerank", {"model": "colbert", "query": "the text", "documents": ["a text", "nothing"]}),
    ],
)  # fmt: skip
def test_a_server_answers_from_a_gpu(
    path: str, body: dict[str, Any], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    on_host, on_gpu = (client.post(f"/v1/{path}", json=body) for client in clients)
    assert on_host.status_code == 200, on_host.text
    assert_close(on_gpu.json(), on_host.json())


def test_an_answer_copies_what_it_needs(
    bundle: Bundle, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    """The same bits as on the host, also beside a sequence of which the cache holds more."""
    service = service_of(NotingEngine, bundle, cache_bytes=2**20)
    (model,) = service.models.all()
    copied = cast(NotingEngine, model.engine(None)).copied
    with client_of(service) as client:
        for token, (options, kinds) in enumerate([
            ({"outputs": ["activations"]}, ["activations"]),
            ({"outputs": ["activations"], "dtype": "float16"}, ["halves"]),
            ({"outputs": ["activations", "pooled"], "dtype": "float16"}, ["every"]),
            ({"outputs": ["activations", "norm_stats"]}, ["every"]),
            ({"outputs": ["pooled"]}, []),
        ]):  # fmt: skip
            body = {"model": "gpt", "input_ids": [[token, 3, 4], [5, token]], **options}
            expected = clients[0].post("/v1/infer", json=body).json()
            every = {**body, "input_ids": [[token, 3, 4]], "outputs": ["norm_stats"]}
            assert client.post("/v1/infer", json=every).status_code == 200
            copied.clear()
            assert_close(client.post("/v1/infer", json=body).json(), expected)
            assert copied == kinds


def assert_close(value: Any, expected: Any) -> None:
    """The same JSON, apart from rounding."""
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key in expected.keys() - {"id"}:
            assert_close(value[key], expected[key])
    elif isinstance(expected, list):
        assert len(value) == len(expected)
        for pair in zip(value, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    else:
        assert value == expected


def test_a_graph_as_its_authors_wrote_it_is_placed_whole_or_refused(as_written: Bundle) -> None:
    """The message names it, and says what to do."""

    def placed(operator: str, provider: str) -> SimpleNamespace:
        node = SimpleNamespace(domain="", op_type=operator, name="")
        return SimpleNamespace(ep_name=provider, get_nodes=lambda: [node])

    session = SimpleNamespace(
        get_providers=lambda: [CUDA, CPU],
        get_provider_graph_assignment_info=lambda: [placed("Gemm", CUDA), placed("TopK", CPU)],
    )
    gpu = Gpu(new_session=lambda *_, **__: session, providers=lambda: [CUDA, CPU])
    words = (
        r"own/1/model\.onnx: .* no GPU kernels for 1 x TopK, .*: this graph is its authors' own:"
        r" export the bundle as NAME@fp32 .*, or set ADDNORM_PROVIDER=cpu$"
    )
    with pytest.raises(StartupError, match=words):
        open_on_gpu(as_written, "fp32", gpu=gpu)


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
def test_a_server_takes_a_gpu_as_its_settings_say(bundle: Bundle, as_written: Bundle) -> None:
    """Without CUDA: cuda is refused where a graph is opened, auto takes the CPU."""
    assert engines_for(Settings()) is open_engine
    assert engines_for(Settings(provider="auto")) is open_engine
    for graph in (bundle, as_written):
        with pytest.raises(StartupError, match="cuda is requested, but this onnxruntime has no"):
            load(graph, Settings(provider="cuda"))


@pytest.mark.cuda
@pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="no onnxruntime-gpu")
def test_cuda_gives_nearly_the_same(notebook_in_fp16: Bundle) -> None:
    """fp16 on CUDA is as near to fp32 on the CPU as the certificate allows fp16 to be."""
    batch = selfcheck.sequences(notebook_in_fp16.manifest.limits, [1, 2, 3, 5])
    expected = Engine(notebook_in_fp16, "fp32").run(batch)
    got = GpuEngine(notebook_in_fp16, "fp16").run(batch)
    compared = tolerances.vectors("activations", got.activations, expected.activations, "fp16")
    assert [result for result in compared if not result[1] <= result[2]] == []
