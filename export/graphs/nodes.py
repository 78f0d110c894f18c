"""Writes ONNX nodes one after the other. Knows ONNX alone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

Array = NDArray[Any]
PREFIX = "portable."  # of all names that are made here


class Nodes:
    """Nodes in their order, and the constants that they read.

    Equal nodes are made once: what layers have in common they share.
    """

    def __init__(self, scope: str = "", constants: dict[str, Array] | None = None) -> None:
        """scope, constants: of a graph within another, its name and the other's constants."""
        self.nodes: list[NodeProto] = []
        self.constants = {} if constants is None else constants
        self._prefix = f"{PREFIX}{scope}"
        self._made: dict[tuple[str, ...], str] = {}

    def make(self, operator: str, *inputs: Any, to: str = "", **attributes: Any) -> str:
        """The name of what the operator makes, `to` if given.

        inputs: names; numbers and lists become constants, int64 or float32.
        """
        names = [
            operand if isinstance(operand, str) else self._number(operand) for operand in inputs
        ]
        key = (operator, *names, repr(attributes))
        if to or key not in self._made:
            output = to or f"{self._prefix}{operator}_{len(self.nodes)}"
            self.nodes.append(helper.make_node(operator, names, [output], output, **attributes))
            self._made[key] = output
        return self._made[key]

    def constant(self, name: str, array: Array) -> str:
        """The whole name of a constant."""
        self.constants[f"{PREFIX}{name}"] = array
        return f"{PREFIX}{name}"

    def _number(self, number: Any) -> str:
        array = np.asarray(number)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        return self.constant(str(array.tolist()).replace(" ", ""), array)


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """default: of the operator, where the node does not say."""
    values = (helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name)
    return next(values, default)


def read_by(node: NodeProto) -> Iterator[str]:
    """Names of values that the node and its graphs read."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from read_by(inner)


def leading_to(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """Without the nodes that none of these values needs."""
    read, needed = {*outputs}, list[NodeProto]()
    for node in reversed(nodes):
        if read.intersection(node.output):
            read.update(read_by(node))
            needed.append(node)
    return needed[::-1]
