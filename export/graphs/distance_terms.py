"""Terms of attention's scores by distance, in the body of a Scan over blocks of queries: what
`by_distance` in model/disentangled.py computes. Knows ONNX alone.

B batch, S places of keys, H heads of e dimensions, in P parts; G blocks of w queries, R vectors of
distances. Nothing is gathered by query and key: a product has a column for each distance, and its
rows are shifted by reading them with another length.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from addnorm.export.graphs.nodes import Nodes, attribute

C2P, P2C = ".c2p", ".p2c"  # ends of the names of what picks a table's rows


class DistanceTerms(NamedTuple):
    """The parts of such terms. Tables: "" where there is no such term."""

    keys: str  # [R, H * e]
    queries: str  # [R, H * e]
    rows: str  # [G, L] of `keys`, for each column
    tiles: str  # [G, G, 2 * w] of `queries`

    @classmethod
    def read(cls, body: GraphProto, outside: Mapping[str, str]) -> "DistanceTerms | None":
        """Reads them from the body of a Scan. outside: its inputs, by their names within."""
        made_by = {name: node for node in body.node for name in node.output}
        gathers = {node.name[-len(C2P) :]: node for node in body.node if node.op_type == "Gather"}
        keys, queries = (
            made_by[gathers[name].input[0]].input[0] if name in gathers else ""
            for name in (C2P, P2C)
        )
        *_, rows, tiles = ["", "", *outside.values()]
        return cls(keys, queries, rows, tiles) if keys or queries else None


class TermsOfBlock:
    """Writes them for one block of queries."""

    def __init__(self, block: Nodes, n_heads: int, parts: int, width: str) -> None:
        """width: `[1]`, w."""
        self._block, self._n_heads, self._parts = block, n_heads, parts
        self._width, self._before = width, block.make("Sub", width, [1])

    def c2p(self, queries: Sequence[str], table: str, rows: str) -> str:
        """queries `[B, H, w, e / P]`, table `[R * H * P, e / P]`, rows `[L]` -> `[B, H, w, S]`"""
        make = self._block.make
        products = [
            self._product(query, table, self._by_head(rows, part, 1), C2P)
            for part, query in enumerate(queries)
        ]
        columns = make("Sub", make("Shape", rows), self._width)
        return self._skew(self._sum(products), columns, 4)

    def p2c(self, keys: Sequence[str], table: str, tiles: str) -> str:
        """keys `[B, H, G, w, e / P]`, table `[R * H * P, e / P]`, tiles `[G, 2 * w]` ->
        `[B, H, w, S]`"""
        make = self._block.make
        products = [
            self._product(key, table, self._by_head(tiles, part, 2), P2C)
            for part, key in enumerate(keys)
        ]
        by_tile = self._skew(self._sum(products), self._width, 5)  # [B, H, G, w keys, w queries]
        shape = make("Concat", [0, 0, -1], self._width, axis=0)
        return make("Transpose", make("Reshape", by_tile, shape), perm=[0, 1, 3, 2])

    def _by_head(self, rows: str, part: int, rank: int) -> tuple[str, list[int]]:
        """Rows of all heads, of this rank -> of a part of each head, heads first; and how what they
        pick is transposed."""
        make, count = self._block.make, self._n_heads * self._parts
        firsts = (np.arange(self._n_heads) * self._parts + part).reshape(-1, *[1] * rank)
        cells = make("Add", make("Mul", make("Unsqueeze", rows, [0]), count), firsts)
        return cells, [*range(rank), rank + 1, rank]

    def _product(self, x: str, table: str, cells: tuple[str, list[int]], name: str) -> str:
        """x `[.., n, e / P]` times rows `[.., L]` of the table -> `[.., n, L]`"""
        block, (rows, turned) = self._block, cells
        picked = block.make("Gather", table, rows, axis=0)
        block.nodes[-1].name = f"{picked}{name}"
        return block.make("MatMul", x, block.make("Transpose", picked, perm=turned))

    def _sum(self, products: Sequence[str]) -> str:
        total = products[0]
        for product in products[1:]:
            total = self._block.make("Add", total, product)
        return total

    def _skew(self, x: str, columns: str, rank: int) -> str:
        """`[.., w, L]` -> `[.., w, columns]`: row i from its column w - 1 - i on."""
        make, leading = self._block.make, [0] * (rank - 2)
        flat = make("Reshape", x, [*leading, -1])
        cut = make("Slice", flat, self._before, [-1], [rank - 2])
        rows = make("Reshape", cut, make("Concat", leading, self._width, [-1], axis=0))
        return make("Slice", rows, [0], columns, [rank - 1])


def plain_terms(
    attention: NodeProto, q: str, k: str, terms: DistanceTerms
) -> tuple[list[NodeProto], str]:
    """Nodes that make the bias of an Attention of one block, and its name: q `[B, w, H * e]`, k
    `[B, S, H * e]` -> `[B, H, w, S]`."""
    block = Nodes(f"{attention.name}.terms.")
    make, n_heads = block.make, attribute(attention, "q_num_heads", 0)
    width, d_model = (make("Shape", q, start=axis, end=axis + 1) for axis in (1, 2))
    dims = make("Div", d_model, [n_heads])
    writer, summands = TermsOfBlock(block, n_heads, 1, width), []
    of_heads = make("Concat", [-1], dims, axis=0)
    if terms.keys:
        by_head = make("Reshape", q, [0, 0, n_heads, -1])
        query = make("Transpose", by_head, perm=[0, 2, 1, 3])
        table = make("Reshape", terms.keys, of_heads)
        summands.append(writer.c2p([query], table, terms.rows))
    if terms.queries:
        shape = make("Concat", [0, -1], width, [n_heads], dims, axis=0)
        key = make("Transpose", make("Reshape", k, shape), perm=[0, 3, 1, 2, 4])
        table = make("Reshape", terms.queries, of_heads)
        summands.append(writer.p2c([key], table, terms.tiles))
    total = make("Add", *summands) if len(summands) > 1 else summands[0]
    # in fp16 the rest of the block is
    scale = make("CastLike", attribute(attention, "scale", 1.0), total)
    bias = make("Mul", total, scale)
    constants = [
        helper.make_node("Constant", [], [name], name, value=numpy_helper.from_array(array))
        for name, array in block.constants.items()
    ]
    return [*constants, *block.nodes], bias
