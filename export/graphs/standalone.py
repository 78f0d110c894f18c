"""A bundle's graphs -> one graph as other programs want it: the names of outputs that optimum
writes, heads and pooling inside, no statistics of norms, the lowest opset that has its operators.
Knows ONNX; no PyTorch, no bundles.

Pooling makes the bits that the server makes of the same rows (service/engine/heads.py): tokens are
added one after the other, and the squares of a vector in halves.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from addnorm.export.graphs.graph import BODY_OUTPUTS, UnfitError
from addnorm.export.graphs.model_file import Array, Graph, with_nodes
from addnorm.export.graphs.nodes import Nodes, leading_to
from addnorm.model.config import Pick
from addnorm.service.engine.heads import MIN_LENGTH

# of ONNX: Gelu is new in 20, which onnxruntime has from 1.17 on; with the format of files
OPSETS = {20: 9, 21: 10, 22: 10, 23: 10, 24: 10}
HIDDEN, LOGITS, EMBEDDING = "last_hidden_state", "logits", "sentence_embedding"
SPANS = "start_logits", "end_logits"  # of question answering: the two logits, `[B, S]` each
GRID = ["batch_size", "sequence_length"]


class Headed(NamedTuple):
    """An output that is made of rows: which rows, and the head that runs on them, if any."""

    pick: Pick
    width: int
    head: Graph | None = None


def make_standalone(
    body: Graph,
    logits: Headed | None,
    embedding: Headed | None,
    normalize: bool,
    spans: bool = False,
) -> Graph:
    """The outputs are `logits`, if there is such a head, or with `spans` those of SPANS; else
    `last_hidden_state` `[B, S, d]` and, if it is given, `sentence_embedding` `[B, width]`; of
    length 1 with `normalize`.

    UnfitError for a graph that needs a later opset than this version writes.
    """
    writing = _Writing(body)
    if logits:
        outputs = [writing.add_output(LOGITS, logits)]
        outputs = writing.columns(LOGITS, SPANS) if spans else outputs
    else:
        outputs = [helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, [*GRID, writing.width])]
        outputs += [writing.add_output(EMBEDDING, embedding, normalize)] if embedding else []
    return writing.graph(outputs)


class _Writing(Nodes):
    """The body's nodes, and those that follow them."""

    def __init__(self, body: Graph) -> None:
        super().__init__(scope="standalone.")
        self._body, self._heads = body, dict[str, Array]()
        (hidden,) = (value for value in body.proto.graph.output if value.name == BODY_OUTPUTS[0])
        self.width = hidden.type.tensor_type.shape.dim[-1].dim_value
        self.nodes += _rename_values(body, {BODY_OUTPUTS[0]: HIDDEN})

    def add_output(self, output: str, source: Headed, normalize: bool = False) -> ValueInfoProto:
        """Writes an output."""
        is_of_tokens = source.pick == "every"
        rows = self._every() if is_of_tokens else self._pick_rows(source.pick)
        if source.head:
            prefix = f"{output}."
            (answer,) = (value.name for value in source.head.proto.graph.output)
            constants = source.head.constants()
            names = {name: prefix + name for name in constants}
            self.nodes += _rename_values(source.head, names | {"rows": rows}, prefix)
            self._heads |= {prefix + name: value for name, value in constants.items()}
            rows = prefix + answer
        if normalize:
            rows = self.make("Div", rows, self._length(rows, source.width))
        if is_of_tokens:
            shape = self.make(
                "Concat", self.make("Shape", "attention_mask"), [source.width], axis=0
            )
            self.make("Reshape", rows, shape, to=output)
        else:
            self.make("Identity", rows, to=output)
        axes = GRID if is_of_tokens else GRID[:1]
        return helper.make_tensor_value_info(output, TensorProto.FLOAT, [*axes, source.width])

    def columns(self, rows: str, names: Sequence[str]) -> list[ValueInfoProto]:
        """Writes an output for each number of rows `[B, S, n]`."""
        for index, name in enumerate(names):
            self.make("Gather", rows, index, axis=2, to=name)
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, GRID) for name in names]

    def _every(self) -> str:
        return self.make("Reshape", HIDDEN, [-1, self.width])

    def _pick_rows(self, pick: Pick) -> str:
        """A vector for each sequence `[B, d]`. Pads are zeros, which add nothing."""
        is_real = self.make("Not", self.make("Equal", "attention_mask", 0))  # [B, S]
        real = self.make("Where", is_real, 1.0, 0.0)
        places = self.make("Mul", self.make("CumSum", real, 1), real)  # from 1; 0 at pads
        count = self.make("ReduceSum", real, [1])  # [B, 1]
        if pick in ("first", "last"):
            marks = real if pick == "first" else places
            picks = self.make("ArgMax", marks, axis=1)  # the first of the largest
            return self.make("GatherND", HIDDEN, picks, batch_dims=1)
        if pick == "max":
            real_rows = self.make("Where", self.make("Unsqueeze", is_real, [2]), HIDDEN, -np.inf)
            highest = self.make("Add", self.make("ReduceMax", real_rows, [1], keepdims=0), 0.0)
            return self.make("Where", self.make("Greater", count, 0.0), highest, 0.0)
        rows, divisor = HIDDEN, self.make("Max", count, 1.0)
        if pick == "weighted_mean":
            rows = self.make("Mul", HIDDEN, self.make("Unsqueeze", places, [2]))
            twice = self.make("Mul", divisor, self.make("Add", divisor, 1.0))
            divisor = self.make("Div", twice, 2.0)
        elif pick == "mean_sqrt":
            divisor = self.make("Sqrt", divisor)
        else:
            assert pick == "mean", pick
        total = self.make("Gather", self.make("CumSum", rows, 1), -1, axis=1)
        return self.make("Div", total, divisor)

    def _length(self, vectors: str, width: int) -> str:
        """`[B, width]` -> `[B, 1]`, as `row_sums` in service/arithmetic.py adds."""
        values = self.make("Mul", vectors, vectors)
        while width > 1:
            half = width // 2
            folded = self.make(
                "Add", self._columns(values, 0, half), self._columns(values, half, 2 * half)
            )
            if width % 2:
                last = self._columns(values, width - 1, width)
                first = self.make("Add", self._columns(folded, 0, 1), last)
                unpaired = [self._columns(folded, 1, half)] if half > 1 else []
                folded = self.make("Concat", first, *unpaired, axis=1)
            values, width = folded, half
        return self.make("Max", self.make("Sqrt", values), float(MIN_LENGTH))

    def _columns(self, values: str, start: int, end: int) -> str:
        return self.make("Slice", values, [start], [end], [1])

    def graph(self, outputs: list[ValueInfoProto]) -> Graph:
        nodes = leading_to(self.nodes, [value.name for value in outputs])
        body_names = {value.name for value in self._body.proto.graph.initializer}
        new_constants = {
            name: value for name, value in self.constants.items() if name not in body_names
        }
        standalone = with_nodes(self._body, nodes, new_constants | self._heads)
        model = standalone.proto
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        for value in model.graph.input:
            for size, name in zip(value.type.tensor_type.shape.dim, GRID, strict=True):
                size.dim_param = name
        (opset,) = (entry for entry in model.opset_import if not entry.domain)
        problem: Exception | None = None
        for opset.version, model.ir_version in OPSETS.items():
            try:
                onnx.checker.check_model(standalone.without_values())
            except onnx.checker.ValidationError as error:
                problem = error
            else:
                return standalone
        raise UnfitError(f"the graph does not fit opset {opset.version}: {problem}")


def _rename_values(graph: Graph, names: dict[str, str], prefix: str = "") -> Iterator[NodeProto]:
    """The graph's nodes with other names of values. prefix: of those that are not among names."""
    for node in graph.copy().proto.graph.node:
        for values in (node.input, node.output):
            values[:] = [name and names.get(name, prefix + name) for name in values]
        node.name = prefix + node.name
        yield node
