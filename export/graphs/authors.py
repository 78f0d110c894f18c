"""An authors' forward as one ONNX graph, and at which lengths it is the forward.

PyTorch's exporter follows one forward with symbolic sizes. Where the code asks something of a size
(`if n > 512`), it takes the branch of its example and notes a guard. At lengths that meet every
guard, the graph is the forward by construction. At a length that does not, the forward is followed
once more: if the graph is the same node by node, the question changed nothing; if not, the program
has two forwards and is refused. So a few lengths are compared, whatever the limit is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from addnorm.export.graphs.graph import UnfitError, export_head, export_module, silence_exporter
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.portable import make_portable
from addnorm.export.graphs.traceable import traceable
from addnorm.export.reference.original import as_found
from addnorm.export.reference.reference import (
    EXAMPLE,
    LastLayer,
    Reference,
    inputs_of,
    laid_out,
    pair,
)
from addnorm.export.reference.trace import plain_attention
from addnorm.service.engine.engine import TYPES
from addnorm.service.engine.own_engine import ANSWER, IDS, LENGTHS, VECTORS

MOST_TRACES = 4  # of forwards that turn out to be the same
# Lengths at which the forward is another one, such as where a module keeps the mask of its last
# call. Larger: more comparisons.
FEW_LENGTHS = 8
MOST_WORDS = 200  # characters of an error of PyTorch's exporter
SMALL = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
INPUTS = ("tokens", "types")  # of the forward that is followed
MODULE = "module"  # what its weights' names begin with


@dataclass(frozen=True)
class Guards:
    """The exporter's assumptions about the sizes of its inputs, as expressions in Python.

    tail: axes of the tokens behind `[B, S]`.
    """

    conditions: tuple[str, ...]
    tail: tuple[int, ...] = ()

    def hold(self, length: int) -> bool:
        """True if the forward of a sequence of this length is the one that was followed. PyTorch
        takes any size for at least 2: sequences of one token are always compared."""
        inputs = torch.empty(2, length, *self.tail, device="meta"), torch.empty(2, length)
        return all(
            ShapeEnv().evaluate_guards_expression(_by_place(condition), inputs)
            for condition in self.conditions
        )


def _by_place(condition: str) -> str:
    """The condition in the names that `ShapeEnv` has for inputs. Guards have their own names where
    Python was followed, and places where PyTorch's compiler followed it."""
    for place, name in enumerate(INPUTS):
        condition = condition.replace(f"L['{name}']", f"L['t{place}']")
    return re.sub(r"L\['flat_args'\]\[(\d)\]", r"L['t\1']", condition)


@dataclass(frozen=True)
class Exported:
    """program: the forward as PyTorch followed it. lengths: that must be compared. guards: of each
    forward that was followed; all are one.
    head: rows `[n, d]` to logits of a vocabulary, with equal bits on every processor."""

    graph: Graph
    program: ExportedProgram
    lengths: tuple[int, ...]
    guards: tuple[Guards, ...]
    head: Graph | None = None


class _SideBySide(nn.Module):
    """ids `[B, S]`, or vectors `[B, S, width]` -> the tensors side by side, in the row of every
    token."""

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        self.module, self._reference = reference.twin, reference

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Tensor:
        answer = self.module.forward(tokens, types)
        rows = [row.expand(-1, tokens.shape[1], -1) for row in laid_out(answer, self._reference)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)


