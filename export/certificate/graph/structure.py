"""Compares two ONNX models node by node, whatever their values and nodes are called.

It knows ONNX alone and runs nothing. A value's key is a digest of all that leads to it: operator,
attributes, the inputs' keys, the constants' bytes. Two models with equal keys compute the same.
Only names and the order of nodes may differ. An attribute that states its default, swapped inputs
of an addition and a node that nothing reads are differences.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from addnorm.export.graphs.model_file import EXTERNAL, Graph, as_bytes

TENSOR_DATA = (
    "name", "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
    "string_data",
)  # fmt: skip
PLACE = ("name", "data_location", "external_data")
COMPARED_ELSEWHERE = {"node", "initializer", "value_info", "graph"}
MEANINGLESS = {"name", "producer_name", "producer_version"}


@dataclass(frozen=True)
class _Keys:
    """The keys of one model."""

    values: dict[str, str]  # value's name -> key
    nodes: dict[str, NodeProto]  # key -> the first such node, in order
    counts: Counter[str]  # of nodes, constants and shapes noted, by key
    undefined: list[str]  # names that are read before they are defined, or defined twice


def differences(graph: Graph, expected: Graph) -> Iterator[str]:
    """Words for each difference of `graph` from `expected`; nothing if both are the same."""
    keys, expected_keys = _keys(graph), _keys(expected)
    model, expected_model = graph.proto, expected.proto
    yield from (f"{name} is undefined, or defined twice" for name in keys.undefined)
    for name in expected_keys.undefined:
        yield f"{name} of the expected graph is undefined, or defined twice"
    # versions, inputs, outputs, and every other field that a model may have
    for messages in ((model, expected_model), (model.graph, expected_model.graph)):
        yield from (f"{name} is another" for name in _unequal_names(*map(_fields, messages)))
    for key, node in keys.nodes.items():
        if key not in expected_keys.nodes:
            yield _words(node, keys, expected_model, expected_keys)
    for key, node in expected_keys.nodes.items():
        if key not in keys.nodes:
            yield f"node {node.name} ({node.op_type}) is missing"
    for output in expected_model.graph.output:
        if keys.values.get(output.name) != expected_keys.values.get(output.name):
            yield f"output {output.name} is a different value"
    if keys.counts != expected_keys.counts:
        yield "the nodes, constants or recorded shapes differ"


def _keys(graph: Graph) -> _Keys:
    model = graph.proto
    values, nodes, counts, undefined = {"": ""}, dict[str, NodeProto](), Counter[str](), list[str]()

    def define(name: str, key: str) -> None:
        if name and name in values:
            undefined.append(name)
        values[name] = key if name else ""

    for value in model.graph.input:
        define(value.name, f"input {value.name}")
    for tensor in model.graph.initializer:  # by type, shape and bytes, wherever the bytes lie
        try:
            array = np.ascontiguousarray(graph.value(tensor))
            fields = PLACE if tensor.data_location == EXTERNAL else TENSOR_DATA
            define(tensor.name, _digest(_without(tensor, *fields), as_bytes(array)))
        except (KeyError, ValueError, TypeError) as error:
            define(tensor.name, f"unreadable: {error}")
        counts[values[tensor.name]] += 1
    for node in model.graph.node:
        undefined.extend(name for name in node.input if name not in values)
        key = _node(node, values)
        nodes.setdefault(key, node)
        counts[key] += 1
        for index, name in enumerate(node.output):
            define(name, f"{key} {index}")
    undefined.extend(value.name for value in model.graph.output if value.name not in values)
    counts.update(
        _digest(values.get(info.name, ""), _without(info, "name"))
        for info in model.graph.value_info
    )
    return _Keys(values, nodes, counts, undefined)


def _node(node: NodeProto, values: Mapping[str, str]) -> str:
    """Its operator, attributes, what it reads, and which of its outputs are used; no names.

    values: the keys of the values that it may read.
    """
    copy = NodeProto()
    copy.CopyFrom(node)
    for name in ("name", "input", "output", "attribute"):
        copy.ClearField(name)
    copy.domain = "" if copy.domain == "ai.onnx" else copy.domain
    ordered = sorted(node.attribute, key=lambda attribute: attribute.name)
    copy.attribute.extend(
        attribute for attribute in ordered if attribute.type != AttributeProto.GRAPH
    )
    bodies = [attribute for attribute in ordered if attribute.type == AttributeProto.GRAPH]
    copy.output.extend("given" if name else "" for name in node.output)
    return _digest(
        copy.SerializeToString(deterministic=True),
        *(values.get(name, "undefined") for name in node.input),
        *(
            part
            for attribute in bodies
            for part in (_without(attribute, "g"), _body(attribute.g, values))
        ),
    )


def _body(graph: GraphProto, outside: Mapping[str, str]) -> str:
    """The key of a graph that is a node's attribute, such as the body of a Scan.

    outside: the keys of the values around it, which it may read.
    """
    values, parts = dict(outside), [_without(graph, "name", "node", "input", "output")]
    for index, value in enumerate(graph.input):
        values[value.name] = f"argument {index}"
        parts.append(_without(value, "name"))
    for node in graph.node:
        key = _node(node, values)
        values |= {name: f"{key} {index}" for index, name in enumerate(node.output) if name}
        parts.append(key.encode())
    for value in graph.output:
        parts += [_without(value, "name"), values.get(value.name, "undefined").encode()]
    return _digest(*parts)


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, also those of graphs that are attributes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes(attribute.g)


def _unequal_names(fields: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names whose values differ."""
    names = sorted(fields.keys() | expected.keys())
    return [name for name in names if fields.get(name) != expected.get(name)]


def _fields(message: Message) -> dict[str, Any]:
    return {
        field.name: _comparable_value(value)
        for field, value in message.ListFields()
        if field.name not in COMPARED_ELSEWHERE | MEANINGLESS
    }


def _comparable_value(value: Any) -> Any:
    if isinstance(value, ValueInfoProto):
        return _without(value, "metadata_props")  # the exporter's notes
    if isinstance(value, Message):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, str | bytes | int | float):
        return value
    return [_comparable_value(entry) for entry in value]


def _words(node: NodeProto, keys: _Keys, model: ModelProto, expected_keys: _Keys) -> str:
    """The difference of a node from the expected model's node of that name, if there is one."""
    twin = next((peer for peer in model.graph.node if peer.name == node.name), None)
    label = f"node {node.name} ({node.op_type})"
    if twin is None:
        return f"{label} is not expected"
    if twin.op_type != node.op_type:
        return f"{label} is expected to be {twin.op_type}"
    values, expected = attributes(node), attributes(twin)
    for name in _unequal_names(values, expected):
        return f"{label}: {name} is {values.get(name)!r}, {expected.get(name)!r} expected"
    read = [keys.values.get(name) for name in node.input]
    if read != [expected_keys.values.get(name) for name in twin.input]:
        return f"{label}: reads a different value"
    return f"{label}: its outputs or its header differ"


def attributes(node: NodeProto) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            values[attribute.name] = [
                (inner.op_type, attributes(inner)) for inner in attribute.g.node
            ]
            continue
        try:
            values[attribute.name] = helper.get_attribute_value(attribute)
        except ValueError:
            values[attribute.name] = attribute.SerializeToString(deterministic=True)
    return values


def _without(message: Message, *names: str) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    for name in names:
        copy.ClearField(name)
    return copy.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def _digest(*parts: bytes | memoryview | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
