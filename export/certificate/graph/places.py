"""Reads from the nodes of a graph how it knows places: the angles that queries and keys are rotated
by, the windows of local layers, and terms of the scores by distance. Knows nothing of the exporter,
so it shows its mistakes.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto

from addnorm.export.certificate.graph.reading import BROKEN, Reader, Unlike
from addnorm.export.graphs.model_file import Graph
from addnorm.model.config import Config

Array = NDArray[Any]
# of numbers up to 1; cos in float64 differs less between libraries
ROUNDING = {np.dtype(np.float32): 1.2e-7, np.dtype(np.float16): 5e-4}


def rotations(graph: Graph, config: Config) -> Iterator[str]:
    """Layers whose queries and keys are not rotated by the Config's angles."""
    read = Reader(graph)
    turns = [node for node in graph.proto.graph.node if node.op_type == "Sub"]
    layer_angles = [angles for node in turns if (angles := _angles(read, node))]
    expected = config.n_layers if config.positions.rotary else 0
    if len(layer_angles) != expected:
        yield f"{len(layer_angles)} layers rotate queries and keys, {expected} expected"
        return
    for layer, names in enumerate(layer_angles):
        expected_tables = tables(config, layer in config.local_layers)
        for function, name, table in zip(("cos", "sin"), names, expected_tables, strict=True):
            if not _equals_table(read.value(name), table):
                yield f"layer {layer}: {name} is not {function} of the places' angles"


def tables(config: Config, is_local: bool) -> tuple[Array, Array]:
    """cos and sin of the angles of all places `[max_positions, e / 2]`, e dimensions of a head."""
    rotary = config.positions.rotary
    assert rotary
    local = rotary.theta if rotary.local_theta is None else rotary.local_theta
    theta, dims = local if is_local else rotary.theta, config.head_dims
    places = np.arange(config.max_positions)[:, None] / rotary.scale
    periods = np.float64(theta) ** (np.arange(0, dims, 2) / dims)
    angles = places / periods
    if bands := rotary.bands:
        turns = bands.trained / (2 * np.pi * periods)
        fast = np.clip((turns - bands.low) / (bands.high - bands.low), 0, 1)
        angles = angles * (fast + (1 - fast) / bands.factor)
    return np.cos(angles), np.sin(angles)


def is_table(array: Array, config: Config) -> bool:
    """True if a float constant that is no weight is one of these tables."""
    if not config.positions.rotary:
        return False
    config_tables = [table for is_local in (False, True) for table in tables(config, is_local)]
    return any(_equals_table(array, table) for table in config_tables)


def _equals_table(array: Array, table: Array) -> bool:
    if array.shape != table.shape or array.dtype not in ROUNDING:
        return False
    return bool(np.abs(array - table).max() <= ROUNDING[array.dtype])


def _angles(read: Reader, turn: NodeProto) -> tuple[str, str] | None:
    """The tables of cos and sin in a cos - b sin, with b cos + a sin beside it; None if the node is
    another difference."""
    try:
        (a, cos), (b, sin) = (read.node(name, "Mul").input for name in turn.input)
        beside = [node for node in read.readers(b) if node.op_type == "Mul" and cos in node.input]
        (addition,) = (node for mul in beside for node in read.readers(mul.output[0]))
        terms = [
            set(read.node(name, "Mul").input) for name in read.node(addition.output[0], "Add").input
        ]
        halves = [
            read.value(read.chain(x, "Squeeze", "Slice")[1].input[1]).tolist() for x in (a, b)
        ]
        cosines, sines = (
            read.chain(read.uncast(x), "Unsqueeze", "Gather")[1].input[0] for x in (cos, sin)
        )
        are_constants = read.value(cosines).size and read.value(sines).size
    except BROKEN:
        return None
    is_rotation = terms == [{b, cos}, {a, sin}] and halves == [[0], [1]]
    return (cosines, sines) if is_rotation and are_constants else None


def windows(graph: Graph, config: Config) -> Iterator[str]:
    """Windows of local layers that are not the Config's."""
    read = Reader(graph)
    widths = set()
    for node in graph.proto.graph.node:
        if node.op_type == "LessOrEqual":
            try:
                read.node(node.input[0], "Abs")
                widths.add(int(read.value(node.input[1])))
            except BROKEN:
                continue
    expected = {config.window} if config.window else set()
    if widths != expected:
        yield f"distances are compared with {sorted(widths)}, {sorted(expected)} expected"


def unseen(graph: Graph, config: Config) -> Iterator[str]:
    """Ids that are hidden as keys, and are not the Config's."""
    read = Reader(graph)
    ids = set()
    for node in graph.proto.graph.node:
        if node.op_type == "Equal" and node.input[0] != "attention_mask":
            with suppress(*BROKEN):
                ids.add(int(read.value(node.input[1])))
    expected = set() if config.unseen_id is None else {config.unseen_id}
    if ids != expected:
        yield f"ids are compared with {sorted(ids)}, {sorted(expected)} expected"


def terms(config: Config) -> list[str]:
    """The Config's, which scores have beside query times key."""
    shape = config.positions.disentangled
    return [name for name in ("c2p", "p2c") if shape and getattr(shape, name)]


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
    row_tables = [
        rows for rows in constants if rows.dtype.kind == "i" and rows.shape == expected.shape
    ]
    if not row_tables or not all((rows == expected).all() for rows in row_tables):
        yield "distances have other vectors than those of the Config"


def read_terms(read: Reader, scan: NodeProto, body: GraphProto, total: str) -> Iterator[str]:
    """The terms that are added to query times key, by what they are made of. total: their sum."""
    outside = dict(zip((value.name for value in body.input), scan.input, strict=True))
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
        expected = {("query", scan.input[-1]) if is_by_key else ("key", scan.input[-2])}
        if is_by_key == (by == queries) or sources != expected:
            raise Unlike(f"{leaf.output[0]} multiplies {by} with {sources}, {expected} expected")
        yield "p2c" if is_by_key else "c2p"


def _summands(read: Reader, name: str) -> Iterator[NodeProto]:
    """The parts of a sum, in its order."""
    node = read.producer(name)
    if node.op_type != "Add":
        yield node
        return
    for part in node.input:
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
    producer = read.producer(vectors)
    # by the part of attention's own projections, or by the weight's name
    if producer.op_type == "Split":
        source = ("query", "key", "value")[[*producer.output].index(vectors)]
    else:
        source = str(producer.input[1]).split(".")[-2]
    return source, outside[lifted.input[0]]
