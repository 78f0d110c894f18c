"""Follows values through the nodes of a graph. Knows nothing of the exporter."""

from typing import Any

from numpy.typing import NDArray
from onnx import GraphProto, NodeProto

from addnorm.export.graphs.model_file import Graph

Array = NDArray[Any]


class Unlike(Exception):
    """A node is not what the formula has there. The message says which."""


# what reading a node raises that lacks an input, an attribute or a number
BROKEN = (Unlike, StopIteration, IndexError, TypeError, ValueError)


class Reader:
    """The nodes and small constants of a graph, and of a graph within it."""

    def __init__(self, graph: Graph, inner: GraphProto | None = None) -> None:
        self._graph = graph
        nodes = [*graph.proto.graph.node, *(inner.node if inner else [])]
        self._nodes = nodes
        self._made_by: dict[str, NodeProto] = {name: node for node in nodes for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.proto.graph.initializer}

    def node(self, name: str, operator: str) -> NodeProto:
        """The node that makes a value. Unlike if it is another operator."""
        node = self._made_by.get(name)
        if node is None or node.op_type != operator:
            producer = node.op_type if node else "nothing"
            raise Unlike(f"{name} is computed by {producer}, not by {operator}")
        return node

    def producer(self, name: str) -> NodeProto:
        """The node that makes a value. Unlike if there is none."""
        if name not in self._made_by:
            raise Unlike(f"{name} is computed by nothing")
        return self._made_by[name]

    def is_constant(self, name: str) -> bool:
        return name in self._constants

    def readers(self, name: str) -> list[NodeProto]:
        """The nodes that read a value."""
        return [node for node in self._nodes if name in node.input]

    def value(self, name: str) -> Array:
        if name not in self._constants:
            raise Unlike(f"{name} is not a constant")
        return self._graph.value(self._constants[name])

    def uncast(self, name: str) -> str:
        """The value before it was cast to another type."""
        node = self._made_by.get(name)
        return str(node.input[0]) if node is not None and node.op_type == "Cast" else name

    def chain(self, name: str, *operators: str) -> list[NodeProto]:
        """Nodes that make a value, each of what the next one makes, along first inputs."""
        nodes = []
        for operator in operators:
            nodes.append(self.node(name, operator))
            name = nodes[-1].input[0]
        return nodes
