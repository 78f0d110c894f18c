"""fp32 graph -> fp16 graph. Knows ONNX; no PyTorch, no bundles.

Weights, matrix products, attention, activation functions and the residual stream are float16: a GPU
has matrix units for it, and moves half the bytes. In float32 stay

    statistics of norms   LayerNormalization has stash_type 1, and gives mean and rstd in float32; a
                          norm that is made of other operators runs in float32 as a whole
    softmax               Attention has softmax_precision 1
    masks and positions   nodes that no weight has a part in
    the graph's outputs   activations are cast last

A node computes in float32 if it reads a computed value in float32, else in float16; the other type
is cast. With the residual stream in float32, vectors came twice as near to those of fp32, within
1e-5 of a cosine in both cases. A GPU would move three times the bytes between matrix products.

A mask's -1e9 becomes the lowest finite number, since minus infinity makes NaN where every key is
masked.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper

from addnorm.export.graphs.model_file import Graph, with_nodes
from addnorm.export.graphs.nodes import read_by

Array = NDArray[Any]
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
ATTENTION = ("Attention", "Scan")  # a Scan runs Attention block by block
IN_HALF = ("Gemm", *ATTENTION)
IN_FLOAT = ("ReduceMean", "ReduceSum")  # of norms that are made of several operators
STATISTICS = {"LayerNormalization": (1, 2)}  # which outputs are float32 whatever is read
SOFTMAX_IN_FLOAT = helper.make_attribute("softmax_precision", FLOAT)
LARGEST = float(np.finfo(np.float16).max)  # 65504
RANGE = {"fp16.lowest": -LARGEST, "fp16.highest": LARGEST}  # constants
# of values and constants that others without it were cast to, or clipped for a cast
SUFFIX, FLOAT_SUFFIX, CLIPPED = ".fp16", ".fp32", ".clipped"


class HalfPrecisionError(ValueError):
    """A weight does not fit into float16."""


def to_half(graph: Graph) -> Graph:
    """fp32 graph -> the same in fp16, with inputs and outputs of the same types.

    HalfPrecisionError if a weight is beyond 65504.
    """
    halving = _Halving(graph)
    for node in graph.proto.graph.node:
        halving.add(node)
    half = halving.graph()
    onnx.checker.check_model(half.without_values())
    return half


def round_to_half(array: Array) -> Array:
    """To float16, the nearest. HalfPrecisionError for what is beyond."""
    with np.errstate(over="ignore"):
        half: Array = array.astype(np.float16)
    if beyond := np.argwhere(np.isinf(half))[:1].tolist():
        value = array[tuple(beyond[0])]
        raise HalfPrecisionError(f"{beyond[0]} is {value:g}, the limit of fp16 is {LARGEST:g}")
    return half


def typeless(name: str) -> str:
    """A value's name in the fp32 graph."""
    for suffix in (SUFFIX, FLOAT_SUFFIX, CLIPPED):
        name = name.removesuffix(suffix)
    return name


def read_weights(constants: Mapping[str, Array]) -> dict[str, Array]:
    """The constants in float16, by their names in the fp32 graph."""
    return {
        name.removesuffix(SUFFIX): array
        for name, array in constants.items()
        if name.endswith(SUFFIX)
    }


