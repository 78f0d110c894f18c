"""Constants that lie beside the ONNX file, as those of a model of more than 2 GB must."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from addnorm.export import command, exporting, sources
from addnorm.export.certificate.graph import structure
from addnorm.export.graphs import all_graphs, model_file
from addnorm.export.graphs.half_precision import to_half
from addnorm.export.graphs.quantize import measure, quantize
from addnorm.model.presets import build
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Limits, Manifest
from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load
from addnorm.service.settings import Settings

GRAPH, DATA = "model.onnx", "model.onnx.data"
LIMIT = 4096  # bytes of constants in a file, in place of 1 GiB


@pytest.fixture(scope="module")
def low_limit(notebook: Path) -> Iterator[None]:
    """notebook: all tests share it, so it must not be the one that is made with this limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_file, "MAX_BYTES", LIMIT)
        yield


@pytest.fixture(scope="module")
def large(low_limit: None, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("large")
    return exporting.export(sources.preset("notebook"), place, "notebook")


@pytest.fixture
def copy(large: Bundle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large.path, tmp_path / "notebook" / "1"))


def test_constants_lie_beside_the_graph_and_the_manifest_knows_them(large: Bundle) -> None:
    sizes = {name: file.num_bytes for name, file in large.manifest.files.items()}
    assert {GRAPH, DATA, "logits.onnx"} == sizes.keys()
    assert sizes[DATA] > LIMIT
    items = onnx.load(large.path / GRAPH, load_external_data=False).graph.initializer
    inside = [len(item.raw_data) for item in items if item.data_location != TensorProto.EXTERNAL]
    assert max(inside) < model_file.MIN_BYTES


def test_they_are_served_with_the_bits_of_one_file(large: Bundle, notebook: Path) -> None:
    served = [load(bundles.read(path), Settings()) for path in (large.path, notebook)]
    batch = selfcheck.sequences(large.manifest.limits, [1, 5, 7])
    assert selfcheck.same_bits(*(model.engine(None).run(batch) for model in served))


def place(copy: Path, **changed: str) -> None:
    """Changes where the first constant that lies outside of the graph says that it lies."""
    graph = onnx.load(copy / GRAPH, load_external_data=False)
    item = next(item for item in graph.graph.initializer if item.external_data)
    for entry in item.external_data:
        entry.value = changed.pop(entry.key, entry.value)
    for key, value in changed.items():
        item.external_data.add(key=key, value=value)
    onnx.save(graph, copy / GRAPH)


def with_new_hashes(copy: Path) -> None:
    """Writes new hashes, as someone would who changed a certified bundle."""
    before = Manifest.model_validate_json((copy / bundles.MANIFEST).read_bytes())
    certificate = json.loads((copy / bundles.CERTIFICATE).read_bytes())
    bundle = bundles.write_manifest(copy, before.model_dump(exclude={"format", "files"}))
    del certificate["manifest_sha256"]
    bundles.write_certificate(bundle, certificate)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"location": "logits.onnx"}, r"lies in 'logits.onnx', 'model.onnx.data' expected"),
        ({"offset": "100000000"}, r"is not within model.onnx.data"),
        ({"length": "4"}, r"is not within model.onnx.data"),
        ({"offset": "-1"}, r"has external data .*numbers expected"),
        ({"checksum": "0"}, r"has external data .*'checksum'"),
    ],
)
def test_a_place_that_is_not_in_the_data_file_is_not_certified(
    copy: Path, changed: dict[str, str], words: str
) -> None:
    place(copy, **changed)
    with_new_hashes(copy)
    with pytest.raises(SystemExit, match=words):
        command.verify([str(copy)])


def sealed_and_loaded(copy: Path) -> None:
    with_new_hashes(copy)
    load(bundles.read(copy), Settings())


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("../outside.data", r"has no sha256 of '\.\./outside\.data', which has weights of"),
        ("{parent}/outside.data", r"has no sha256 of '/.*/outside\.data', which has weights of"),
        ("below/w.bin", r"has no sha256 of 'below/w\.bin', which has weights of model\.onnx"),
        ("link.data", r"onnxruntime cannot load .*/model\.onnx: .*data path"),
    ],
)
def test_a_server_reads_no_data_outside_of_the_folder(copy: Path, where: str, words: str) -> None:
    """Whatever the hashes say."""
    outside = copy.parent / "outside.data"
    shutil.copy(copy / DATA, outside)
    (copy / "link.data").symlink_to(outside)
    place(copy, location=where.format(parent=copy.parent))
    with pytest.raises(StartupError, match=words):
        sealed_and_loaded(copy)


def test_a_server_reads_no_data_that_the_manifest_does_not_know(copy: Path) -> None:
    """Whatever its name is."""
    shutil.copy(copy / DATA, copy / "w.bin")
    place(copy, location="w.bin")
    with_new_hashes(copy)
    manifest = json.loads((copy / bundles.MANIFEST).read_bytes())
    del manifest["files"]["w.bin"]
    (copy / bundles.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StartupError, match=r"has no sha256 of 'w\.bin', which has weights of"):
        bundles.read(copy)


def test_a_changed_weight_is_found_by_name(copy: Path) -> None:
    """One bit of it, with new hashes."""
    graph = onnx.load(copy / GRAPH, load_external_data=False).graph
    item = next(item for item in graph.initializer if item.name.endswith("ffn.up.weight"))
    data = np.memmap(copy / DATA, np.uint8, "r+")
    data[int(item.external_data[1].value)] ^= 1
    data.flush()
    with_new_hashes(copy)
    words = r"weights \(fp32\): blocks.0.ffn.up.weight differs from the reference at \[0, 0\]"
    with pytest.raises(SystemExit, match=words):
        command.verify([str(copy)])


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.usefixtures("low_limit")
def test_other_precisions_lie_so_too(precision: str, tmp_path: Path) -> None:
    """Written to two files and read again, it is the same graph."""
    model = build("postnorm")
    config, body = model.config, all_graphs.export_body(model)
    limits = Limits(max_positions=config.max_positions, vocab_size=config.vocab_size)
    converted = to_half(body) if precision == "fp16" else quantize(body, measure(body, limits))
    model_file.save(converted, tmp_path / GRAPH)
    read = model_file.load(tmp_path / GRAPH)
    assert precision.replace("fp", "float") in {str(a.dtype) for a in read.values.values()}
    assert list(structure.differences(read, converted)) == []
