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

    def value(self, item: TensorProto) -> Array:
        """The array of a constant of `proto`. KeyError if it is nowhere, ValueError if broken."""
        if item.data_location == EXTERNAL:
            return self.values[item.name]
        return numpy_helper.to_array(item)

    def constants(self) -> dict[str, Array]:
        """The graph's constants by name."""
        return {item.name: self.value(item) for item in self.proto.graph.initializer}

    def copy(self) -> "Graph":
        """Another message, the same values."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        return Graph(proto, self.values)

    def without_values(self) -> ModelProto:
        """A copy for onnx's checker: the constants outside of the message are inputs."""
        proto = self.copy().proto
        items = list(proto.graph.initializer)
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(item for item in items if item.name not in self.values)
        proto.graph.input.extend(
            helper.make_tensor_value_info(item.name, item.data_type, item.dims)
            for item in items
            if item.name in self.values
        )
        return proto


def with_nodes(graph: Graph, nodes: Sequence[NodeProto], tensors: Mapping[str, Array]) -> Graph:
    """The graph with these nodes in place of its own, and the constants that they read. tensors:
    new ones."""
    used = {name for node in nodes for name in read_by(node)}
    new = [constant(name, array) for name, array in tensors.items()]
    kept = [item for item in (*graph.proto.graph.initializer, *new) if item.name in used]
    made = graph.copy().proto
    for place, items in ((made.graph.node, nodes), (made.graph.initializer, kept)):
        del place[:]
        place.extend(items)
    values = {**graph.values, **tensors}
    outside = [item.name for item in kept if item.data_location == EXTERNAL]
    return Graph(made, {name: values[name] for name in outside})


def constant(name: str, array: Array) -> TensorProto:
    """A constant as a Graph's message stores it: with its values only if they are few."""
    if array.nbytes < MIN_BYTES:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, data_type=kind, dims=array.shape, data_location=EXTERNAL)


def data_file(path: Path) -> Path:
    """Where the constants of a large model's file lie."""
    return path.with_name(f"{path.name}.data")


def save(graph: Graph, path: Path, shared: bool = False) -> None:
    """Writes one file, or two: if the constants have more than MAX_BYTES, and if they are to be
    shared."""
    made = graph.copy().proto
    outside = [item for item in made.graph.initializer if item.name in graph.values]
    if shared or sum(graph.values[item.name].nbytes for item in outside) > MAX_BYTES:
        # each item says where its values lie
        data = data_file(path)
        num_bytes = sum(graph.values[item.name].nbytes for item in outside)
        progress = tqdm(total=num_bytes, desc=data.name, unit="B", unit_scale=True, disable=None)
        with data.open("wb") as stream, progress:
            for item in outside:
                array = np.ascontiguousarray(graph.values[item.name])
                offset = math.ceil(stream.tell() / ALIGNMENT) * ALIGNMENT
                stream.seek(offset)
                stream.write(as_bytes(array))
                for key, value in zip(PLACE, (data.name, offset, array.nbytes), strict=True):
                    item.external_data.add(key=key, value=str(value))
                progress.update(array.nbytes)
    else:
        for item in outside:
            _put_in(item, graph)
    onnx.save(made, path)


def save_beside(graph: Graph, path: Path, owner: Path) -> None:
    """Writes one file, whose constants lie in the data file of `owner` if that has those names."""
    made = graph.copy().proto
    places = {
        item.name: item.external_data
        for item in onnx.load(owner, load_external_data=False).graph.initializer
        if item.data_location == EXTERNAL
    }
    for item in made.graph.initializer:
        if item.name in graph.values and item.name in places:
            item.external_data.extend(places[item.name])
        elif item.name in graph.values:
            _put_in(item, graph)
    onnx.save(made, path)


def _put_in(item: TensorProto, graph: Graph) -> None:
    item.ClearField("data_location")
    item.ClearField("external_data")  # of a graph that was read from two files
    item.raw_data = graph.values[item.name].tobytes()


def load(path: Path, owner: Path | None = None) -> Graph:
    """ValueError for what is no graph, and for constants that lie elsewhere than in the data file
    of `owner`, which is `path` if None. Those are mapped.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise ValueError(f"{path.name} is no ONNX file") from None
    items = [item for item in proto.graph.initializer if item.data_location == EXTERNAL]
    if not items:
        return Graph(proto)
    data = data_file(owner or path)
    spans = [_span(item, path, data) for item in items]
    if not data.is_file():
        raise ValueError(f"{data.name} is missing")
    mapped, values = np.memmap(data, np.uint8, "r"), {}
    for item, span in zip(items, spans, strict=True):
        found, dtype = mapped[span], NUMBERS.get(item.data_type)
        if dtype is None or found.nbytes != math.prod(item.dims) * dtype.itemsize:
            raise ValueError(f"{path.name}: {item.name} is not within {data.name}")
        values[item.name] = found.view(dtype).reshape(item.dims)
    return Graph(proto, values)


def _span(item: TensorProto, path: Path, data: Path) -> slice:
    """Which bytes of the data file it names. ValueError if it names another file, or no bytes."""
    entries = [(entry.key, entry.value) for entry in item.external_data]
    place = dict(entries)
    if len(entries) != len(PLACE) or place.keys() != {*PLACE}:
        raise ValueError(f"{path.name}: {item.name} has external data {entries}, {PLACE} expected")
    if place["location"] != data.name:
        raise ValueError(
            f"{path.name}: {item.name} lies in {place['location']!r}, {data.name!r} expected"
        )
    if not (place["offset"].isdecimal() and place["length"].isdecimal()):
        raise ValueError(f"{path.name}: {item.name} has external data {entries}, numbers expected")
    offset, length = int(place["offset"]), int(place["length"])
    return slice(offset, offset + length)


def as_bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data
