"""Reads from the nodes of a portable graph what its operators had said as attributes: heads and
scale of attention, eps of the norms, the formula of an activation. Knows nothing of the exporter,
so it shows the exporter's mistakes.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from addnorm.export.certificate.graph import places, structure
from addnorm.export.certificate.graph.reading import BROKEN, Reader, Unlike
from addnorm.export.graphs.model_file import Graph
from addnorm.model.config import Config

Array = NDArray[Any]
SUMS = {"ReduceMean", "ReduceSum"}
NOT_PORTABLE = {  # their bits differ between processors
    "Attention", "LayerNormalization", "LogSoftmax", "Reciprocal", "RMSNormalization",
    "RotaryEmbedding", "Softmax", *SUMS,
}  # fmt: skip
LANES, THRESHOLD = 16, "ThresholdedRelu"
FLOOR = -87.0  # of clipped scores: exponentials below it are denormal
LEAST = np.float32(2e-38)  # weights of masked keys that are clipped are less, and count as 0


def attentions(graph: Graph, config: Config) -> Iterator[str]:
    """Attentions that differ from the Config in heads, scale, or a bias of the scores."""
    scans = [node for node in graph.proto.graph.node if node.op_type == "Scan"]
    if len(scans) != config.n_layers:
        yield f"Scan occurs {len(scans)} times, {config.n_layers} expected"
    dims = config.head_dims
    expected = {
        "heads": config.n_heads,
        "kv_heads": config.kv_heads,
        "dims": dims,
        "scale": places.scale(config),
        "biased": config.causal or config.positions.buckets > 0 or config.unseen_id is not None,
        "terms": places.terms(config),
        "local": False,
    }
    for layer, scan in enumerate(scans):
        is_local = layer in config.local_layers
        layer_expected = expected | ({"biased": True, "local": True} if is_local else {})
        try:
            if (got := _attention(graph, scan)) != layer_expected:
                yield f"{scan.name} (attention) has {got}, {layer_expected} expected"
        except BROKEN as error:
            yield f"{scan.name} is not attention: {error}"


def _attention(graph: Graph, scan: NodeProto) -> dict[str, Any]:
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    read = Reader(graph, body)
    table, cells = read.node(scan.input[0], "Gather").input
    width = int(read.value(read.node(table, "Reshape").input[1])[-1])
    firsts = read.value(read.node(cells, "Add").input[1])
    inner = {name for node in body.node for name in node.output}
    turned = [node.input[0] for node in body.node if node.op_type == "Transpose"]
    keys = [name for name in turned if name not in inner]
    outside = dict(zip((value.name for value in body.input), scan.input, strict=True))
    parts, is_local = len(keys), {*keys} <= outside.keys()
    key_cells = read.node(outside.get(keys[0], keys[0]), "Gather").input[1]
    shared = read.value(read.node(key_cells, "Add").input[1]).flatten().tolist()
    exp = next(node for node in body.node if node.op_type == "Exp")
    node = read.producer(exp.input[0])
    if is_clipped := node.op_type == "Clip":
        shifted, *bounds = node.input
        if [read.value(bound).tolist() for bound in bounds] != [FLOOR]:
            raise Unlike(f"{node.name} clips scores at a number other than {FLOOR}")
        node = read.producer(shifted)
    scores = read.node(node.output[0], "Sub")
    largest = read.node(scores.input[1], "ReduceMax")
    if largest.input[0] != scores.input[0] or read.value(largest.input[1]).tolist() != [-1]:
        raise Unlike(f"{largest.output[0]} is not the largest score of a query")
    # the product with the scale, before a mask is added
    total = scores.input[0]
    while (node := read.producer(total)).op_type == "Add":
        total = node.input[0]
    _check_weights(read, exp, is_clipped and total != scores.input[0])
    scale = read.node(total, "Mul")
    terms = [*places.read_terms(read, scan, body, scale.input[0])]
    num_floats = len(scan.input) - (2 if terms else 0)
    # neighbours read the same heads of keys
    distinct = sorted({*shared})
    if shared != [cell for cell in distinct for _ in range(len(shared) // len(distinct))]:
        raise Unlike(f"heads of queries read the keys {shared}")
    return {
        "heads": len(firsts),
        "kv_heads": len(distinct),
        "dims": width * parts,
        "scale": read.value(scale.input[1])[()],
        "biased": num_floats > (3 * parts if is_local else parts),
        "terms": terms,
        "local": is_local,  # keys and values are cut as queries are
    }


def _check_weights(read: Reader, exp: NodeProto, counts_as_zero: bool) -> None:
    """Unlike if a masked key may weigh more than 0, or one that is not masked is taken for one."""
    thresholds = [node for node in read.readers(exp.output[0]) if node.op_type == THRESHOLD]
    if not counts_as_zero and thresholds:
        raise Unlike(
            f"{exp.name} is of scores that are not masked, or not clipped, and has a least"
        )
    if counts_as_zero and (
        thresholds != read.readers(exp.output[0])
        or [structure.attributes(node) for node in thresholds] != [{"alpha": float(LEAST)}]
    ):
        raise Unlike(f"{exp.name} is of masked scores that are clipped, which do not count as 0")


def norms(graph: Graph, config: Config, widths: list[int]) -> Iterator[str]:
    """Norms that are not of the Config's kind and eps, of rows so wide."""
    read, kind = Reader(graph), "RMSNorm" if config.norm == "rms" else "LayerNorm"
    roots = [node for node in graph.proto.graph.node if node.op_type == "Sqrt"]
    if len(roots) != len(widths):
        yield f"Sqrt occurs {len(roots)} times, {len(widths)} expected"
    root_widths, eps = list[int](), float(np.float32(config.eps))
    for root in roots:
        try:
            got, width = _eps(read, root, config.norm == "rms")
            root_widths.append(width)
            if got != eps:
                yield f"{root.name} ({kind}) has eps {got}, {eps} expected"
        except BROKEN as error:
            yield f"{root.name} is not a {kind}: {error}"
    if len(root_widths) == len(widths) and sorted(root_widths) != sorted(widths):
        yield f"{kind}s are of {sorted(root_widths)} numbers, {sorted(widths)} expected"


