"""Attention over packed rows in portable operators: exp(scores - max) [V | 1], then one division.

Queries, keys and values are gathered by head, straight from the rows, and what comes out goes
straight back to rows. No copy is transposed: onnxruntime makes the Transpose of the keys a part of
their product.

B batch, S grid width, N rows, H heads of e dimensions, in P parts; G blocks of w queries. K heads
have keys and values, and g = H / K heads of queries read each of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from addnorm.export.graphs.distance_terms import DistanceTerms, TermsOfBlock
from addnorm.export.graphs.nodes import PREFIX, Array, Nodes, attribute
from addnorm.model.grid import MASKED

MAX_TERMS = 128  # of a dot product; longer ones onnxruntime splits where the grid's width says


def num_parts(head_dims: int) -> int:
    """The number of equal parts of a head's dot products, each of MAX_TERMS terms at most."""
    fewest = -(-head_dims // MAX_TERMS)
    return next(parts for parts in range(fewest, head_dims + 1) if head_dims % parts == 0)


class PackedAttention:
    """One Scan over blocks of Attention as an exporter wrote it, and the nodes in its place."""

    def __init__(
        self,
        nodes: Nodes,
        scan: NodeProto,
        made_by: Mapping[str, NodeProto],
        value: Callable[[str], Array],
    ) -> None:
        """nodes: where to write. made_by: the node of each output so far. value: of a constant."""
        self._nodes, self._scan = nodes, scan
        body = next(entry.g for entry in scan.attribute if entry.name == "body")
        attention = next(node for node in body.node if node.op_type == "Attention")
        outside = dict(zip((entry.name for entry in body.input), scan.input, strict=True))
        read = [outside.get(name, name) for name in attention.input] + [""] * 7
        key = made_by[read[1]]
        table = made_by[key.input[0]]  # [(g + 2) * N, K * e], of `qkv` [N, (H + 2K) * e]
        self._n_heads: int = attribute(attention, "q_num_heads", 0)
        self._kv_heads: int = attribute(attention, "kv_num_heads", 0)
        self._share = self._n_heads // self._kv_heads
        self._qkv, self._query_cells, self._key_cells = (
            table.input[0], made_by[read[0]].input[1], key.input[1],
        )  # fmt: skip
        if self._share > 1:  # of a query's g cells in the table the first, [G, B, w]
            gather = made_by[made_by[read[0]].input[0]]
            self._query_cells = made_by[made_by[gather.input[1]].input[0]].input[0]
        self._in_bands = read[1] == outside.get(attention.input[1])
        self._terms = DistanceTerms.read(body, outside)
        self._bias = "" if self._terms else read[3]  # [G, B or 1, H or 1, w, S or K]
        self._num_keys = read[6]  # [B]; "" where the bias masks all that a query must not see
        # [h] heads whose softmax a lens shows
        gathers = [node for node in body.node if node.op_type == "Gather"]
        self._shown = next((node.input[1] for node in gathers if attribute(node, "axis", 0)), "")
        self._dims = int(value(table.input[1])[-1]) // self._kv_heads
        self._scale: float = attribute(attention, "scale", 1 / math.sqrt(self._dims))
        self._parts = num_parts(self._dims)
        self._width = self._dims // self._parts  # of a part
        self.contexts: list[str] = []  # of each part, [G, B, H, w, e / P + 1]

    def write(self) -> None:
        """The Scan, from rows to `contexts` and the softmax that a lens shows."""
        parts = range(self._parts)
        self.contexts = [f"{PREFIX}{self._scan.output[0]}.{part}" for part in parts]
        firsts = np.arange(self._n_heads)[:, None] * self._parts  # of each head of queries, [H, 1]
        queries = [self._gather(self._query_cells, firsts + part) for part in parts]
        keys = [self._gather(self._key_cells, self._shared_offsets(part)) for part in parts]
        values = [self._values(part) for part in parts]
        block = _Block(self._scan.name, self._nodes.constants)
        cut_inputs = [*queries, *(keys + values if self._in_bands else [])]
        query_blocks = [block.add_input(f"queries_{part}") for part in parts]
        if self._in_bands:
            keys = [block.add_input(f"keys_{part}") for part in parts]
            values = [block.add_input(f"values_{part}") for part in parts]
        products = block.products(query_blocks, keys)
        if self._terms:
            products += self._by_distance(block, query_blocks, keys, self._terms)
        scores = block.scores(products, self._scale)
        if self._bias:
            scores = block.make("Add", scores, block.add_input("bias"))
        if self._mask:
            scores = block.make("Add", scores, self._mask)
        block.attend(scores, values, self._shown)
        inputs = [*cut_inputs, *([self._bias] if self._bias else []), *(self._terms or ())[2:]]
        outputs = [*self.contexts, *self._scan.output[1:]]
        self._nodes.nodes.append(block.scan(inputs, outputs))

    def _by_distance(
        self, block: "_Block", queries: Sequence[str], keys: Sequence[str], terms: DistanceTerms
    ) -> list[str]:
        """Both terms of a block's scores, `[B, H, w, S]`, not scaled."""
        make, scores = self._nodes.make, []
        width = make("Shape", self._query_cells, start=2, end=3)
        rows, tiles = block.add_input("rows", rank=1), block.add_input("tiles", rank=2)
        writer = TermsOfBlock(block, self._n_heads, self._parts, width)
        if terms.keys:
            table = make("Reshape", terms.keys, [-1, self._width])
            scores.append(writer.c2p(queries, table, rows))
        if terms.queries:
            table = make("Reshape", terms.queries, [-1, self._width])
            shape = make("Concat", [0, 0, -1], width, [self._width], axis=0)
            by_tile = [make("Reshape", key, shape) for key in keys]
            scores.append(writer.p2c(by_tile, table, tiles))
        return scores

    def _shared_offsets(self, part: int) -> Array:
        """`[H, 1]`: where a part of the head of keys, or of values, that each head of queries reads
        lies behind the first."""
        heads: Array = np.arange(self._n_heads)[:, None] // self._share
        return heads * self._parts + part

    def _gather(self, cells: str, firsts: Array) -> str:
        """cells `[..., n]` of rows of K * e -> `[..., H, n, e / P]`"""
        table = self._nodes.make("Reshape", self._qkv, [-1, self._width])
        return self._nodes.make("Gather", table, self._by_head(cells, firsts))

    def _by_head(self, cells: str, firsts: Array) -> str:
        """cells `[..., n]` of rows of K heads -> `[..., H, n]` of a part of each head."""
        make = self._nodes.make
        starts = make("Mul", make("Unsqueeze", cells, [-2]), self._kv_heads * self._parts)
        return make("Add", starts, firsts)

    def _values(self, part: int) -> str:
        """-> `[B, H, S, e / P + 1]`: the values and a column of ones; zeros at pads, which then
        add nothing to a sum."""
        make, count, width = self._nodes.make, self._kv_heads * self._parts, self._width
        rows = make("Reshape", self._qkv, [-1, (self._share + 2) * count, width])
        # negative pads cut: queries and keys go, and a last column comes
        table = make("Pad", rows, [0, -(self._share + 1) * count, 0, 0, 0, 1], 1.0)
        cells = make("Div", self._key_cells, self._share + 2)  # (g + 2) * row + g -> row
        if self._num_keys:
            # row 0 is the filler's, which no sequence reads; pads read it, and find zeros
            zeros = self._nodes.constant("zeros", np.zeros((1, count, width + 1), np.float32))
            table = make("ScatterND", table, [[0]], zeros)
            cells = make("Where", self._is_token, cells, 0)
        table = make("Reshape", table, [-1, width + 1])
        return make("Gather", table, self._by_head(cells, self._shared_offsets(part)))

    @cached_property
    def _is_token(self) -> str:
        """`[B, S]`: whether a place of attention's grid holds a token."""
        make = self._nodes.make
        seq = make("Squeeze", make("Shape", self._key_cells, start=1, end=2))
        return make("Less", make("Range", 0, seq, 1), make("Unsqueeze", self._num_keys, [1]))

    @cached_property
    def _mask(self) -> str:
        """`[B, 1, 1, S]`, or "". Only a bias and terms of distances need it: they depend on the
        place, so a pad's score could be the largest. Without them, pads score as their sequence's
        first token."""
        if not (self._bias or self._terms) or not self._num_keys:
            return ""
        mask = self._nodes.make("Where", self._is_token, 0.0, MASKED)
        return self._nodes.make("Unsqueeze", mask, [1, 2])

    def to_rows(self, cells: str, rows: str) -> None:
        """cells `[N]`, rows' places in [G, B, w] -> `rows` `[N, H * e]`."""
        make, width, parts = self._nodes.make, self._width, []
        block_width = make("Squeeze", make("Shape", self._query_cells, start=2, end=3))
        block = make("Div", cells, block_width)
        place = make("Sub", cells, make("Mul", block, block_width))
        firsts = make("Mul", make("Unsqueeze", block, [1]), self._n_heads)
        starts = make("Mul", make("Add", firsts, np.arange(self._n_heads)), block_width)
        by_head = make("Add", starts, make("Unsqueeze", place, [1]))  # [N, H] of [G, B, H, w]
        for context in self.contexts:  # divided by its last column, [N, H, e / P]
            both = make("Gather", make("Reshape", context, [-1, width + 1]), by_head)
            sums = make("Slice", both, [width], [width + 1], [2])
            parts.append(make("Div", make("Slice", both, [0], [width], [2]), sums))
        joined = make("Concat", *parts, axis=2) if len(parts) > 1 else parts[0]
        make("Reshape", joined, [-1, self._n_heads * self._dims], to=rows)


class _Block(Nodes):
    """The body of a Scan: one block of queries `[B, H, w, e / P]`. It reads keys and values where
    they are."""

    def __init__(self, name: str, constants: dict[str, Array]) -> None:
        super().__init__(f"{name}.", constants)
        self._name = name
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[str] = []

    def add_input(self, name: str, rank: int = 0) -> str:
        """The block of one more input of the Scan: floats, or whole numbers if it has a rank."""
        full_name = f"{PREFIX}{self._name}.{name}"
        self._inputs.append(
            helper.make_tensor_value_info(full_name, TensorProto.INT64, [None] * rank)
            if rank
            else _floats(full_name)
        )
        return full_name

    def products(self, queries: Sequence[str], keys: Sequence[str]) -> list[str]:
        """queries `[B, H, w, e / P]`, keys `[B, H, S, e / P]` -> of each part `[B, H, w, S]`."""
        return [
            self.make("MatMul", query, self.make("Transpose", key, perm=[0, 1, 3, 2]))
            for query, key in zip(queries, keys, strict=True)
        ]

    def scores(self, products: Sequence[str], scale: float) -> str:
        """Products are added in their order."""
        total = products[0]
        for product in products[1:]:
            total = self.make("Add", total, product)
        return self.make("Mul", total, scale)

    def attend(self, scores: str, values: Sequence[str], heads: str) -> None:
        """values `[B, H, S, e / P + 1]`: the last column is 1. heads: those shown, or ""."""
        largest = self.make("ReduceMax", scores, [-1], keepdims=1)
        weights = self.make("Exp", self.make("Sub", scores, largest))
        self._outputs = [self.make("MatMul", weights, part) for part in values]
        if heads:
            sums = self.make("Slice", self._outputs[0], [-1], [2**31], [3])
            chosen = [self.make("Gather", rows, heads, axis=1) for rows in (weights, sums)]
            self._outputs.append(self.make("Div", *chosen))

    def scan(self, inputs: Sequence[str], outputs: Sequence[str]) -> NodeProto:
        """inputs `[G, ...]` are cut along axis 0, outputs joined along it."""
        output_infos = list(map(_floats, self._outputs))
        body = helper.make_graph(self.nodes, f"{self._name}.body", self._inputs, output_infos)
        return helper.make_node(
            "Scan", inputs, outputs, self._name, body=body, num_scan_inputs=len(inputs)
        )


def _floats(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4)
