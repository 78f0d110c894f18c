"""fp32 graph -> row-wise int8 graph. Knows ONNX; no PyTorch, no bundles.

Every `x @ W + b` (Gemm) with a large weight becomes the following. It has one scale s and one zero
point z per ROW of x, so a neighbour in the batch changes nothing:

    u = x / f, zero in the float columns
    u8 = round(u / s) + z, the row's own range on 0 .. LEVELS
    y = s * ((u8 @ W8) * w) + [x_float, z * s, 1] @ [W_float; -colsum(W8) * w; b]

W8 is f * W as int8, with one scale w per output column. The small float product holds what int8
cannot: the few columns of x whose range is many times the others' (LLM.int8(), arXiv:2208.07339,
with columns fixed here), the zero point (MatMulInteger takes one per tensor only) and the bias. f
moves some range from the remaining wide columns into W (SmoothQuant, arXiv:2211.10438). Both come
from ranges measured on seeded random token ids: wide columns are a property of the weights, and
real sentences gave no better choice.

int8 sums are exact, whatever their order. On x86 without VNNI the fast kernels of onnxruntime add
two products in 16 bits: u8[2i] * W8[2i] + u8[2i + 1] * W8[2i + 1]. So w is at least so large that
no two such neighbours in a column of W8 add up to more than MAX_PAIR, and nothing saturates.

The table of tokens becomes int8 too, with a scale per token: a row is read alone. Entries are
within half a step, and their product with the scale is one float32 product.

MatMulIntegerToFloat, onnxruntime's own, computes (u8 @ W8) * w in one pass. It takes one row scale
for the whole tensor, so s follows. From the standard operators (MatMulInteger, Cast,
Mul(Mul(s, w)), Add(b)) onnxruntime 1.31 makes a kernel that loses b where s is no scalar.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from addnorm.export.graphs import calibration
from addnorm.export.graphs.model_file import Graph, with_nodes
from addnorm.export.graphs.nodes import attribute, read_by
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.manifest import Int8, Limits

Array = NDArray[Any]
# of a weight; for smaller ones quantizing rows costs more than int8 saves (128 x 128: 0.95 x fp32)
MIN_ENTRIES = 2**15
FLOAT_COLUMNS = 4  # 8 gain nothing more; each costs 1 / K of the product in fp32
TABLE = "tokens.weight"
ROWS, ROW_SCALES = f"{TABLE}.rows", f"{TABLE}.scales"  # what stands in its place
USE = "#"  # between a weight's name and the number of its use
ROOTS = (3, 5)  # numbers of square roots; see `_power`
LEVELS = 230  # of 255: with fewer, rows are coarser; with more, weights, since MAX_PAIR is smaller
# of W8 in magnitude; u8 is at most LEVELS + 1, where both ends of a row's range round up
MAX_PAIR = (2**15 - 1) // (LEVELS + 1)
CONTRIB = "com.microsoft"
NEEDS = Int8(operators=("MatMulIntegerToFloat",), fits_16_bits=True)
TINY = np.array(1e-30, np.float32)  # keeps a scale from being zero
CONSTANTS: dict[str, Array] = {
    "int8.axis": np.array([1], np.int64),
    "int8.levels": np.array(LEVELS, np.float32),
    "int8.tiny": TINY,
    "int8.one": np.array(1, np.float32),
    "int8.append_one": np.array([0, 0, 0, 1], np.int64),  # Pad: a last column
}


class QuantizationError(ValueError):
    """int8 makes no sense for the graph."""


def quantize(
    graph: Graph,
    ranges: Mapping[str, Floats],
    parts_by_name: dict[str, "Parts"] | None = None,
    with_table: bool = True,
) -> Graph:
    """fp32 graph -> the same with large Gemms and its table of tokens in row-wise int8.

    ranges: of those that become int8, from `measure`. parts_by_name: parts that were made before;
    others are added. with_table: whether the table becomes int8.
    """
    parts_by_name = {} if parts_by_name is None else parts_by_name
    constants = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
    tensors = dict(CONSTANTS)
    in_place: dict[str, list[NodeProto]] = {}  # of a Gemm, by its output
    for name, gemm in large_gemms(graph.proto).items():
        if name not in ranges:
            continue
        if name not in parts_by_name:
            parts_by_name[name] = split(*_operands(gemm, graph, constants), ranges[name])
        parts = parts_by_name[name]
        tensors |= {f"{name}.{part}": value for part, value in vars(parts).items()}
        in_place[gemm.output[0]] = _nodes(name, gemm.input[0], gemm.output[0])
    if with_table and has_large_table(graph.proto):
        tensors |= split_table(graph.value(constants[TABLE]))
        for node in graph.proto.graph.node:
            if node.op_type == "Gather" and node.input[0] == TABLE:
                in_place[node.output[0]] = _lookup(node.input[1], node.output[0])
    nodes = [
        new_node
        for node in graph.proto.graph.node
        for new_node in in_place.get(node.output[0], [node])
    ]
    quantized = with_nodes(graph, nodes, tensors)
    quantized.proto.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    onnx.checker.check_model(quantized.without_values())
    return quantized


def has_large_table(model: ModelProto) -> bool:
    """True if int8 pays for the table of tokens."""
    dims = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    return TABLE in dims and math.prod(dims[TABLE]) >= MIN_ENTRIES


def needs(precisions: Collection[str]) -> Int8:
    """The needs of int8, as the manifest of a bundle with these precisions has them."""
    return NEEDS if "int8" in precisions else Int8()


def large_gemms(model: ModelProto) -> dict[str, NodeProto]:
    """The Gemms that int8 pays for, by their weight's name. QuantizationError if there is none.

    Layers may share a weight. Each use then has int8 weights and ranges of its own, "name#1" and so
    on: it is more accurate, and onnxruntime's exact kernels do not take one constant twice. A
    product of constants alone is left out: it is made once, when a graph is loaded.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    # values that are not made of constants alone
    varying = {value.name for value in model.graph.input}
    for node in model.graph.node:
        if not varying.isdisjoint(read_by(node)):
            varying.update(node.output)
    large = [
        node
        for node in model.graph.node
        if _is_product(node, constants)
        and node.input[0] in varying
        and math.prod(constants[node.input[1]].dims) >= MIN_ENTRIES
    ]
    if not large:
        reason = f"no weight of the body has at least {MIN_ENTRIES} entries"
        raise QuantizationError(f"int8 does not pay: {reason}; leave int8 out of the precisions")
    gemms: dict[str, NodeProto] = {}
    for gemm in large:
        uses = sum(weight_of(name) == gemm.input[1] for name in gemms)
        gemms[f"{gemm.input[1]}{USE}{uses}" if uses else gemm.input[1]] = gemm
    return gemms


