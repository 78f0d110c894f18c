"""Compares the constants of an authors' graph with the program that PyTorch followed. Knows nothing
of what writes graphs, so it shows their mistakes.

    weights    every float constant: the bits of a weight, or what the program computes of weights
               and numbers alone
    numbers    every number of the program's code, such as an eps, as often as there; and by which
               formula each Gelu is computed

Answers that are compared hardly show these: an eps times 30, a GELU without its cube.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import AttributeProto
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from addnorm.export.certificate.graph import structure
from addnorm.export.graphs.model_file import Graph, as_bytes
from addnorm.export.graphs.nodes import attribute

Array = NDArray[Any]
# of the largest number: float32 that two libraries compute of the same weights
ROUNDING = 4 * 2.0**-23
NEUTRAL = (-1, 0, 1)  # the exporter may write these in other ways
FLOATS = (torch.float16, torch.float32, torch.float64)
# operators whose numbers stand in the graph as they are
KEPT = {
    "add", "sub", "rsub", "mul", "div", "pow", "clamp", "clamp_min", "clamp_max", "maximum",
    "minimum", "layer_norm", "rms_norm", "group_norm", "scaled_dot_product_attention",
    "masked_fill", "where", "leaky_relu", "elu",
}  # fmt: skip


def compare(
    graph: Graph, program: ExportedProgram, weights: Mapping[str, Tensor]
) -> Iterator[tuple[str, list[str]]]:
    """Each comparison, and what differs, in words. weights: of the authors' own module, by their
    names in the program."""
    traced = _Traced(program, weights)
    yield "weights", [*_weights(graph, traced)]
    yield "numbers", [*_numbers(graph, traced)]


class _Traced:
    """The program's nodes, and the values of those that no input reaches."""

    def __init__(self, program: ExportedProgram, weights: Mapping[str, Tensor]) -> None:
        self.nodes = [node for node in program.graph.nodes if node.op == "call_function"]
        tensors = {**program.constants, **program.state_dict}
        # a table that grows when the module is called is of another length in a copy
        tensors |= {name: x for name, x in weights.items() if _shape(tensors.get(name)) == x.shape}
        self.weights = {
            spec.arg.name: tensors[spec.target]
            for spec in program.graph_signature.input_specs
            if spec.target in tensors
        }
        self.values: dict[str, Any] = dict(self.weights)
        constant = {*self.values}
        for node in self.nodes:
            # torch.vmap leaves calls that open and close its levels, which no one else may run
            is_of_vmap = getattr(node.target, "__module__", "").startswith("torch._functorch")
            if not is_of_vmap and all(x.name in constant for x in node.all_input_nodes):
                constant.add(node.name)
        if any(_is_mutable(node) for node in self.nodes if node.name in constant):
            self.values = {name: weight.clone() for name, weight in self.weights.items()}
        with torch.no_grad():
            for node in self.nodes:
                if node.name in constant:
                    args, kwargs = fx.node.map_arg(
                        (node.args, node.kwargs), lambda source: self.values[source.name]
                    )
                    self.values[node.name] = node.target(*args, **kwargs)

    def arrays(self) -> Iterator[tuple[bool, Array]]:
        """The values and their transposes, and of each whether its numbers are computed, or those
        of a weight. Complex numbers are pairs, as in ONNX."""
        stored = {weight.untyped_storage().data_ptr() for weight in self.weights.values()}
        leaves = (leaf for value in self.values.values() for leaf in tree_leaves(value))
        for tensor in (
            *(leaf for leaf in leaves if isinstance(leaf, Tensor)),
            *self._norm_products(),
        ):
            real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            if real.dtype in FLOATS:
                is_computed = tensor.untyped_storage().data_ptr() not in stored
                array = real.detach().cpu().numpy()
                yield is_computed, array
                if array.ndim > 1:
                    yield is_computed, np.ascontiguousarray(np.swapaxes(array, -1, -2))

    def _norm_products(self) -> Iterator[Tensor]:
        """Weights and biases with the norm over a batch that follows them: the exporter writes both
        as one."""
        for node in self.nodes:
            source = node.args[0] if _name(node) == "batch_norm" else None
            if not isinstance(source, fx.Node):
                continue
            weight, bias = (self._value(source, place) for place in (1, 2))
            gamma, beta, mean, variance = (self._value(node, place) for place in range(1, 5))
            if weight is not None:
                scale = (1 if gamma is None else gamma) / (variance + node.args[7]).sqrt()
                yield weight * scale.reshape([-1] + [1] * (weight.dim() - 1))
                moved = -mean if bias is None else bias - mean
                yield moved * scale + (0 if beta is None else beta)

    def _value(self, node: fx.Node, place: int) -> Any:
        """An argument, if it is a tensor that no input reaches."""
        argument = node.args[place] if place < len(node.args) else None
        return self.values.get(argument.name) if isinstance(argument, fx.Node) else None