def _eps(read: Reader, root: NodeProto, is_rms: bool) -> tuple[float, int]:
    """The eps in sqrt(1 / (mean((x - mean(x))^2) + eps)), or in that of x^2, and how wide x is."""
    numerator, total = read.node(root.input[0], "Div").input
    variance, eps = read.node(total, "Add").input
    if read.value(numerator) != 1:
        raise Unlike(f"{root.input[0]} is not 1 by {total}")
    squares, width = _mean_of(read, variance)
    square = read.node(squares, "Mul")
    x = square.input[0]
    if len({*square.input}) != 1:
        raise Unlike(f"{squares} is not a square")
    if is_rms:
        divided = [{*node.input} for node in read.readers(root.output[0])]
        if {x, root.output[0]} not in divided:
            raise Unlike(f"{x} is not divided by the root of its mean square")
    else:
        centred = read.node(x, "Sub")
        if _mean_of(read, centred.input[1])[0] != centred.input[0]:
            raise Unlike(f"{variance} is not the mean square of the centred row")
    return float(read.value(eps)), width


def _mean_of(read: Reader, name: str) -> tuple[str, int]:
    """The value that another is the mean of, along the last axis, and its width."""
    total, lanes = read.chain(name, "MatMul", "MatMul")
    width = len(read.value(lanes.input[1]))
    if not (read.value(total.input[1]) == np.float32(1 / width)).all():
        raise Unlike(f"{name} is not a mean of {width} numbers")
    return str(lanes.input[0]), width


def tanh_gelus(graph: Graph) -> Iterator[str]:
    """Sigmoids that are not of x sigmoid(x (a + b x^2))."""
    read = Reader(graph)
    a = 2 * math.sqrt(2 / math.pi)
    expected = [np.float32(a), np.float32(a * 0.044715)]
    for node in graph.proto.graph.node:
        if node.op_type != "Sigmoid":
            continue
        try:
            _, factor, cubic = read.chain(node.input[0], "Mul", "Add", "Mul")
            got = [read.value(term.input[1])[()] for term in (factor, cubic)]
        except BROKEN as error:
            yield f"{node.name} does not belong to a Gelu: {error}"
            continue
        if got != expected:
            yield f"{node.name} (Gelu) has {got}, {expected} expected"


def gates(graph: Graph, config: Config) -> Iterator[str]:
    """Gated feed-forwards that differ: of two halves, the first is activated, and only it."""
    read = Reader(graph)
    splits = [node for node in graph.proto.graph.node if node.op_type == "Split"]
    # the layout padded splits queries, keys and values in three
    halvings = [node for node in splits if len(node.output) == 2]
    expected = config.n_layers if config.gated else 0
    if len(halvings) != expected:
        yield f"{len(halvings)} rows are split in halves, {expected} expected"
    for node in halvings:
        gated = read.readers(node.output[-1])
        is_gate = [reader.op_type for reader in gated] == ["Mul"] and (
            node.output[0] not in gated[0].input
        )
        if not is_gate or structure.attributes(node) != {"axis": 1, "num_outputs": 2}:
            yield f"{node.name} (gate) does not multiply by its second half as it is"


def is_of_a_formula(array: Array) -> bool:
    """True if a float constant that is no weight is one that sums are made with."""
    if array.ndim == 2 and array.shape[1] == LANES:
        lanes = [index * LANES // len(array) for index in range(len(array))]
        if (array == np.eye(LANES, dtype=array.dtype)[lanes]).all():
            return True
    if array.ndim == 2 and len(array) == LANES:
        return bool((array == array[0, 0]).all())
    return not array.any() and len(array) == 1


def foreign_operators(graph: Graph) -> Iterator[str]:
    """Operators that no portable graph has. Sums of whole numbers are exact in any order. A product
    of constants is computed when the session is made: with one column it has other bits on ARM."""
    widths = {
        tensor.name: tensor.dims[-1] for tensor in graph.proto.graph.initializer if tensor.dims
    }
    constants = {tensor.name for tensor in graph.proto.graph.initializer}
    nodes = [*structure.nodes(graph.proto.graph)]
    made_by = {name: node for node in nodes for name in node.output}
    for node in nodes:
        cast = made_by.get(node.input[0]) if node.op_type in SUMS else None
        is_exact = cast is not None and structure.attributes(cast).get("to") == TensorProto.INT64
        if node.op_type in NOT_PORTABLE and not is_exact:
            yield f"{node.name}: the bits of {node.op_type} differ between processors"
        if node.input and constants.issuperset(node.input):
            constants.update(node.output)
            if node.op_type == "MatMul" and widths.get(node.input[1]) == 1:
                yield f"{node.name}: a constant times one column has different bits on ARM"