def weight_of(name: str) -> str:
    """The weight that a name of `large_gemms` means."""
    return name.partition(USE)[0]


def _is_product(node: NodeProto, constants: Mapping[str, TensorProto]) -> bool:
    """True for a Gemm that is `x @ W + b` of a constant W, and of a constant b or none."""
    if node.op_type != "Gemm" or node.input[1] not in constants:
        return False
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": attributes.get("transB", 0)}
    if {**plain, **attributes} != plain:
        return False
    bias = [*node.input[2:]]
    return all(name in constants and len(constants[name].dims) == 1 for name in bias)


def _operands(
    gemm: NodeProto, graph: Graph, constants: Mapping[str, TensorProto]
) -> tuple[Floats, Floats]:
    """Weight `[K, M]` and bias `[M]` of a Gemm."""
    weight = graph.value(constants[gemm.input[1]])
    weight = weight.T if attribute(gemm, "transB", 0) else weight
    if len(gemm.input) < 3:
        return weight, np.zeros(weight.shape[1], np.float32)
    return weight, graph.value(constants[gemm.input[2]])


def measure(graph: Graph, limits: Limits) -> dict[str, Floats]:
    """Ranges `[K]` for each Gemm that `quantize` replaces, by the names of `large_gemms`.

    A range is the largest |x| of a column of what the weight is multiplied with, over seeded random
    token ids.
    """
    inputs = {name: gemm.input[0] for name, gemm in large_gemms(graph.proto).items()}
    input_names = list(dict.fromkeys(inputs.values()))
    arrays = calibration.values(graph, input_names, limits)
    columns = {name: np.abs(x).max(0) for name, x in zip(input_names, arrays, strict=True)}
    return {name: columns[x] for name, x in inputs.items()}


