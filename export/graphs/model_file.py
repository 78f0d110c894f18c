"""An ONNX model with its large constants apart: in PyTorch's memory, or mapped from a file.

Protobuf takes no message of 2 GiB. So a large model's file has its constants in a second file
beside it, `<file>.data`. Another model may take its own from there too. Knows ONNX; no PyTorch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from tqdm import tqdm

from addnorm.export.graphs.nodes import read_by

Array = NDArray[Any]
MAX_BYTES = 2**30  # of constants within one ONNX file; more of them lie beside it
MIN_BYTES = 1024  # smaller constants are always in the message
ALIGNMENT = 4096  # of a constant in the data file: a page
EXTERNAL = TensorProto.EXTERNAL
NUMBERS: dict[int, np.dtype[Any]] = {  # what weights are made of, by ONNX's data type
    helper.np_dtype_to_tensor_dtype(np.dtype(name)): np.dtype(name)
    for name in ("float32", "float16", "int8", "uint8", "int32", "int64")
}
PLACE = ("location", "offset", "length")  # what an external constant says of its values


@dataclass(frozen=True)
class Graph:
    """proto: the model. values: the constants that are not in it, by name; never written to."""

    proto: ModelProto
    values: Mapping[str, Array] = field(default_factory=dict)

    def value(self, tensor: TensorProto) -> Array:
        """The array of a constant of `proto`. KeyError if it is nowhere, ValueError if broken."""
        if tensor.data_location == EXTERNAL:
            return self.values[tensor.name]
        return numpy_helper.to_array(tensor)

    def constants(self) -> dict[str, Array]:
        """The graph's constants by name."""
        return {tensor.name: self.value(tensor) for tensor in self.proto.graph.initializer}

    def copy(self) -> "Graph":
        """Another message, the same values."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        return Graph(proto, self.values)

    def without_values(self) -> ModelProto:
        """A copy for onnx's checker: the constants outside of the message are inputs."""
        proto = self.copy().proto
        tensors = list(proto.graph.initializer)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(
            tensor for tensor in tensors if tensor.name not in self.values
        )
        proto.graph.input.extend(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in tensors
            if tensor.name in self.values
        )
        return proto


def with_nodes(graph: Graph, nodes: Sequence[NodeProto], tensors: Mapping[str, Array]) -> Graph:
    """The graph with these nodes in place of its own, and the constants that they read. tensors:
    new ones."""
    used = {name for node in nodes for name in read_by(node)}
    new = [constant(name, array) for name, array in tensors.items()]
    initializers = [
        tensor for tensor in (*graph.proto.graph.initializer, *new) if tensor.name in used
    ]
    proto = graph.copy().proto
    for place, messages in ((proto.graph.node, nodes), (proto.graph.initializer, initializers)):
        del place[:]
        place.extend(messages)
    values = {**graph.values, **tensors}
    outside = [tensor.name for tensor in initializers if tensor.data_location == EXTERNAL]
    return Graph(proto, {name: values[name] for name in outside})


def constant(name: str, array: Array) -> TensorProto:
    """A constant as a Graph's message stores it: with its values only if they are few."""
    if array.nbytes < MIN_BYTES:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, data_type=kind, dims=array.shape, data_location=EXTERNAL)


def data_file(path: Path) -> Path:
    """The file in which the constants of a large model's file lie."""
    return path.with_name(f"{path.name}.data")


def save(graph: Graph, path: Path, shared: bool = False) -> None:
    """Writes one file, or two: if the constants have more than MAX_BYTES, and if they are to be
    shared."""
    proto = graph.copy().proto
    outside = [tensor for tensor in proto.graph.initializer if tensor.name in graph.values]
    if shared or sum(graph.values[tensor.name].nbytes for tensor in outside) > MAX_BYTES:
        # each item says where its values lie
        data_path = data_file(path)
        num_bytes = sum(graph.values[tensor.name].nbytes for tensor in outside)
        progress = tqdm(
            total=num_bytes, desc=data_path.name, unit="B", unit_scale=True, disable=None
        )
        with data_path.open("wb") as stream, progress:
            for tensor in outside:
                array = np.ascontiguousarray(graph.values[tensor.name])
                offset = math.ceil(stream.tell() / ALIGNMENT) * ALIGNMENT
                stream.seek(offset)
                stream.write(as_bytes(array))
                for key, value in zip(PLACE, (data_path.name, offset, array.nbytes), strict=True):
                    tensor.external_data.add(key=key, value=str(value))
                progress.update(array.nbytes)
    else:
        for tensor in outside:
            _put_in(tensor, graph)
    onnx.save(proto, path)


def save_beside(graph: Graph, path: Path, owner: Path) -> None:
    """Writes one file, whose constants lie in the data file of `owner` if that has those names."""
    proto = graph.copy().proto
    places = {
        tensor.name: tensor.external_data
        for tensor in onnx.load(owner, load_external_data=False).graph.initializer
        if tensor.data_location == EXTERNAL
    }
    for tensor in proto.graph.initializer:
        if tensor.name in graph.values and tensor.name in places:
            tensor.external_data.extend(places[tensor.name])
        elif tensor.name in graph.values:
            _put_in(tensor, graph)
    onnx.save(proto, path)


def _put_in(tensor: TensorProto, graph: Graph) -> None:
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")  # of a graph that was read from two files
    tensor.raw_data = graph.values[tensor.name].tobytes()


def load(path: Path, owner: Path | None = None) -> Graph:
    """ValueError for what is no graph, and for constants that lie elsewhere than in the data file
    of `owner`, which is `path` if None. Those are mapped.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise ValueError(f"{path.name} is not an ONNX file") from None
    outside = [tensor for tensor in proto.graph.initializer if tensor.data_location == EXTERNAL]
    if not outside:
        return Graph(proto)
    data_path = data_file(owner or path)
    spans = [_span(tensor, path, data_path) for tensor in outside]
    if not data_path.is_file():
        raise ValueError(f"{data_path.name} is missing")
    mapped, values = np.memmap(data_path, np.uint8, "r"), {}
    for tensor, span in zip(outside, spans, strict=True):
        content, dtype = mapped[span], NUMBERS.get(tensor.data_type)
        if dtype is None or content.nbytes != math.prod(tensor.dims) * dtype.itemsize:
            raise ValueError(f"{path.name}: {tensor.name} is not within {data_path.name}")
        values[tensor.name] = content.view(dtype).reshape(tensor.dims)
    return Graph(proto, values)


def _span(tensor: TensorProto, path: Path, data_path: Path) -> slice:
    """The bytes of the data file that it names. ValueError for another file, or no bytes."""
    entries = [(entry.key, entry.value) for entry in tensor.external_data]
    place = dict(entries)
    if len(entries) != len(PLACE) or place.keys() != {*PLACE}:
        raise ValueError(
            f"{path.name}: {tensor.name} has external data {entries}, {PLACE} expected"
        )
    if place["location"] != data_path.name:
        raise ValueError(
            f"{path.name}: {tensor.name} lies in {place['location']!r}, {data_path.name!r} expected"
        )
    if not (place["offset"].isdecimal() and place["length"].isdecimal()):
        raise ValueError(
            f"{path.name}: {tensor.name} has external data {entries}, numbers expected"
        )
    offset, length = int(place["offset"]), int(place["length"])
    return slice(offset, offset + length)


def as_bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data
