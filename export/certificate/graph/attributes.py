"""Compares the attributes of a graph's operators with the reference's Config."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from addnorm.export.certificate.graph import distances, places, portable_nodes, structure
from addnorm.export.graphs.model_file import Graph
from addnorm.model.config import Activation, Config, HeadConfig

OPERATORS: dict[str, tuple[Activation, ...]] = {  # of ONNX -> the activations that it computes
    "Gelu": ("gelu", "gelu_tanh"),
    "Relu": ("relu",),
    "Sigmoid": ("silu",),
    "Tanh": ("tanh",),
}
PORTABLE_OPERATORS = {**OPERATORS, "Gelu": ("gelu",), "Sigmoid": ("silu", "gelu_tanh")}


def body(graph: Graph, config: Config, precision: str, portable: bool) -> Iterator[str]:
    """What differs from the reference's Config. A lens is a body that is portable."""
    yield from places.rotations(graph, config)
    yield from places.windows(graph, config)
    yield from portable_nodes.gates(graph, config)
    yield from distances.vectors(graph, config)
    norms = config.n_norms + distances.has_norm(config)
    if portable:
        yield from portable_nodes.attentions(graph, config)
        yield from _portable(graph, config, norms, config.activation, config.n_layers)
        return
    own: dict[str, Any] = {"softmax_precision": TensorProto.FLOAT} if precision == "fp16" else {}
    heads = {"q_num_heads": config.n_heads, "kv_num_heads": config.n_heads}
    if config.positions.disentangled:
        own["scale"] = float(distances.scale(config))
    yield from _each(graph.proto, "Attention", heads | own, config.n_layers)
    yield from _attributes(graph, config, norms, config.activation, config.n_layers)


def head(graph: Graph, config: Config, made: HeadConfig, portable: bool) -> Iterator[str]:
    """What differs from the reference's Config."""
    compare = _portable if portable else _attributes
    norms, activations = int(made.norm), int(made.dense is not None)
    yield from compare(graph, config, norms, made.activation, activations)


def _portable(
    graph: Graph, config: Config, norms: int, activation: Activation, activations: int
) -> Iterator[str]:
    """What operators say as attributes, read from the nodes that take their place."""
    yield from portable_nodes.foreign(graph)
    if config.norm == "layer":
        yield from portable_nodes.norms(graph, norms, config.eps)
    else:
        yield from _std_norms(graph, config, norms)
    for operator, names in PORTABLE_OPERATORS.items():
        expected = {"approximate": b"none"} if operator == "Gelu" else {}
        yield from _each(graph.proto, operator, expected, activations * (activation in names))
    if activation == "gelu_tanh":
        yield from portable_nodes.tanh_gelus(graph)
    yield from _products(graph.proto)


def _attributes(
    graph: Graph, config: Config, norms: int, activation: Activation, activations: int
) -> Iterator[str]:
    """Attributes of the operators that the model's Config decides, and how often each occurs."""
    model = graph.proto
    norm = {"epsilon": float(np.float32(config.eps)), "axis": -1, "stash_type": 1}
    gelu = {"approximate": b"tanh" if activation == "gelu_tanh" else b"none"}
    yield from _each(model, "LayerNormalization", norm, norms * (config.norm == "layer"))
    for operator, names in OPERATORS.items():
        expected = gelu if operator == "Gelu" else {}
        yield from _each(model, operator, expected, activations * (activation in names))
    yield from _std_norms(graph, config, norms * (config.norm == "std"))
    yield from _products(model)


def _each(
    model: ModelProto, operator: str, attributes: dict[str, Any], count: int
) -> Iterator[str]:
    nodes = [node for node in structure.nodes(model.graph) if node.op_type == operator]
    if len(nodes) != count:
        yield f"{operator} occurs {len(nodes)} times, {count} expected"
    for node in nodes:
        if (got := structure.attributes(node)) != attributes:
            yield f"{node.name} ({operator}) has {got}, {attributes} expected"


def _products(model: ModelProto) -> Iterator[str]:
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    for node in model.graph.node:
        got = structure.attributes(node)
        if node.op_type == "Gemm" and plain | got != got | plain:
            yield f"{node.name} (Gemm) has {got}, {plain} expected"


def _std_norms(graph: Graph, config: Config, count: int) -> Iterator[str]:
    """Each such norm adds eps to a square root."""
    nodes = graph.proto.graph.node
    roots = {node.output[0] for node in nodes if node.op_type == "Sqrt"}
    constants = {item.name: item for item in graph.proto.graph.initializer}
    additions = [node for node in nodes if node.op_type == "Add"]
    added = [_added(node, constants, graph) for node in additions if roots & {*node.input}]
    expected = [float(np.float32(config.eps))] * count
    if added != expected:
        yield f"the norms add {added} to the deviation, {expected} expected"


def _added(node: NodeProto, constants: Mapping[str, TensorProto], graph: Graph) -> float | None:
    values = [graph.value(constants[name]) for name in node.input if name in constants]
    return float(values[0]) if len(values) == 1 and values[0].size == 1 else None