@dataclass(frozen=True)
class Parts:
    """The tensors in place of one weight `[K, M]` and bias `[M]`, with k float columns."""

    columns: Array  # [k] int64, columns of x that stay float
    shrink: Floats  # [K] 1 / f, 0 in the float columns
    weight: Array  # [K, M] int8
    scale: Floats  # [M]
    rest: Floats  # [k + 2, M] k rows of float weights, -colsum(W8) * w, bias

    @np.errstate(all="ignore")  # a scale may be any number in a file that somebody changed
    def deviation(self, weight: Floats, bias: Floats | float) -> tuple[float, float]:
        """Distances of the parts from `weight` `[K, M]` and `bias` `[M]`.

        The int8 entries in steps (0.5 is rounding), the row of column sums and that of the bias in
        units of its own largest value. Infinity or NaN where a scale is no divisor. The float
        columns' rows are `weight[columns]`, bit for bit.
        """
        inner = self.shrink > 0
        exact = weight[inner] / self.shrink[inner, None] / self.scale
        steps = (self.weight[inner] - exact).astype(np.float32)
        rest = _rest(weight, bias, self.columns, self.weight, self.scale)[-2:]
        gaps = np.abs(self.rest[-2:] - rest).max(1) / np.maximum(np.abs(rest).max(1), TINY)
        return float(np.abs(steps).max()), float(gaps.max())


def split(weight: Floats, bias: Floats, ranges: Floats) -> Parts:
    """weight `[K, M]`, bias `[M]`, ranges `[K]` (the largest |x| of each column seen)."""
    columns = np.sort(np.argsort(-ranges, kind="stable")[:FLOAT_COLUMNS])
    # a column that was narrow here, such as a ReLU that was never on, may be wide for other texts
    floored = np.maximum(ranges, ranges.mean())
    shrink = _power(np.maximum(np.abs(weight).max(1), TINY) / np.maximum(floored, TINY))
    shrink[columns] = 0
    inner = np.divide(weight, shrink[:, None], out=np.zeros_like(weight), where=shrink[:, None] > 0)
    # the smallest with entries up to 127 and pairs up to MAX_PAIR
    # each of two entries may round up by half a step
    pairs = largest_pairs(inner) / np.float32(MAX_PAIR - 1)
    scale: Floats = np.maximum(np.maximum(np.abs(inner).max(0) / np.float32(127), pairs), TINY)
    quantized = np.rint(inner / scale).astype(np.int8)
    return Parts(columns, shrink, quantized, scale, _rest(weight, bias, columns, quantized, scale))


def split_table(table: Floats) -> dict[str, Array]:
    """`[V, d]` -> rows `[V, d]` int8, scales `[V, 1]` float32, by their names in the graph."""
    scales = np.maximum(np.abs(table).max(1, keepdims=True) / np.float32(127), TINY)
    return {ROWS: np.rint(table / scales).astype(np.int8), ROW_SCALES: scales}


def largest_pairs(weight: Array) -> Array:
    """`[M]` for weight `[K, M]`: the largest |sum| of the positive, or of the negative ones, among
    the rows 2i and 2i + 1 of a column. Times the largest u8 it bounds the sum of two products."""
    even = np.pad(weight, ((0, len(weight) % 2), (0, 0)))
    positive, negative = np.maximum(even, 0), np.maximum(-even, 0)
    sums = (signed[::2] + signed[1::2] for signed in (positive, negative))
    largest: Array = np.maximum(*sums).max(0)
    return largest


