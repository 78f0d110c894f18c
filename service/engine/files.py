"""Files that are not trusted yet: they are read up to a size, compared with their sha256, and
searched for the names of other files that they take weights from.

To find these names it reads protobuf's encoding (https://protobuf.dev/programming-guides/encoding)
with the numbers of onnx/onnx.proto, since the server has no package onnx.
"""

import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from addnorm.service.engine.manifest import File

KEY = b"location"  # of an entry that names a file
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


class TooLarge(Exception):
    """The message has name, size and limit."""


def read(file: Path, most_bytes: int) -> bytes:
    """TooLarge if it has more. FileNotFoundError if it is no file."""
    if not file.is_file():
        raise FileNotFoundError(file)
    with file.open("rb") as stream:
        num_bytes = os.fstat(stream.fileno()).st_size
        content = stream.read(most_bytes + 1) if num_bytes <= most_bytes else b""
    if max(num_bytes, len(content)) > most_bytes:  # the latter if it grew meanwhile
        raise TooLarge(f"{file.name} has {num_bytes} bytes, the limit is {most_bytes}")
    return content


def difference(file: Path, expected: File) -> str | None:
    """The first difference between a file and the manifest's record of it. None if they agree."""
    if not file.is_file():
        return f"{file.name} is missing"
    if (num_bytes := file.stat().st_size) != expected.num_bytes:
        return f"{file.name} has {num_bytes} bytes, but {expected.num_bytes} are recorded"
    return None if sha256(file) == expected.sha256 else f"{file.name} does not match its sha256"


def describe(file: Path) -> File:
    return File(sha256=sha256(file), num_bytes=file.stat().st_size)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_beside(graph: Path) -> set[str]:
    """The files that a graph takes weights from, as it names them. ValueError if it cannot be
    read."""
    with graph.open("rb") as file:
        if not (size := graph.stat().st_size):
            return set()
        with (
            mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            if content.find(KEY) < 0:
                return set()
            # the values of all entries `location` of the model
            file_names, stack = set[str](), [("Model", 0, size)]
            while stack:
                message, start, end = stack.pop()
                entry = {ENTRY_KEY: b"", ENTRY_VALUE: b""}  # the last of each counts
                for number, begin, stop in _fields(view, start, end):
                    if message == "Entry":
                        entry[number] = bytes(view[begin:stop])
                    elif kind := FIELDS[message].get(number):
                        stack.append((kind, begin, stop))
                if entry[ENTRY_KEY] == KEY:
                    file_names.add(entry[ENTRY_VALUE].decode())
            return file_names


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
