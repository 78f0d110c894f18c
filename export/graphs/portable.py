"""fp32 graph -> the same with operators that have equal bits on every processor. Knows ONNX; no
PyTorch, no bundles.

On x86 with AVX2 or AVX-512 and on ARM with NEON, onnxruntime gives equal bits for matrix products,
Exp, Erf, Tanh, Sigmoid, Sqrt, Div, ReduceMax, and all that works element by element. A sum over a
row has as many lanes as the processor, and on ARM a product is fused with the sum that follows it.
So these are replaced (docs/design/processors.md has the measurements):

    Attention            exp(scores - max) [V | 1], then one division by the last column
    LayerNormalization   mean and variance are products with constants; the variance is of what is
                         centred, since E[x^2] - mean^2 cancels
    ReduceMean, ReduceSum   of floats along the last axis: likewise
    Reciprocal           1 / x
    Gelu, by tanh        x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is the same function
"""

import math

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from addnorm.export.graphs.model_file import Graph, with_nodes
from addnorm.export.graphs.nodes import Array, Nodes, attribute, leading_to
from addnorm.export.graphs.packed_attention import PackedAttention

LANES = 16  # partial sums of a row: more of them are more exact, and up to 16 cost nothing
SUMS = ("ReduceMean", "ReduceSum")
GELU = 2 * math.sqrt(2 / math.pi)


def make_portable(graph: Graph) -> Graph:
    """fp32 graph of the packed layout, of its lens or of a head -> the same, portable."""
    rewriting = _Rewriting(graph)
    for node in graph.proto.graph.node:
        rewriting.take(node)
    portable = rewriting.graph()
    onnx.checker.check_model(portable.without_values())
    return portable


def lane_sums(width: int) -> Array:
    """`[width, LANES]` float32: a row times this is its partial sums, each of neighbours."""
    lanes = np.arange(width) * LANES // width
    return np.equal(lanes[:, None], np.arange(LANES)).astype(np.float32)


class _Rewriting(Nodes):
    """Takes the nodes of the fp32 graph in their order."""

    def __init__(self, source: Graph) -> None:
        super().__init__()
        self._source = source
        self._given = {tensor.name: tensor for tensor in source.proto.graph.initializer}
        self._types = {
            value.name: value.type.tensor_type for value in source.proto.graph.value_info
        }
        self._made_by: dict[str, NodeProto] = {}  # of the source, by output
        self._attentions: dict[str, PackedAttention] = {}  # by what a Scan makes, as it was
        self._reciprocals: dict[str, str] = {}  # 1 / x -> x

    def take(self, node: NodeProto) -> None:
        self._made_by.update(dict.fromkeys(node.output, node))
        kind, first = node.op_type, node.input[0] if node.input else ""
        if kind == "Scan":
            self._attentions[node.output[0]] = PackedAttention(
                self, node, self._made_by, self._value
            )
            self._attentions[node.output[0]].write()
        elif first in self._attentions and kind == "Reshape":
            self._attentions[node.output[0]] = self._attentions[first]
        elif first in self._attentions:
            self._attentions[first].to_rows(cells=node.input[1], rows=node.output[0])
        elif kind == "LayerNormalization":
            self._layer_norm(node)
        elif kind in SUMS and self._types[first].elem_type == TensorProto.FLOAT:
            axes, width = node.input[1], self._types[first].shape.dim[-1].dim_value
            assert self._value(axes).tolist() == [-1], f"{node.name} reduces a different axis"
            self._sum(first, width, 1 / width if kind == "ReduceMean" else 1.0, to=node.output[0])
        elif kind == "Reciprocal":
            self._reciprocals[node.output[0]] = first
            self.make("Div", 1.0, first, to=node.output[0])
        elif kind == "Mul" and (rstd := self._reciprocals.keys() & {*node.input}):
            # x (1 / y) is x / y: onnxruntime makes it so where nothing else reads 1 / y, and other
            # bits where a lens leaves the statistics out
            (x,) = {*node.input} - rstd
            self.make("Div", x, self._reciprocals[rstd.pop()], to=node.output[0])
        elif kind == "Gelu" and attribute(node, "approximate", b"none") == b"tanh":
            cubic = self.make("Mul", self.make("Mul", first, first), GELU * 0.044715)
            argument = self.make("Mul", self.make("Add", cubic, GELU), first)
            self.make("Mul", first, self.make("Sigmoid", argument), to=node.output[0])
        else:
            self.nodes.append(node)

    def _value(self, name: str) -> Array:
        return self._source.value(self._given[name])

    def _sum(self, x: str, width: int, weight: float, to: str = "", columns: int = 1) -> str:
        """weight times the sum of each row of x `[N, width]` -> `[N, columns]`, which are equal."""
        lanes = self.constant(f"lanes_{width}", lane_sums(width))
        weights = np.full((LANES, columns), weight, np.float32)
        shape = f"_x{columns}" if columns > 1 else ""
        total = self.constant(f"sum_of_lanes_{weights[0, 0]!s}{shape}", weights)
        return self.make("MatMul", self.make("MatMul", x, lanes), total, to=to)

    def _layer_norm(self, node: NodeProto) -> None:
        x, gamma, *beta = node.input
        y, mean, rstd = [*node.output, "", ""][:3]
        width = self._given[gamma].dims[0]
        # of a constant the session computes it once, when it is made. There a product with one
        # column has other bits on ARM
        columns = width if x in self._given else 1
        mean = self._sum(x, width, 1 / width, to=mean, columns=columns)
        centred = self.make("Sub", x, mean)
        variance = self._sum(self.make("Mul", centred, centred), width, 1 / width, columns=columns)
        variance = self.make("Add", variance, attribute(node, "epsilon", 1e-5))
        # not 1 / sqrt: onnxruntime makes x (1 / y) a slower x / y, where nothing else reads 1 / y
        rstd = self.make("Sqrt", self.make("Div", 1.0, variance), to=rstd)
        normal = self.make("Mul", centred, rstd)
        scaled = self.make("Mul", normal, gamma, to="" if beta else y)
        if beta:
            self.make("Add", scaled, beta[0], to=y)

    def graph(self) -> Graph:
        """The graph with all nodes that were taken, and without what nothing reads any more."""
        outputs = [value.name for value in self._source.proto.graph.output]
        nodes = leading_to(self.nodes, outputs)
        portable = with_nodes(self._source, nodes, self.constants)
        # without notes of shapes: onnxruntime finds them itself, and with the exporter's names of
        # unknown sizes it reuses fewer buffers (int8, 16 x 16 tokens: 5 % slower)
        del portable.proto.graph.value_info[:]
        return portable