def _power(ratio: Floats) -> Floats:
    """ratio to the power of 5/32 = 1/8 + 1/32. Of exponents 0 .. 0.5, about 0.15 is most accurate.

    It is made of square roots, which every processor rounds alike, so a bundle's int8 weights can
    be made again anywhere, bit for bit.
    """
    roots = [ratio]
    for _ in range(max(ROOTS)):
        roots.append(np.sqrt(roots[-1]))
    return roots[ROOTS[0]] * roots[ROOTS[1]]


def _rest(
    weight: Floats, bias: Floats | float, columns: Array, quantized: Array, scale: Floats
) -> Floats:
    column_sums = quantized.sum(0, dtype=np.int64) * scale
    rows = [weight[columns], -column_sums, np.broadcast_to(bias, scale.shape)]
    return np.vstack(rows).astype(np.float32)


def read_parts(constants: Mapping[str, Array]) -> dict[str, Parts]:
    """The parts of each quantized weight, by the weight's name."""
    names = [name.removesuffix(".shrink") for name in constants if name.endswith(".shrink")]
    return {
        name: Parts(*(constants[f"{name}.{part}"] for part in Parts.__dataclass_fields__))
        for name in names
    }


def _lookup(ids: str, rows: str) -> list[NodeProto]:
    """ids `[...]` -> rows `[..., d]` of the table."""
    entries, floats, scales = (f"{rows}.{name}" for name in ("entries", "floats", "scales"))
    return [
        helper.make_node("Gather", [ROWS, ids], [entries], entries),
        helper.make_node("Cast", [entries], [floats], floats, to=TensorProto.FLOAT),
        helper.make_node("Gather", [ROW_SCALES, ids], [scales], scales),
        helper.make_node("Mul", [floats, scales], [rows], rows),
    ]


def _nodes(name: str, x: str, y: str) -> list[NodeProto]:
    """x `[N, K]` -> y `[N, M]`. Row scales and zero points are `[N]`. `~` stands for the name."""

    def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
        inputs = [operand.replace("~", f"{name}.") for operand in inputs]
        output = output.replace("~", f"{name}.")
        domain = CONTRIB if operator in NEEDS.operators else ""
        return helper.make_node(
            operator, inputs, [output], f"{operator}.{output}", domain=domain, **attributes
        )

    return [
        node("Mul", [x, "~shrink"], "~u"),
        # the float columns are 0, so the highest is at least 0 and the lowest at most 0
        node("ReduceMax", ["~u", "int8.axis"], "~high", keepdims=0),
        node("ReduceMin", ["~u", "int8.axis"], "~low", keepdims=0),
        node("Sub", ["~high", "~low"], "~range"),
        node("Div", ["~range", "int8.levels"], "~step"),
        node("Max", ["~step", "int8.tiny"], "~s"),
        node("Neg", ["~low"], "~below"),
        node("QuantizeLinear", ["~below", "~s"], "~z", axis=0),
        node("QuantizeLinear", ["~u", "~s", "~z"], "~u8", axis=0),
        node("MatMulIntegerToFloat", ["~u8", "~weight", "int8.one", "~scale"], "~sums"),
        node("Unsqueeze", ["~s", "int8.axis"], "~s_column"),
        node("Mul", ["~sums", "~s_column"], "~product"),
        node("DequantizeLinear", ["~z", "~s"], "~offset", axis=0),
        node("Unsqueeze", ["~offset", "int8.axis"], "~offset_column"),
        node("Gather", [x, "~columns"], "~x_float", axis=1),
        node("Concat", ["~x_float", "~offset_column"], "~x_rest", axis=1),
        node("Pad", ["~x_rest", "int8.append_one", "int8.one"], "~x_rest_one"),
        node("Gemm", ["~x_rest_one", "~rest", "~product"], y),
    ]
