"""Safetensors bodies: 8 bytes of header length, a JSON header, the tensors' bytes end to end.

In: `input_ids` and `attention_mask`, both `[batch, seq]`; or ragged, `input_ids` `[tokens]` and
`lengths` `[batch]`. For models with token types also `token_type_ids`, shaped like `input_ids`. For
models that take vectors `inputs` in place of `input_ids`, with an axis more.
Every other field of a JSON body stands in the metadata, as one JSON object named `request`.
Out: a tensor an output, in the same layout; what has parts has a tensor for each, as in
`norm_stats.mean`.
"""

import json
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from addnorm.service.errors import InvalidInput, UnknownField
from addnorm.service.wire.codec.validation import outside_strings

SAFETENSORS = "application/vnd.safetensors"
HEADER_BYTES = 64 * 1024
MAX_VALUES = 100  # of the header; the known tensors have 35, with their names
KINDS = {"I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_, "F32": np.float32}
NAMES = {"int64": "I64", "float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
INTEGERS = ("I64", "I32")
KNOWN = {
    "input_ids": INTEGERS,
    "attention_mask": tuple(KINDS),
    "token_type_ids": (*INTEGERS, "U8"),
    "lengths": INTEGERS,
    "inputs": ("F32",),
}
Arrays = dict[str, NDArray[Any]]


class SafetensorsBody(NamedTuple):
    request: bytes  # JSON
    arrays: Arrays


def read(body: bytes) -> SafetensorsBody:
    """The tensors and the request beside them. InvalidInput says what is wrong with the body."""
    num_bytes = int.from_bytes(body[:8], "little")
    if num_bytes > HEADER_BYTES:  # thousands of tensors would hold up every other request
        raise InvalidInput(
            f"the body is not safetensors of the supported form: its header has {num_bytes}"
            f" bytes, the limit is {HEADER_BYTES}"
        )
    # more than any request needs: the library makes several objects of each tensor, and one of each
    # axis
    limits = {b"{": ("objects", len(KNOWN) + 2), b",": ("values", MAX_VALUES)}
    num = dict.fromkeys(limits, 0)
    for outside in outside_strings(body[8 : 8 + num_bytes], MAX_VALUES):
        for character, (noun, limit) in limits.items():
            num[character] += outside.count(character)
            if num[character] > limit:
                raise InvalidInput(
                    "the body is not safetensors of the supported form: its header has more than"
                    f" {limit} {noun}, the limit; known tensors are {', '.join(KNOWN)}"
                )
    try:
        tensors = deserialize(body)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise InvalidInput(f"the body is not safetensors: {error}") from None
    header = json.loads(body[8 : 8 + num_bytes], object_pairs_hook=_each_once)
    arrays = {name: _array(name, tensor) for name, tensor in tensors}
    if not {"input_ids", "inputs"} & arrays.keys():
        raise InvalidInput("the body lacks the tensor input_ids", param="input_ids")
    metadata: dict[str, str] = header.get("__metadata__") or {}
    return SafetensorsBody(metadata.get("request", "{}").encode(), arrays)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs by name, each once. UnknownField for a tensor that is sent twice: the library takes
    the last, and other readers the first."""
    tensors = dict(pairs)
    if len(tensors) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise UnknownField(
            f"the body is not safetensors: its header has {name[:60]!r} twice", param=name[:60]
        )
    return tensors


def _array(name: str, tensor: dict[str, Any]) -> NDArray[Any]:
    if name not in KNOWN:
        raise UnknownField(
            f"tensor {name[:60]!r} is unknown; known are {', '.join(KNOWN)}", param=name[:60]
        )
    if tensor["dtype"] not in KNOWN[name]:
        raise InvalidInput(
            f"{name} is {tensor['dtype']}: send {', '.join(KNOWN[name])}", param=name
        )
    try:
        array = np.frombuffer(tensor["data"], KINDS[tensor["dtype"]]).reshape(tensor["shape"])
    except ValueError:  # no bytes fit any axes beside one of 0, but numpy has not every such shape
        raise InvalidInput(
            f"{name} has shape {str(tensor['shape'])[:100]}: an array cannot be so large",
            param=name,
        ) from None
    return array.astype(np.int64, copy=False) if tensor["dtype"] in INTEGERS else array


def write(arrays: Arrays, metadata: dict[str, str]) -> list[bytes | memoryview]:
    """Header and tensors, the tensors not copied."""
    header: dict[str, Any] = {"__metadata__": metadata}
    parts: list[bytes | memoryview] = []
    end = 0
    for name, array in arrays.items():
        raw = raw_bytes(array)
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": [end, end + len(raw)],
        }
        parts.append(raw)
        end += len(raw)
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)  # what follows is aligned, so that readers need not copy it
    return [len(text).to_bytes(8, "little") + text, *parts]


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """The array's bytes, row-major, not copied if it lies so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