class _Halving:
    """Takes the nodes of the fp32 graph in their order."""

    def __init__(self, source: Graph) -> None:
        model = source.proto.graph
        infos = (*model.input, *model.value_info, *model.output)
        self._source = source
        self._constants = {tensor.name: tensor for tensor in model.initializer}
        self._outputs = {value.name for value in model.output}
        self._types = {value.name: value.type.tensor_type.elem_type for value in infos}
        self._types |= {name: tensor.data_type for name, tensor in self._constants.items()}
        # weights, and all that is computed with them; a single number is no weight
        self._of_weights = {
            name for name, tensor in self._constants.items() if np.prod(tensor.dims) > 1
        }
        self._nodes: list[NodeProto] = []
        self._casts: dict[tuple[str, int], str] = {}  # name, type -> name in that type
        self._tensors: dict[str, Array] = {}  # new constants

    def add(self, source_node: NodeProto) -> None:
        node = NodeProto()
        node.CopyFrom(source_node)
        floats = [name for name in read_by(node) if self._types.get(name) in (FLOAT, HALF)]
        if not self._of_weights.isdisjoint(floats):
            self._convert(node, list(dict.fromkeys(floats)))
        self._nodes.append(node)
        # outputs of the graph keep their name and type
        for index, name in enumerate(node.output):
            if name in self._outputs and self._types[name] == HALF:
                node.output[index] = f"{name}{SUFFIX}"
                self._nodes.append(_cast(node.output[index], name, FLOAT))
                self._types[name] = FLOAT

    def _convert(self, node: NodeProto, floats: Sequence[str]) -> None:
        # it computes in one type. Squares (of an RMSNorm) may leave fp16
        computed = {self._types[name] for name in floats if name not in self._constants}
        is_square = node.op_type == "Mul" and len({*node.input}) == 1
        is_float = is_square or node.op_type in IN_FLOAT or FLOAT in computed
        kind = int(FLOAT if is_float and node.op_type not in IN_HALF else HALF)
        is_masked = node.op_type in ATTENTION
        names = {name: self._in_type(name, kind, is_masked) for name in floats}
        for inner in _nodes(node):
            for index, name in enumerate(inner.input):
                inner.input[index] = names.get(name, name)
            if inner.op_type == "Attention":
                inner.attribute.append(SOFTMAX_IN_FLOAT)
        for body in _bodies(node):
            for value in (*body.input, *body.output):
                if value.type.tensor_type.elem_type == FLOAT:  # others are numbers of rows
                    value.type.tensor_type.elem_type = kind
        for index, name in enumerate(node.output):
            is_statistic = index in STATISTICS.get(node.op_type, ())
            self._types[name] = FLOAT if is_statistic else kind
            self._of_weights.add(name)

    def _in_type(self, name: str, kind: int, is_masked: bool) -> str:
        """The name of a value in that type. is_masked: it may hold a mask's numbers."""
        if self._types[name] == kind:
            return name
        if (name, kind) not in self._casts:
            self._casts[name, kind] = cast = f"{name}{SUFFIX if kind == HALF else FLOAT_SUFFIX}"
            if name in self._constants:
                try:
                    self._tensors[cast] = round_to_half(self._source.value(self._constants[name]))
                except HalfPrecisionError as error:
                    words = (
                        f"the model does not fit into fp16: {name}{error}; leave fp16 out of the"
                        " precisions"
                    )
                    raise HalfPrecisionError(words) from None
                return cast
            if is_masked and kind == HALF:
                clip, name = name, f"{name}{CLIPPED}"
                self._nodes.append(helper.make_node("Clip", [clip, *RANGE], [name], f"Clip.{name}"))
                self._tensors |= {end: np.array(value, np.float32) for end, value in RANGE.items()}
            self._nodes.append(_cast(name, cast, kind))
            return cast
        return self._casts[name, kind]

    def graph(self) -> Graph:
        """The graph with all nodes that were added."""
        graph = with_nodes(self._source, self._nodes, self._tensors)
        for value in graph.proto.graph.value_info:
            value.type.tensor_type.elem_type = self._types[value.name]
        return graph


def _cast(name: str, output: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [name], [output], f"Cast.{output}", to=kind)


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that are a node's attributes."""
    return (attribute.g for attribute in node.attribute if attribute.HasField("g"))


def _nodes(node: NodeProto) -> Iterator[NodeProto]:
    """The node and those of its graphs."""
    yield node
    for body in _bodies(node):
        for inner in body.node:
            yield from _nodes(inner)
