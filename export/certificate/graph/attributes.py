"""Compares the attributes of a graph's operators with the reference's Config."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from addnorm.export.certificate.graph import places, portable_nodes, structure
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
    """Differences from the reference's Config. A lens is a body that is portable."""
    yield from places.rotations(graph, config)
    yield from places.windows(graph, config)
    yield from places.unseen(graph, config)
    yield from portable_nodes.gates(graph, config)
    yield from places.vectors(graph, config)
    if portable:
        yield from portable_nodes.attentions(graph, config)
        yield from _portable(graph, config, _widths(config), config.activation, config.n_layers)
        return
    options: dict[str, Any] = (
        {"softmax_precision": TensorProto.FLOAT} if precision == "fp16" else {}
    )
    heads = {"q_num_heads": config.n_heads, "kv_num_heads": config.kv_heads}
    if config.positions.disentangled:
        options["scale"] = float(places.scale(config))
    yield from _compare_nodes(graph.proto, "Attention", heads | options, config.n_layers)
    yield from _attributes(graph, config, _widths(config), config.activation, config.n_layers)


def _widths(config: Config) -> list[int]:
    """The number of values that each norm of the body is of."""
    of_rows = [config.d_model] * (config.n_norms - config.embedding_norm)
    of_embeddings = [config.embedding_size or config.d_model] * config.embedding_norm
    shape = config.positions.disentangled  # whose norm no token passes
    of_distances = [config.d_model] * bool(shape and shape.norm)
    of_heads = [config.head_dims] * (2 * config.n_layers * config.qk_norm)
    return of_embeddings + of_rows + of_distances + of_heads


def head(graph: Graph, config: Config, settings: HeadConfig, portable: bool) -> Iterator[str]:
    """Differences from the reference's Config."""
    compare = _portable if portable else _attributes
    config = settings.with_its_norm(config)
    widths = [settings.dense or config.d_model] * settings.norm
    yield from compare(graph, config, widths, settings.activation, int(settings.dense is not None))


def _portable(
    graph: Graph, config: Config, widths: list[int], activation: Activation, activations: int
) -> Iterator[str]:
    """The attributes of operators, read from the nodes that take their place. widths: of norms."""
    yield from portable_nodes.foreign_operators(graph)
    if config.norm == "std":
        yield from _std_norms(graph, config, len(widths))
    else:
        yield from portable_nodes.norms(graph, config, widths)
    for operator, names in PORTABLE_OPERATORS.items():
        expected = {"approximate": b"none"} if operator == "Gelu" else {}
        yield from _compare_nodes(
            graph.proto, operator, expected, activations * (activation in names)
        )
    if activation == "gelu_tanh":
        yield from portable_nodes.tanh_gelus(graph)
    yield from _products(graph.proto)


def _attributes(
    graph: Graph, config: Config, widths: list[int], activation: Activation, activations: int
) -> Iterator[str]:
    """Attributes of the operators that the model's Config decides, and how often each occurs.
    widths: of the norms."""
    model, norms = graph.proto, len(widths)
    norm = {"epsilon": float(np.float32(config.eps)), "axis": -1, "stash_type": 1}
    gelu = {"approximate": b"tanh" if activation == "gelu_tanh" else b"none"}
    yield from _compare_nodes(model, "LayerNormalization", norm, norms * (config.norm == "layer"))
    for operator, names in OPERATORS.items():
        expected = gelu if operator == "Gelu" else {}
        yield from _compare_nodes(model, operator, expected, activations * (activation in names))
    yield from _std_norms(graph, config, norms * (config.norm == "std"))
    # each such norm adds eps to a mean square, of which it takes 1 / x
    nodes, is_rms = model.graph.node, config.norm == "rms"
    sums = {node.input[0] for node in nodes if node.op_type == "Reciprocal"} if is_rms else set()
    additions = [node for node in nodes if node.op_type == "Add" and node.output[0] in sums]
    yield from _eps(graph, additions, "mean square", [config.eps] * (norms * is_rms))
    yield from _products(model)


def _compare_nodes(
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
    additions = [node for node in nodes if node.op_type == "Add" and roots & {*node.input}]
    yield from _eps(graph, additions, "deviation", [config.eps] * count)


def _eps(graph: Graph, nodes: list[NodeProto], addend: str, eps: list[float]) -> Iterator[str]:
    """eps: of each norm. addend: it is added to."""
    constants = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
    added = []
    for node in nodes:
        values = [graph.value(constants[name]) for name in node.input if name in constants]
        is_one = len(values) == 1 and values[0].size == 1
        added.append(float(values[0]) if is_one else None)
    expected = [float(np.float32(number)) for number in eps]
    if added != expected:
        yield f"the norms add {added} to the {addend}, {expected} expected"
