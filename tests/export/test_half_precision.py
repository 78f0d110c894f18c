"""fp16: a graph that holds what it promises, certified, and refused where numbers do not fit."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper, shape_inference

from addnorm.export import sources
from addnorm.export.certificate import parity
from addnorm.export.certificate.graph import exact, structure
from addnorm.export.certificate.parity import CertificationError
from addnorm.export.exporting import export
from addnorm.export.graphs import all_graphs
from addnorm.export.graphs.half_precision import SUFFIX, HalfPrecisionError, to_half
from addnorm.export.graphs.model_file import Graph
from addnorm.export.wishes import Wishes
from addnorm.model.transformer import add_unseen
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model
from tests.conftest import preset as small_preset
from tests.support.bundles import change_constant, hashed_anew

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def exported(preset: str, layout: str = "packed") -> Graph:
    """A preset's graph in fp32."""
    return all_graphs.export_body(small_preset(preset).in_layout(layout))


def halved(preset: str, layout: str = "packed") -> ModelProto:
    """A preset's graph in fp16."""
    half = to_half(exported(preset, layout))
    proto = half.proto
    for item in proto.graph.initializer:
        if item.name in half.values:
            item.CopyFrom(numpy_helper.from_array(half.values[item.name], item.name))
    return proto


def types(model: ModelProto) -> dict[str, int]:
    """The type of every value, as ONNX infers it."""
    graph = shape_inference.infer_shapes(model, strict_mode=True, check_type=True).graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    element_types = {info.name: info.type.tensor_type.elem_type for info in infos}
    return element_types | {item.name: item.data_type for item in graph.initializer}


@pytest.mark.parametrize(
    ("preset", "layout"), [("notebook", "packed"), ("notebook", "padded"), ("postnorm", "packed")]
)
def test_products_are_float16_and_statistics_and_outputs_are_not(preset: str, layout: str) -> None:
    model = halved(preset, layout)
    element_types = types(model)
    read = {
        node.op_type: {
            element_types[name] for name in node.input if element_types.get(name) in (FLOAT, HALF)
        }
        for node in model.graph.node
    }
    assert read["Gemm"] == {HALF}
    assert read["Scan" if layout == "packed" else "Attention"] == {HALF}
    assert read["Gelu" if preset == "notebook" else "Relu"] == {HALF}
    assert read.get("Sqrt", {FLOAT}) == {FLOAT}  # of a norm that is made of several operators
    assert {info.type.tensor_type.elem_type for info in model.graph.output} == {FLOAT}
    assert [entry.domain for entry in model.opset_import] == [""]  # standard operators alone
    for node in structure.nodes(model.graph):
        if node.op_type == "LayerNormalization":
            assert [element_types[name] for name in node.output] == [HALF, FLOAT, FLOAT]
            assert structure.attributes(node)["stash_type"] == FLOAT
        if node.op_type == "Attention":
            assert structure.attributes(node)["softmax_precision"] == FLOAT


def test_every_weight_has_half_the_bytes() -> None:
    """No weight is left in float32, but for norms that run in it."""
    floats = [i.name for i in halved("notebook").graph.initializer if i.data_type == FLOAT]
    assert all(name.startswith(("val_", "fp16.")) for name in floats)
    norms = [
        item.name
        for item in halved("postnorm").graph.initializer
        if item.data_type == FLOAT and np.prod(item.dims) > 1
    ]
    assert norms
    assert all(name.endswith((".gamma", ".beta")) for name in norms)


@pytest.mark.parametrize("preset", ["notebook", "gpt", "postnorm", "encoder"])
def test_a_mistake_of_the_halving_shows_beside_fp32(preset: str) -> None:
    """Even one too small for the limits of answers."""
    plain = exported(preset)
    assert [*exact.beyond_types(to_half(plain), plain)] == []
    swapped, scaled = to_half(plain), to_half(plain)
    node = next(n for n in structure.nodes(swapped.proto.graph) if n.op_type == "Attention")
    node.input[0], node.input[1] = node.input[1], node.input[0]
    assert "there is Attention of" in next(exact.beyond_types(swapped, plain))
    name = next(
        item.name
        for item in scaled.proto.graph.initializer
        if item.data_type in (FLOAT, HALF)
        and item.name not in scaled.values
        and scaled.value(item).any()
    )
    change_constant(scaled.proto, name, lambda values: values * values.dtype.type(1.01))
    assert f"{name} differs from fp32" in next(exact.beyond_types(scaled, plain))


