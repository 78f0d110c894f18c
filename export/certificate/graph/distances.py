"""Reads from the nodes of a graph how scores know distances: which vector each distance has, and
what queries and keys are multiplied with. Knows nothing of the exporter, so it shows its mistakes.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto

from addnorm.export.certificate.graph.reading import Reader, Unlike
from addnorm.export.graphs.model_file import Graph
from addnorm.model.config import Config

Array = NDArray[Any]


def terms(config: Config) -> list[str]:
    """The Config's, which scores have beside query times key."""
    shape = config.positions.disentangled
    return [name for name in ("c2p", "p2c") if shape and getattr(shape, name)]


def has_norm(config: Config) -> bool:
    """True if there is a norm that no token passes."""
    shape = config.positions.disentangled
    return shape is not None and shape.norm


def scale(config: Config) -> np.float32:
    """The factor of scores."""
    dims = config.head_dims
    return np.float32(1 / math.sqrt(dims * (1 + len(terms(config)))))


def table(config: Config) -> Array:
    """The row of each distance in the vectors, from -(max_positions - 1) on."""
    shape = config.positions.disentangled
    assert shape
    half, last = shape.span // 2, config.max_positions - 1
    rows = []
    for distance in range(-last, last + 1):
        far, bucket = abs(distance), abs(distance)
        if shape.farthest and far > half:
            share = math.log(far / half) / math.log((shape.farthest - 1) / half)
            bucket = half + math.ceil(share * (half - 1) - 1e-9)
        row = shape.span + (bucket if distance > 0 else -bucket)
        rows.append(min(max(row, 0), 2 * shape.span - 1))
    return np.array(rows)


def vectors(graph: Graph, config: Config) -> Iterator[str]:
    """Distances whose vector is not the Config's."""
    if not config.positions.disentangled:
        return
    expected, read = table(config)[:, None], Reader(graph)
    gathers = [node for node in graph.proto.graph.node if node.op_type == "Gather"]
    constants = [read.value(node.input[0]) for node in gathers if read.is_constant(node.input[0])]
    found = [rows for rows in constants if rows.dtype.kind == "i" and rows.shape == expected.shape]
    if not found or not all((rows == expected).all() for rows in found):
        yield "distances have other vectors than those of the Config"


def read_terms(read: Reader, scan: NodeProto, body: GraphProto, total: str) -> Iterator[str]:
    """The terms that are added to query times key, by what they are made of. total: their sum."""
    outside = dict(zip((item.name for item in body.input), scan.input, strict=True))
    leaves = [*_summands(read, total)]
    queries = [leaf.input[0] for leaf in leaves if leaf.op_type == "MatMul"]
    for leaf in leaves:
        if leaf.op_type == "MatMul":
            continue
        is_by_key = leaf.op_type == "Transpose"
        if is_by_key:
            (shifted,) = read.chain(leaf.input[0], "Reshape")
            leaf = read.node(shifted.input[0], "Slice")
        rows, cut, flat = read.chain(leaf.input[0], "Reshape", "Slice", "Reshape")
        if read.value(leaf.input[1]).tolist() != [0] or read.value(cut.input[2]).tolist() != [-1]:
            raise Unlike(f"{rows.output[0]} is not shifted by its rows")
        products = [*_summands(read, flat.input[0])]
        sources = {_source(read, product, outside) for product in products}
        by = [product.input[0] for product in products]
        meant = {("query", scan.input[-1]) if is_by_key else ("key", scan.input[-2])}
        if is_by_key == (by == queries) or sources != meant:
            raise Unlike(f"{leaf.output[0]} multiplies {by} with {sources}, {meant} expected")
        yield "p2c" if is_by_key else "c2p"


def _summands(read: Reader, name: str) -> Iterator[NodeProto]:
    """The parts of a sum, in its order."""
    made = read.producer(name)
    if made.op_type != "Add":
        yield made
        return
    for part in made.input:
        yield from _summands(read, part)


def _source(read: Reader, product: NodeProto, outside: dict[str, str]) -> tuple[str, str]:
    """The source of a product's columns, distances' keys or queries, and the Scan's input by which
    they are picked."""
    _, picked = read.chain(product.input[1], "Transpose", "Gather")
    add, mul, lifted = read.chain(picked.input[1], "Add", "Mul", "Unsqueeze")
    heads = read.value(add.input[1])
    if read.value(mul.input[1]) < heads.size:
        raise Unlike(f"{add.output[0]} does not pick by head")
    vectors = read.node(picked.input[0], "Reshape").input[0]
    made = read.producer(vectors)
    # by the part of attention's own projections, or by the weight's name
    if made.op_type == "Split":
        source = ("query", "key", "value")[[*made.output].index(vectors)]
    else:
        source = str(made.input[1]).split(".")[-2]
    return source, outside[lifted.input[0]]
