"""Rewrites of an authors' graph that keep its numbers. Knows ONNX alone.

Sums over tokens become products: onnxruntime adds `[1, S, d]` along axis 1 in another order than
`[B, S, d]`, so that sequences of one length have other bits together than alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from addnorm.export.graphs.model_file import Graph, with_nodes
from addnorm.export.graphs.nodes import attribute

SUMS = ("ReduceSum", "ReduceMean")
AXIS = 1  # of tokens, in `[B, S, d]`


def steady(graph: Graph) -> Graph:
    """The same graph, whose sums over tokens are products with ones."""
    constants = {item.name: item for item in graph.proto.graph.initializer}
    described = [*graph.proto.graph.value_info, *graph.proto.graph.input, *graph.proto.graph.output]
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in described}
    nodes, tensors = list[NodeProto](), dict[str, NDArray[np.int64]]()
    for node in graph.proto.graph.node:
        is_sum = node.op_type in SUMS and ranks.get(node.input[0]) == 3
        if is_sum and _axes(node, graph, constants) == [AXIS]:
            nodes += _as_product(node)
            tensors |= {"steady.one": np.array([1]), "steady.axis": np.array([AXIS])}
        else:
            nodes.append(node)
    if not tensors:
        return graph
    rewritten = with_nodes(graph, nodes, tensors)
    onnx.checker.check_model(rewritten.without_values())
    return rewritten


def _axes(node: NodeProto, graph: Graph, constants: Mapping[str, TensorProto]) -> list[int] | None:
    if len(node.input) < 2 or node.input[1] not in constants:
        return None
    axes: list[int] = graph.value(constants[node.input[1]]).tolist()
    return axes


def _as_product(node: NodeProto) -> list[NodeProto]:
    """Ones `[1, S]` times x `[B, S, d]`: a product for each sequence. (A Transpose before the sum
    would be taken out again by onnxruntime.)"""
    x, name = node.input[0], f"{node.output[0]}.product"
    ones = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    keeps, is_mean = attribute(node, "keepdims", 1), node.op_type == "ReduceMean"
    last = node.output[0] if keeps else f"{name}.kept"

    def make(operator: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
        return helper.make_node(operator, inputs, [output], output, **attributes)

    nodes = [
        make("Shape", [x], f"{name}.num", start=AXIS, end=AXIS + 1),
        make("Concat", ["steady.one", f"{name}.num"], f"{name}.shape", axis=0),
        make("ConstantOfShape", [f"{name}.shape"], f"{name}.ones", value=ones),
        make("MatMul", [f"{name}.ones", x], f"{name}.sum" if is_mean else last),
    ]
    if is_mean:
        nodes += [
            make("Cast", [f"{name}.num"], f"{name}.count", to=TensorProto.FLOAT),
            make("Div", [f"{name}.sum", f"{name}.count"], last),
        ]
    if not keeps:
        nodes.append(make("Squeeze", [last, "steady.axis"], node.output[0]))
    return nodes