def _weights(graph: Graph, traced: _Traced) -> Iterator[str]:
    """Float constants of several numbers that nothing in the program has."""
    constants = {
        name: array
        for name, array in graph.constants().items()
        if array.dtype.kind == "f" and array.size > 1
    }
    sizes = {array.size for array in constants.values()}
    digests = {_digest(array) for _, array in traced.arrays() if array.size in sizes}
    unknown = {name: array for name, array in constants.items() if _digest(array) not in digests}
    sizes = {array.size for array in unknown.values()}
    computed = [
        array for is_computed, array in traced.arrays() if is_computed and array.size in sizes
    ]
    for name, array in unknown.items():
        if not any(_is_near(array, near) for near in computed):
            yield f"{name} {[*array.shape]} is neither a weight nor computed from weights alone"


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else None


def _digest(array: Array) -> bytes:
    return sha256(as_bytes(np.ascontiguousarray(array))).digest()


def _is_near(constant: Array, array: Array) -> bool:
    """True if two libraries may have computed both of the same numbers."""
    if constant.size != array.size:
        return False
    difference = np.abs(constant.reshape(-1) - array.reshape(-1)).max()
    return bool(difference <= ROUNDING * np.abs(array).max())


def _numbers(graph: Graph, traced: _Traced) -> Iterator[str]:
    """Numbers that are fewer than in the program's code."""
    counts = Counter(_numbers_of_graph(graph))
    # the exporter computes equal nodes once
    expected = Counter(number for _, number in {*_numbers_of_program(traced)})
    for number, count in expected.items():
        if counts[number] < count:
            yield f"{number} occurs {counts[number]} times, {count} expected"


def _numbers_of_graph(graph: Graph) -> Iterator[Hashable]:
    constants = {
        name: float(np.float32(array.item()))
        for name, array in graph.constants().items()
        if array.dtype.kind == "f" and array.size == 1
    }
    for node in structure.nodes(graph.proto.graph):
        yield from (constants[name] for name in node.input if name in constants)
        yield from (number.f for number in node.attribute if number.type == AttributeProto.FLOAT)
        if node.op_type == "Gelu":
            yield f"Gelu by {attribute(node, 'approximate', b'none').decode()}"


def _numbers_of_program(traced: _Traced) -> Iterator[tuple[Hashable, Hashable]]:
    """A key of the node that reads it, equal for those that compute the same, and the number. Of
    nodes that compute floats."""
    # the exporter keeps one of equal weights
    keys: dict[str, Any] = {
        name: f"{weight.shape} {weight.sum().item()}" for name, weight in traced.weights.items()
    }
    for node in traced.nodes:
        read = fx.node.map_arg(
            (node.args, node.kwargs), lambda source: keys.get(source.name, source)
        )
        keys[node.name] = key = hash((str(node.target), repr(read)))
        if node.name in traced.values or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if _name(node) == "gelu":
            yield key, f"Gelu by {node.kwargs.get('approximate', 'none')}"
        output = node.meta.get("val")
        if _name(node) in KEPT and isinstance(output, Tensor) and output.is_floating_point():
            for place, value in _operands(node, traced):
                number = float(np.float32(value))
                if np.isfinite(number) and number not in NEUTRAL:
                    yield (key, place), number


def _operands(node: fx.Node, traced: _Traced) -> Iterator[tuple[str, float]]:
    """The numbers that an operator computes with, by its names for them, not those of axes."""
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        value = traced.values.get(value.name) if isinstance(value, fx.Node) else value
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        is_operand = any(kind in str(argument.type) for kind in ("Tensor", "number", "float"))
        if is_operand and type(value) in (int, float):
            yield argument.name, value  # type: ignore[misc]


def _name(node: fx.Node) -> str:
    """The operator's name, the same for one that writes in place."""
    return node.target._opname.rstrip("_") if isinstance(node.target, torch._ops.OpOverload) else ""


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
