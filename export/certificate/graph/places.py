"""Reads from the nodes of a graph how it knows places: the angles that queries and keys are rotated
by, and the windows of local layers. Knows nothing of the exporter, so it shows its mistakes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from addnorm.export.certificate.graph.reading import BROKEN, Reader
from addnorm.export.graphs.model_file import Graph
from addnorm.model.config import Config

Array = NDArray[Any]
# of numbers up to 1; cos in float64 differs less between libraries
ROUNDING = {np.dtype(np.float32): 1.2e-7, np.dtype(np.float16): 5e-4}


def rotations(graph: Graph, config: Config) -> Iterator[str]:
    """Layers whose queries and keys are not rotated by the Config's angles."""
    read = Reader(graph)
    turns = [node for node in graph.proto.graph.node if node.op_type == "Sub"]
    found = [angles for node in turns if (angles := _angles(read, node))]
    expected = config.n_layers if config.positions.rotary else 0
    if len(found) != expected:
        yield f"{len(found)} layers rotate queries and keys, {expected} expected"
        return
    for layer, names in enumerate(found):
        meant = tables(config, layer in config.local_layers)
        for what, name, table in zip(("cos", "sin"), names, meant, strict=True):
            if not _equals_table(read.value(name), table):
                yield f"layer {layer}: {name} is not {what} of the places' angles"


def tables(config: Config, is_local: bool) -> tuple[Array, Array]:
    """cos and sin of the angles of all places `[max_positions, e / 2]`, e dimensions of a head."""
    rotary = config.positions.rotary
    assert rotary
    local = rotary.theta if rotary.local_theta is None else rotary.local_theta
    theta, dims = local if is_local else rotary.theta, config.head_dims
    places = np.arange(config.max_positions)[:, None] / rotary.scale
    angles = places / np.float64(theta) ** (np.arange(0, dims, 2) / dims)
    return np.cos(angles), np.sin(angles)


def is_table(array: Array, config: Config) -> bool:
    """True if a float constant that is no weight is one of these tables."""
    if not config.positions.rotary:
        return False
    known = [table for is_local in (False, True) for table in tables(config, is_local)]
    return any(_equals_table(array, table) for table in known)


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
        (other,) = (node for mul in beside for node in read.readers(mul.output[0]))
        terms = [
            set(read.node(name, "Mul").input) for name in read.node(other.output[0], "Add").input
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
    found = set()
    for node in graph.proto.graph.node:
        if node.op_type == "LessOrEqual":
            try:
                read.node(node.input[0], "Abs")
                found.add(int(read.value(node.input[1])))
            except BROKEN:
                continue
    expected = {config.window} if config.window else set()
    if found != expected:
        yield f"distances are compared with {sorted(found)}, {sorted(expected)} expected"
