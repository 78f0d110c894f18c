"""Nodes on the CPU through which rows go: looked up in the graph's file. No GPU is needed."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.served import CertificationError
from addnorm.export.cuda.on_gpu import refuse_rows_on_cpu, without_rows
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import SHAPES_AND_INDICES
from addnorm.service.engine.device.placement import CPU, Node
from addnorm.service.engine.model import Model


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_loading_allows_on_the_cpu_makes_shapes_and_indices(
    notebook_in_fp16: Bundle, precision: str
) -> None:
    graph = onnx.load(
        notebook_in_fp16.graph(precision, on_gpu=True), load_external_data=False
    ).graph
    free = [*without_rows(graph)]
    rows = {node.op_type for node in structure.nodes(graph) if node not in free}
    of_authors = {"And", "GreaterOrEqual", "LessOrEqual", "Or"}  # masks of other graphs
    ours = SHAPES_AND_INDICES - {"Constant", "Expand"} - of_authors
    assert {node.op_type for node in free} >= ours
    assert {"Scan", "Attention", "Gemm", "Gelu", "LayerNormalization", "Gather"} <= rows
    assert rows & SHAPES_AND_INDICES <= {"Add", "Cast"}  # which CUDA has for all types


def test_a_body_may_take_rows_from_outside() -> None:
    """The branches of an If do so: its only input is its condition."""
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [2])
    value_info = helper.make_tensor_value_info("made", TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("Shape", ["row"], ["shape"], "of_row"),
        helper.make_node("Identity", ["row"], ["made"], "row"),
        helper.make_node("Squeeze", ["shape"], ["one"], "of_shape"),
    ]
    body = helper.make_graph(nodes, "body", [], [value_info])
    either = helper.make_node("If", ["is"], ["y"], "if", then_branch=body, else_branch=body)
    after = helper.make_node("Neg", ["y"], ["z"], "after")
    graph = helper.make_graph([either, after], "all", [row], [value_info])
    assert {node.name for node in without_rows(graph)} == {"of_row", "of_shape"}


@pytest.fixture
def model(notebook: Path) -> Model:
    return Model(bundles.read(notebook))


def having(nodes: dict[str, list[Node]]) -> Any:
    """An engine with these nodes."""
    return SimpleNamespace(nodes=lambda: nodes)


def test_a_body_on_the_cpu_is_refused(model: Model) -> None:
    with pytest.raises(
        CertificationError, match=r"model\.onnx: rows go through the CPU: \S*MatMul"
    ):
        refuse_rows_on_cpu(model)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda node, free: node.name in free, None),
        (
            lambda node, free: node.name in free or node.operator == "Add",
            r"Add \S+, .* and 3 more$",
        ),
        (lambda node, free: node.operator == "Where", r"Where \S+, Where \S+, Where \S+$"),
        (lambda node, free: node.operator == "Reshape", r"Reshape \S+, .* and 5 more$"),
    ],
)
def test_a_node_is_looked_up_by_its_name(
    model: Model, keep: Callable[[Node, Any], bool], words: str | None
) -> None:
    """Shapes are added and reshaped too, on the CPU."""
    graph = onnx.load(model.bundle.graph("fp32"), load_external_data=False).graph
    body, free = model.engine("fp32").nodes()["body"], {node.name for node in without_rows(graph)}
    left = [node for node in body if keep(node, free)]
    model.engines["fp32"] = having({"body": left})
    if words is None:
        assert len(left) > 40
        refuse_rows_on_cpu(model)
    else:
        with pytest.raises(CertificationError, match=f"rows go through the CPU: {words}"):
            refuse_rows_on_cpu(model)


def test_a_node_that_the_file_does_not_name_is_refused(model: Model) -> None:
    model.engines["fp32"] = having({"body": [Node(CPU, "Mul", "")], "logits": []})
    with pytest.raises(CertificationError, match=r"CPU: Mul$"):
        refuse_rows_on_cpu(model)
