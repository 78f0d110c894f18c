"""Rows that stay on a device. The device here is the CPU: the same code, the same graph."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import httpx
import numpy as np
import onnxruntime as ort
import pytest

from addnorm.export.certificate.graph import structure
from addnorm.export.graphs.model_file import load
from addnorm.export.graphs.pooling_graphs import export_pooling
from addnorm.service.errors import NotFinite
from addnorm.service.inference.heads import pooled
from addnorm.service.loading.loader import load_all
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.batch import Batch, Floats, Ints, Rows
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.device.device_rows import Device, DeviceRows, _Grid, pooling_graph
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Pooling
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, ExportPreset, serving
from tests.support import web

LENGTHS = (5, 1, 17, 3)
POOLINGS = get_args(Pooling)


@pytest.fixture(scope="module")
def bundle(export_preset: ExportPreset) -> Bundle:
    return bundles.read(export_preset("gpt") / "1")


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return Engine(bundle, "fp32", "cpu")


@pytest.fixture(scope="module")
def on_device(bundle: Bundle) -> Engine:
    engine = Engine(bundle, "fp32", "cpu")
    engine.keep_rows_on("cpu")
    return engine


def drawn(lengths: tuple[int, ...] = LENGTHS) -> Batch:
    draws = np.random.default_rng(0)
    return Batch.of([draws.integers(0, 30, length) for length in lengths])


@pytest.mark.parametrize("pooling", ["max", "weighted_mean"])  # each export takes a second
def test_the_graphs_are_what_the_exporter_writes(pooling: Pooling) -> None:
    assert not list(structure.differences(load(pooling_graph(pooling)), export_pooling(pooling)))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_made_on_the_device_are_those_made_on_the_host(
    pooling: Pooling, engine: Engine, on_device: Engine
) -> None:
    batch = drawn()
    rows = on_device.compute(batch)
    assert isinstance(rows, DeviceRows)
    expected = pooled(engine.run(batch), batch.offsets, pooling)
    made = pooled(rows, batch.offsets, pooling)
    if pooling in ("first", "last", "max"):
        assert made.tobytes() == expected.tobytes()
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)
    spans = [rows.span(start, end).pooled(pooling) for start, end in pairwise(batch.offsets)]
    assert np.concatenate(spans).tobytes() == made.tobytes()


def test_rows_come_to_the_host_whole(engine: Engine, on_device: Engine) -> None:
    batch = drawn()
    rows, expected = on_device.compute(batch), engine.run(batch)
    assert selfcheck.same_bits(rows.on_host(), expected)
    start, end = batch.offsets[1:3].tolist()
    span = rows.span(start, end)
    assert span.num_tokens == end - start
    assert selfcheck.same_bits(span.on_host(), expected.span(start, end))


@pytest.mark.parametrize(
    ("lengths", "width"), [((3, 1), 8), ((8,), 8), ((9, 2), 16), ((61,), 64), ((64,), 64)]
)
def test_the_grid_is_as_wide_as_attention_wants(
    lengths: tuple[int, ...], width: int, bundle: Bundle
) -> None:
    """And no wider than the model has positions."""
    grids = list[Any]()

    class Noting(Device):
        def run(self, batch: Batch, inputs: Mapping[str, Ints]) -> DeviceRows:
            grids.append(inputs["input_ids"])
            return super().run(batch, inputs)

    for max_positions in (bundle.manifest.limits.max_positions, max(lengths)):
        noting = Engine(with_positions(bundle, max_positions), "fp32", "cpu")
        noting.keep_rows_on("cpu", kind=Noting)
        noting.compute(drawn(lengths))
    assert [grid.shape[1] for grid in grids] == [width, max(lengths)]


def with_positions(bundle: Bundle, max_positions: int) -> Bundle:
    limits = bundle.manifest.limits.model_copy(update={"max_positions": max_positions})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))


def test_each_pooling_runs_once(bundle: Bundle) -> None:
    asked = list[Pooling]()

    class Noting(Device):
        def pooled(self, rows: Any, lengths: Ints, pooling: Pooling) -> Any:
            asked.append(pooling)
            return super().pooled(rows, lengths, pooling)

    batch, noting = drawn(), Engine(bundle, "fp32", "cpu")
    noting.keep_rows_on("cpu", kind=Noting)
    rows = noting.compute(batch)
    assert isinstance(rows, DeviceRows)
    assert rows.not_finite() is None
    for start, end in pairwise(batch.offsets):
        rows.span(start, end).pooled("mean")
        rows.span(start, end).pooled("max")
    assert asked == ["mean", "max"]


@pytest.mark.parametrize("part", Rows._fields)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(part: str, value: float, on_device: Engine) -> None:
    assert on_device._device
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
    rows = DeviceRows(_Grid(on_device._device, held, batch.lengths), batch.offsets, 0, 26)
    assert rows.not_finite() == part
    found = [rows.span(start, end).not_finite() for start, end in pairwise(batch.offsets)]
    assert found == [None, None, part, None]


def test_a_vector_that_is_not_finite_names_its_sequence(on_device: Engine) -> None:
    assert on_device._device
    batch = drawn((2, 2))
    values = np.zeros((2, 2, 4), np.float32)
    values[1] = 3e38  # their sum is beyond float32
    held = [ort.OrtValue.ortvalue_from_numpy(values)] * 3
    rows = DeviceRows(_Grid(on_device._device, held, batch.lengths), batch.offsets, 0, 4)
    assert rows.not_finite() is None
    with pytest.raises(NotFinite) as raised:
        pooled(rows, batch.offsets, "mean_sqrt", [7, 9])
    assert raised.value.sequence == 9


@pytest.fixture(scope="module")
def clients(small: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of a server whose rows lie on the host, and of one whose rows lie on a device."""
    settings = Settings(**OWN)
    services = [build(load_all(small, settings), settings) for _ in range(2)]
    for model in services[1].models.all():
        for one in model.engines.values():
            one.keep_rows_on("cpu")
    with (
        serving(services[0]) as host,
        serving(services[1]) as device,
        web.client(base_url=host) as first,
        web.client(base_url=device) as second,
    ):
        yield first, second


@pytest.mark.parametrize("outputs", [["pooled"], ["activations", "norm_stats"], ["logits"]])
def test_a_server_answers_from_a_device(
    outputs: list[str], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    body = {
        "model": "gpt",
        "input_ids": [[1, 3, 4, 0], [5, 2, 0, 0], [0, 0, 0, 0]],
        "attention_mask": [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]],
        "outputs": outputs,
    }
    on_host, on_device = (client.post("/v1/infer", json=body).json() for client in clients)
    for output in outputs:
        for one, other in zip(arrays(on_host[output]), arrays(on_device[output]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def arrays(value: Any) -> list[Floats]:
    return [np.array(part) for part in (value.values() if isinstance(value, dict) else [value])]
