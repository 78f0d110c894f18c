"""Rewrites of an authors' graph that keep its numbers. Knows ONNX alone.

Sums over tokens become products: onnxruntime adds `[1, S, d]` along axis 1 in another order than
`[B, S, d]`, so that sequences of one length have other bits together than alone.

For int8, products with a large weight become Gemm over rows, as Addnorm's own graphs have them.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from addnorm.export.graphs.model_file import Graph, with_nodes
from addnorm.export.graphs.nodes import attribute, read_by
from addnorm.export.graphs.quantize import MIN_ENTRIES

SUMS = ("ReduceSum", "ReduceMean")
AXIS = 1  # of tokens, in `[B, S, d]`


def steady(graph: Graph) -> Graph:
    """The same graph, whose sums over tokens are products with ones."""
    constants = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
    described = [*graph.proto.graph.value_info, *graph.proto.graph.input, *graph.proto.graph.output]
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in described}
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


def with_gemms(graph: Graph) -> Graph:
    """The same graph, whose products `x @ W + b` with a weight that int8 pays for are Gemm over the
    rows of x. Their numbers stay; fp32 would be a little slower so for short texts."""
    dims = {tensor.name: tuple(tensor.dims) for tensor in graph.proto.graph.initializer}
    readers = Counter(name for node in graph.proto.graph.node for name in read_by(node))
    adds = {  # of a constant and a value that nothing else reads, by that value
        value: (node.output[0], constant)
        for node in graph.proto.graph.node
        if node.op_type == "Add"
        for value, constant in (node.input, node.input[::-1])
        if constant in dims and readers[value] == 1
    }
    nodes, tensors, fused = list[NodeProto](), dict[str, NDArray[np.int64]](), set[str]()
    for node in graph.proto.graph.node:
        weight = dims.get(node.input[1], ()) if node.op_type == "MatMul" else ()
        if len(weight) == 2 and math.prod(weight) >= MIN_ENTRIES:
            output, bias = adds.get(node.output[0], ("", ""))
            if dims.get(bias) != weight[1:]:
                output, bias = node.output[0], ""
            fused.add(output)
            nodes += _as_gemm(node, bias, output, weight)
            tensors[f"steady.rows.{weight[0]}"] = np.array([-1, weight[0]])
            tensors[f"steady.width.{weight[1]}"] = np.array([weight[1]])
        elif fused.isdisjoint(node.output):
            nodes.append(node)
    rewritten = with_nodes(graph, nodes, tensors)
    onnx.checker.check_model(rewritten.without_values())
    return rewritten


def _as_gemm(node: NodeProto, bias: str, y: str, weight: tuple[int, ...]) -> list[NodeProto]:
    """x `[..., K]` as rows `[N, K]`, times the weight `[K, M]`, as y `[..., M]`."""
    x, rows, products, lead, shape = (
        node.input[0], *(f"{y}.{name}" for name in ("rows", "products", "lead", "shape"))
    )  # fmt: skip
    operands = [rows, node.input[1], *([bias] if bias else [])]
    return [
        helper.make_node("Reshape", [x, f"steady.rows.{weight[0]}"], [rows], rows),
        helper.make_node("Gemm", operands, [products], products),
        helper.make_node("Shape", [x], [lead], lead, end=-1),
        helper.make_node("Concat", [lead, f"steady.width.{weight[1]}"], [shape], shape, axis=0),
        helper.make_node("Reshape", [products, shape], [y], y),
    ]
