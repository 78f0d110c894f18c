"""Which files beside it a graph takes its weights from.

Reads protobuf's encoding (https://protobuf.dev/programming-guides/encoding) with the numbers of
onnx/onnx.proto, since the server has no package onnx.
"""

import mmap
import re
from collections.abc import Iterator
from pathlib import Path

# No entry that names a file is without these bytes: its key, after the key's length, which may be
# written in more bytes than it needs.
KEY = re.compile(rb"[\x08\x00]location")
# message -> number of its field -> the message there. Weights stand in any of these.
FIELDS = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}  # fmt: skip
ENTRY_KEY, ENTRY_VALUE = 1, 2
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # kinds of fields


def files_beside(graph: Path) -> set[str]:
    """Their names, as they stand in the graph. ValueError if it cannot be read."""
    with graph.open("rb") as file:
        if not (size := graph.stat().st_size):
            return set()
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
            if not KEY.search(content):
                return set()
            with memoryview(content) as view:
                return set(_locations(view, 0, size))


def _locations(view: memoryview, start: int, end: int) -> Iterator[str]:
    """The values of all entries `location` of the model in these bytes."""
    left = [("Model", start, end)]
    while left:
        message, start, end = left.pop()
        named = {ENTRY_KEY: b"", ENTRY_VALUE: b""}  # the last of each counts
        for number, begin, stop in _fields(view, start, end):
            if message == "Entry":
                named[number] = bytes(view[begin:stop])
            elif kind := FIELDS[message].get(number):
                left.append((kind, begin, stop))
        if named[ENTRY_KEY] == b"location":
            yield named[ENTRY_VALUE].decode()


def _fields(view: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field of bytes in a message."""
    while start < end:
        tag, start = _varint(view, start, end)
        kind = tag & 7
        if kind == VARINT:
            _, start = _varint(view, start, end)
        elif kind == LENGTH:
            length, start = _varint(view, start, end)
            if length > end - start:
                raise ValueError("a field ends behind its message")
            yield tag >> 3, start, start + length
            start += length
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            start += 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field is of kind {kind}")


def _varint(view: memoryview, start: int, end: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if start >= end:
            break
        byte = view[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, start
    raise ValueError("a number has no end")
