"""V2's tensors: its names for inputs and outputs, and how they are read from JSON or from bytes.
Texts are a tensor of datatype BYTES, which a server tokenizes: one input, whatever its name.

Source: Triton's binary tensor data extension. The bytes follow the JSON, little-endian, row-major
and in the tensors' order. Each element of BYTES is the number of its bytes, as uint32, and these
bytes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.kserve.schema import InputTensor, Parameters
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import OUTPUTS, AsItIs, NormStatistics, OutputKind, OutputKinds
from addnorm.service.engine.outputs.per_token import NormStats
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import RawRequest
from addnorm.service.wire.codec.shown import shown
from addnorm.service.wire.codec.validation import with_whole_floats
from addnorm.service.wire.texts.texts import TextsToTokenize, Wish, check_size
from addnorm.service.wire.tools import Tools

LENGTH_HEADER = "inference-header-content-length"  # of the JSON in front of the bytes, in bytes


class Kind(NamedTuple):
    """The types of one datatype: of its values as bytes, and as JSON."""

    dtype: str
    json: tuple[type, ...]


KINDS = {
    "INT64": Kind("<i8", (int,)),
    "INT32": Kind("<i4", (int,)),
    "UINT8": Kind("u1", (int,)),
    "BOOL": Kind("u1", (bool,)),  # as bytes, a bool may lie: 2 is neither
    "FP32": Kind("<f4", (int, float)),
}
INPUTS = {
    "input_ids": ("INT64", "INT32"),
    "attention_mask": tuple(KINDS),
    "token_type_ids": ("INT64", "INT32"),
    "inputs": ("FP32",),
}
OPTIONAL = ("attention_mask", "token_type_ids")
NAMES = {"norm_stats.mean": "norm_mean", "norm_stats.rstd": "norm_rstd"}  # native -> V2's


def inputs(bundle: Bundle) -> dict[str, tuple[str, list[int]]]:
    """The model's inputs, by name: datatype, and -1 where the caller's batch decides."""
    limits, cells = bundle.manifest.limits, ("INT64", [-1, -1])
    width = limits.input_width
    tokens = {"inputs": ("FP32", [-1, -1, width])} if width else {"input_ids": cells}
    types = {"token_type_ids": cells} if limits.type_vocab_size > 1 else {}
    return {**tokens, "attention_mask": cells, **types}


class NativeTensor(NamedTuple):
    """One of the tensors of a native output, by the native name. shape: -1 where the caller's batch
    decides."""

    output: OutputKind
    name: str
    shape: list[int]


def outputs(bundle: Bundle, output_kinds: OutputKinds = OUTPUTS) -> dict[str, NativeTensor]:
    """Output tensors of the model, by V2's names: those of a module as it is by its own. All are
    FP32."""
    return {
        NAMES.get(name, name.removeprefix(f"{AsItIs.name}.")): NativeTensor(kind, name, shape)
        for kind in output_kinds.of(bundle).values()
        for name, shape in _shapes(kind, bundle)
    }


def _shapes(kind: OutputKind, bundle: Bundle) -> Iterator[tuple[str, list[int]]]:
    """The native names and shapes of an output's tensors, where a grid is sent. Derived outputs
    have none: their shapes are not known beforehand."""
    if kind.is_derived:
        return
    if issubclass(kind, AsItIs):
        tensors = kind.tensors(bundle)
        for tensor in tensors:
            name = f"{kind.name}.{tensor.name}" if len(tensors) > 1 else kind.name
            yield name, tensor.shape
    elif issubclass(kind, NormStatistics):
        for part in NormStats.model_fields:
            yield f"{kind.name}.{part}", [-1, -1, bundle.manifest.n_norms]
    else:
        output = kind()
        rows = [-1, -1] if output.pick(bundle) == "every" else [-1]
        yield kind.name, [*rows, output.width(bundle)]


def split(raw: RawRequest) -> tuple[bytes, memoryview]:
    """A body -> its JSON, and the bytes that follow it. Without LENGTH_HEADER all is JSON."""
    body = memoryview(raw.body)
    length = raw.headers.get(LENGTH_HEADER)
    if length is None:
        return raw.body, body[len(body) :]
    if not (
        length.isascii() and length.isdigit() and len(length) < 19 and int(length) <= len(body)
    ):
        raise InvalidInput(
            f"{LENGTH_HEADER} is {length[:60]!r}: it must be the number of bytes of JSON, at most"
            f" {len(body)}, the size of the body",
            param=LENGTH_HEADER,
        )
    if not int(length):
        raise InvalidInput(
            f"{LENGTH_HEADER} is 0: a body without JSON is possible only for models with one"
            f" input, this one has {', '.join(INPUTS)}",
            param=LENGTH_HEADER,
        )
    return raw.body[: int(length)], body[int(length) :]


def read(
    inputs: Sequence[InputTensor], contents: Iterable[memoryview | None]
) -> dict[str, NDArray[Any]]:
    """Name -> `[batch, seq]`, of vectors `[batch, seq, width]`; not copied if sent as bytes.
    InvalidInput says what does not fit.

    contents: the bytes of each input, None where it has its values in `data`.
    """
    grids: dict[str, NDArray[Any]] = {}
    for tensor, raw in zip(inputs, contents, strict=True):
        if tensor.name not in INPUTS:
            raise InvalidInput(
                f"inputs has {tensor.name[:200]!r}: known are {', '.join(INPUTS)}, and texts of"
                " datatype BYTES",
                param="inputs",
            )
        if tensor.name in grids:
            raise InvalidInput(f"inputs has {tensor.name!r} twice", param="inputs")
        grids[tensor.name] = _grid(tensor, raw)
    if "inputs" in grids and "input_ids" in grids:
        raise InvalidInput(
            "inputs has both inputs and input_ids: send only the tensor that the model takes",
            param="inputs",
        )
    if not {"inputs", "input_ids"} & grids.keys():
        raise InvalidInput("inputs lacks input_ids", param="inputs")
    return grids


def after_json(inputs: Sequence[InputTensor], tail: memoryview) -> Iterator[memoryview | None]:
    """The bytes of each input, as they follow the JSON."""
    for tensor in inputs:
        num_bytes = tensor.parameters.binary_data_size
        if num_bytes is not None:
            if tensor.data is not None:
                raise InvalidInput(
                    f"{tensor.name} has both data and binary_data_size", param=tensor.name
                )
            if num_bytes > len(tail):
                raise InvalidInput(
                    f"unexpected size for input {tensor.name!r}, expecting {num_bytes - len(tail)}"
                    " additional bytes",
                    param=tensor.name,
                )
            yield tail[:num_bytes]
            tail = tail[num_bytes:]
        else:
            yield None
    if tail:
        raise InvalidInput(
            f"unexpected additional input data: {len(tail)} bytes after the last tensor",
            param="inputs",
        )


def _grid(tensor: InputTensor, raw: memoryview | None) -> NDArray[Any]:
    if any(name.startswith("shared_memory") for name in tensor.parameters.model_extra or {}):
        raise InvalidInput(
            f"{tensor.name}: shared memory is not supported: send the data in the body",
            param=tensor.name,
        )
    if tensor.datatype not in INPUTS[tensor.name]:
        raise InvalidInput(
            f"{tensor.name} has datatype {tensor.datatype[:60]!r}: send"
            f" {', '.join(INPUTS[tensor.name])}",
            param=tensor.name,
        )
    axes = ["batch", "seq", *(["width"] if tensor.name == "inputs" else [])]
    if len(tensor.shape) != len(axes):
        raise InvalidInput(
            f"{tensor.name}.shape is {tensor.shape}: send [{', '.join(axes)}]", param=tensor.name
        )
    if raw is None:
        values = _from_json(tensor)
    else:
        dtype = np.dtype(KINDS[tensor.datatype].dtype)
        if len(raw) % dtype.itemsize:
            raise InvalidInput(
                f"{tensor.name} has {len(raw)} bytes, which is not a multiple of"
                f" {dtype.itemsize}, the size of one {tensor.datatype}",
                param=tensor.name,
            )
        values = np.frombuffer(raw, dtype)
    num_values = math.prod(tensor.shape)
    if len(values) != num_values:
        raise InvalidInput(
            f"{tensor.name} has {len(values)} values, its shape {tensor.shape} {num_values}",
            param=tensor.name,
        )
    return values.reshape(tensor.shape)


def _from_json(tensor: InputTensor) -> NDArray[Any]:
    if tensor.data is None:
        raise InvalidInput(
            f"{tensor.name} has neither data nor binary_data_size: send one of them",
            param=tensor.name,
        )
    # flat data as it is; nested data of `[batch][seq]`, or of vectors, row after row
    values, kinds = tensor.data, KINDS[tensor.datatype].json
    for before, num in pairwise(tensor.shape):
        if not values or not isinstance(values[0], list):
            break
        for row, cells in enumerate(values):
            if not isinstance(cells, list) or len(cells) != num:
                size = f"has {len(cells)} values" if isinstance(cells, list) else "is no list"
                is_outer = values is tensor.data
                at = f"[{row}]" if is_outer else "[{}][{}]".format(*divmod(row, before))
                raise InvalidInput(
                    f"{tensor.name}.data{at} {size}, its shape is {tensor.shape}", param=tensor.name
                )
        values = list(chain.from_iterable(values))
    if kinds == (int,) and float in set(map(type, values)):
        values = with_whole_floats(values)
    if not set(map(type, values)) <= set(kinds):
        place = next(i for i, value in enumerate(values) if type(value) not in kinds)
        raise InvalidInput(
            f"{tensor.name}.data[{place}] is {shown(values[place])}, which is not"
            f" {tensor.datatype}",
            param=tensor.name,
        )
    try:
        with np.errstate(over="ignore"):  # limits.py rejects what is infinite
            return np.array(values, np.float32 if tensor.datatype == "FP32" else np.int64)
    except OverflowError:
        place = next(i for i, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise InvalidInput(
            f"{tensor.name}.data[{place}] is outside 64-bit integers", param=tensor.name
        ) from None


PREFIX = 4  # bytes of the number in front of each element


def is_of_texts(inputs: Sequence[InputTensor]) -> bool:
    """InvalidInput if other inputs stand beside the texts."""
    text_tensors = [
        tensor for tensor in inputs if tensor.datatype == "BYTES" and tensor.name not in INPUTS
    ]
    if text_tensors and len(inputs) > 1:
        raise InvalidInput(
            f"inputs has {len(inputs)} tensors: {text_tensors[0].name[:200]!r} has texts (BYTES),"
            " which must be the only tensor",
            param="inputs",
        )
    return bool(text_tensors)


async def tokenize(
    tensor: InputTensor,
    contents: Iterable[memoryview | None],
    parameters: Parameters,
    model: Model,
    prompt_name: str | None,
    ask: Ask,
    tools: Tools,
) -> tuple[Batch, Padding]:
    """Laid out in a grid as wide as the longest text. A pair of texts is a row of two."""
    if len(tensor.shape) > 1 and tensor.shape[1] > 2:
        raise InvalidInput(
            f"{tensor.name}.shape is {tensor.shape}: send [texts], or [pairs, 2]", param=tensor.name
        )
    check_size(tensor.name, tensor.shape[0], "texts", tools.texts.settings.max_sequences)
    texts = await tools.bodies.read(ask.num_body_bytes, ask, _texts, tensor, contents)
    wish = Wish(field=tensor.name, texts=texts, truncate=parameters.truncate)
    to_tokenize = TextsToTokenize.of(wish, model, prompt_name, tools.texts.settings.truncate)
    batch, padding = await tools.texts.tokenize(to_tokenize, ask)
    places = np.arange(max(padding.lengths.tolist()))
    return batch, Padding(padding.lengths, places < padding.lengths[:, None])


def _texts(tensor: InputTensor, contents: Iterable[memoryview | None]) -> list[Text]:
    (raw,) = contents
    strings: list[str] = []
    if raw is None:
        values: list[Any] = tensor.data or []
        if values and isinstance(values[0], list):
            rows = (row if isinstance(row, list) else [row] for row in values)
            values = list(chain.from_iterable(rows))
        for place, value in enumerate(values):
            if not isinstance(value, str):
                raise InvalidInput(
                    f"{tensor.name}.data[{place}] is {shown(value)}, which is not a text",
                    param=tensor.name,
                )
        strings = values
    else:
        strings = list(_texts_in_bytes(tensor, raw))
    num_texts = tensor.shape[0] * (tensor.shape[1] if len(tensor.shape) > 1 else 1)
    if len(strings) != num_texts:
        raise InvalidInput(
            f"{tensor.name} has {len(strings)} texts, its shape {tensor.shape} {num_texts}",
            param=tensor.name,
        )
    if tensor.shape[1:] == [2]:
        return list(zip(strings[::2], strings[1::2], strict=True))
    return list(strings)


def _texts_in_bytes(tensor: InputTensor, raw: memoryview) -> Iterator[str]:
    start = place = 0
    while start < len(raw):
        end = start + PREFIX
        end += int.from_bytes(raw[start:end], "little")
        if end > len(raw):
            raise InvalidInput(
                f"{tensor.name}[{place}] ends at byte {end} of {len(raw)}: each text must follow"
                " the number of its bytes, as uint32",
                param=tensor.name,
            )
        try:
            yield str(raw[start + PREFIX : end], "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{tensor.name}[{place}] is not valid UTF-8: {error.reason} at its byte"
                f" {error.start}",
                param=tensor.name,
            ) from None
        start, place = end, place + 1