def export_graph(reference: Reference) -> Exported:
    """UnfitError if PyTorch's exporter cannot follow the forward, or if it is another one at more
    than a few lengths."""
    longest = reference.longest
    first, program, guards = _follow(reference, min(EXAMPLE, longest))
    all_guards = [guards]
    while unmet_lengths := [
        n for n in range(2, longest + 1) if not any(g.hold(n) for g in all_guards)
    ]:
        length = unmet_lengths[len(unmet_lengths) // 2]
        try:
            graph, _, guards_of_length = _follow(reference, length)
            is_same = len(all_guards) < MOST_TRACES and _nodes(graph) == _nodes(first)
        except UnfitError:  # it is written for this length alone
            is_same = False
        if is_same:
            all_guards.append(guards_of_length)
        elif len(unmet_lengths) <= FEW_LENGTHS:
            break  # the comparison with the program at each of them decides
        else:
            raise UnfitError(
                f"{reference.name} branches on the length: its forward for {length} tokens"
                f" differs from its forward for {EXAMPLE}, and a graph can have only one:"
                f" {'; '.join(guards.conditions)}"
            )
    edges = {
        length + step
        for known_guards in all_guards
        for length in range(2, longest)
        if known_guards.hold(length) != known_guards.hold(length + 1)
        for step in (0, 1)
    }
    lengths = {min(length, longest) for length in (*LENGTHS, longest)} | edges | {*unmet_lengths}
    return Exported(
        first, program, tuple(sorted(lengths)), tuple(all_guards), _export_head(reference.head)
    )


def _export_head(head: LastLayer | None) -> Graph | None:
    if head is None:
        return None
    return make_portable(export_head(head, "logits", head.layer.in_features))


def _nodes(graph: Graph) -> list[bytes]:
    return [node.SerializeToString() for node in graph.proto.graph.node]


def _follow(reference: Reference, length: int) -> tuple[Graph, ExportedProgram, Guards]:
    """The graph, the program and the guards of the forward of two sequences of this length."""
    inputs, limits = inputs_of(reference.twin, pair(reference.limits, length)), reference.limits
    names = [VECTORS if limits.input_width else IDS, TYPES][: len(inputs)]
    axes = dict.fromkeys(range(2 if limits.max_positions > 1 else 1), Dim.DYNAMIC)
    shapes = dict.fromkeys(INPUTS[: len(inputs)], axes)
    try:
        with as_found(reference.twin), plain_attention(), traceable(), silence_exporter():
            program = _program(_SideBySide(reference), tuple(inputs), shapes)
            # Before decompositions, which drop them. `program.module()` checks the same at every
            # call, and shows them to nobody
            guards = Guards(tuple(program._guards_code), tuple(inputs[0].shape[2:]))
            graph = export_module(program, (), names, [ANSWER])
    except UnfitError:
        raise
    except Exception as error:  # of torch.export, which raises many kinds
        raise UnfitError(
            f"{reference.name} cannot be exported as a graph: {_why(error)}"
        ) from error
    if small := {
        SMALL[attribute.i]
        for node in graph.proto.graph.node
        for attribute in node.attribute
        if node.op_type == "Cast" and attribute.i in SMALL
    }:
        raise UnfitError(
            f"{reference.name} computes in {', '.join(sorted(small))}, as under torch.autocast,"
            " and a graph would round differently: leave it out in evaluation mode, for example"
            " with torch.autocast(..., enabled=self.training)"
        )
    return graph, program, guards


def _program(
    module: nn.Module, inputs: tuple[Tensor, ...], shapes: Mapping[str, Any]
) -> ExportedProgram:
    """Follows it in Python first, then by PyTorch's compiler, as torch.onnx does: that also follows
    numbers that Python makes of sizes, as `len(ids)`. Raises the first error if both fail."""
    first: Exception | None = None
    config: Any = torch.fx.experimental._config
    for strict in (False, True):
        try:
            # sizes of 1 are no constants
            with config.patch(backed_size_oblivious=True):
                return torch.export.export(
                    module, inputs, dynamic_shapes=dict(shapes), strict=strict
                )
        except Exception as error:
            first = first or error
    assert first
    raise first


def _why(error: BaseException) -> str:
    """The first cause of an error of PyTorch's exporter, in one line."""
    while error.__cause__:
        error = error.__cause__
    if isinstance(error, UnfitError):
        return str(error)
    if "DataDependent" in type(error).__name__:
        return "its forward branches on the values of ids or rows, which a graph cannot do"
    words = " ".join(str(error).split())
    if "['tokens'].size()[0] as dynamic but your code specialized" in words:
        return (
            "it turns the batch size into a Python number, as len(x) does: use x.shape[0], which"
            " can be traced"
        )
    if "['tokens'].size()[1] as dynamic but your code specialized" in words:
        return (
            "PyTorch's exporter can write it for one length only: forward turns the length into a"
            " Python number, as a loop over tokens does, or caches a table for the next call. Use"
            " operators that take whole sequences"
        )
    if match := re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", words):
        return f"ONNX has no operator {match[1]}: compute it with other operators"
    return (
        f"{type(error).__name__}: {words[:MOST_WORDS]}. Compute it differently in forward, or"
        " leave it out with reference=lambda x: ..."
    )