def test_certificate_covers_fp16(notebook_in_fp16: Bundle) -> None:
    """fp16 passes every case that fp32 passes, with equal bits."""
    assert notebook_in_fp16.certificate
    checks = notebook_in_fp16.certificate["checks"]
    cases = {
        precision: {check["case"] for check in checks if check["precision"] == precision}
        for precision in ("fp32", "fp16")
    }
    of_the_model = {"manifest", "logits, weights", "logits, attributes", "logits, graph"}
    of_a_gpu = {"gpu, weights", "gpu, attributes", "gpu, graph"}
    assert cases["fp16"] == (cases["fp32"] - of_the_model - of_a_gpu) | {"types"}
    assert of_a_gpu < cases["fp32"]
    assert [c["difference"] for c in checks if "unequal" in c["output"]] == [0] * 6
    assert notebook_in_fp16.manifest.precisions["fp16"] == "model.fp16.onnx"
    onnx.checker.check_model(notebook_in_fp16.graph("fp16"), full_check=True)


def test_a_token_that_no_row_sees_sees_itself_alone_and_no_pad(tmp_path: Path) -> None:
    """The certificate's sequence of one token is of the last id."""
    source = sources.preset("postnorm", Wishes(precisions=("fp32", "fp16")))
    add_unseen(source.model, token_id=4)
    assert export(source, tmp_path, "unseen").ref == "unseen/1"


def test_a_gpu_runs_attention_and_layer_normalization_in_fp32_too(notebook_in_fp16: Bundle) -> None:
    """A CPU runs what takes their place, with the same weights."""
    on_gpu, on_cpu = (notebook_in_fp16.graph("fp32", on_gpu=on_gpu) for on_gpu in (True, False))
    kinds = [
        {node.op_type for node in structure.nodes(onnx.load(path).graph)}
        for path in (on_gpu, on_cpu)
    ]
    assert {"Attention", "LayerNormalization"} <= kinds[0]
    assert not {"Attention", "LayerNormalization"} & kinds[1]
    assert notebook_in_fp16.graph("fp16", on_gpu=True).name == "model.fp16.onnx"


def test_a_changed_graph_of_a_gpu_is_not_certified(
    notebook_in_fp16: Bundle, tmp_path: Path
) -> None:
    shutil.copytree(notebook_in_fp16.path, place := tmp_path / "changed")
    graph = onnx.load(place / bundles.GPU_GRAPH, load_external_data=False)
    norm = next(node for node in graph.graph.node if node.op_type == "LayerNormalization")
    next(item for item in norm.attribute if item.name == "epsilon").f = 1e-3
    onnx.save(graph, place / bundles.GPU_GRAPH)
    bundle = hashed_anew(replace(notebook_in_fp16, path=place))
    with pytest.raises(CertificationError, match=r"gpu, attributes \(fp32\): .*epsilon"):
        parity.compare_all(bundle, sources.preset("notebook"))


def test_a_weight_that_is_too_large_is_refused() -> None:
    """The error names the weight, the place in it and its value."""
    body = exported("notebook")
    change_constant(body.proto, "blocks.0.ffn.up.bias", lambda bias: bias * 1e9)
    words = (
        r"does not fit into fp16: blocks.0.ffn.up.bias\[\d+\] is -?\d.*,"
        r" the limit of fp16 is 65504; leave"
    )
    with pytest.raises(HalfPrecisionError, match=words):
        to_half(body)


def test_numbers_that_overflow_are_refused_in_words(
    notebook_in_fp16: Bundle, tmp_path: Path
) -> None:
    """Weights that fit make numbers that do not."""
    place = tmp_path / "overflowing"
    shutil.copytree(notebook_in_fp16.path, place)
    graph = onnx.load(place / "model.fp16.onnx")
    for weight in ("attention.out", "ffn.down"):
        name = f"blocks.0.{weight}.weight{SUFFIX}"
        change_constant(graph, name, lambda values: values * 50_000)
    onnx.save(graph, place / "model.fp16.onnx")
    alone: dict[str, Any] = {"precisions": {"fp16": "model.fp16.onnx"}, "default_precision": "fp16"}
    bundle = hashed_anew(replace(notebook_in_fp16, path=place), **alone)
    words = r"\(fp16\): .* are not finite: .* end at 65504 in fp16: leave fp16 out of"
    with pytest.raises(CertificationError, match=words):
        parity.compare_answers(Model(bundle), sources.preset("notebook"))
