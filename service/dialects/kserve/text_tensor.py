"""Texts as a tensor of datatype BYTES, which a server tokenizes: one input, whatever its name.

Source: Triton's binary tensor data extension. Each element is the number of its bytes, as uint32 in
little-endian order, and these bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.kserve import tensors
from addnorm.service.dialects.kserve.schema import InputTensor, Parameters
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.model import Model
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.shown import shown
from addnorm.service.wire.texts.texts import TextsToTokenize, check_size

PREFIX = 4  # bytes of the number in front of each element


def is_of_texts(inputs: Sequence[InputTensor]) -> bool:
    """InvalidInput if other inputs stand beside the texts."""
    found = [
        each for each in inputs if each.datatype == "BYTES" and each.name not in tensors.INPUTS
    ]
    if found and len(inputs) > 1:
        raise InvalidInput(
            f"inputs has {len(inputs)} tensors: {found[0].name[:200]!r} has texts (BYTES), which"
            " stand alone",
            param="inputs",
        )
    return bool(found)


async def tokenized(
    tensor: InputTensor,
    contents: Iterable[memoryview | None],
    own: Parameters,
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
    asked = TextsToTokenize.prompted(
        tensor.name, texts, tools.texts.cuts(own.truncate), model, prompt_name
    )
    batch, padding = await tools.texts.tokenize(asked, ask)
    places = np.arange(max(padding.lengths.tolist()))
    return batch, Padding(padding.lengths, places < padding.lengths[:, None])


def _texts(tensor: InputTensor, contents: Iterable[memoryview | None]) -> list[Text]:
    (raw,) = contents
    strings = list(_in_json(tensor) if raw is None else _in_bytes(tensor, raw))
    num_texts = tensor.shape[0] * (tensor.shape[1] if len(tensor.shape) > 1 else 1)
    if len(strings) != num_texts:
        raise InvalidInput(
            f"{tensor.name} has {len(strings)} texts, its shape {tensor.shape} {num_texts}",
            param=tensor.name,
        )
    if tensor.shape[1:] == [2]:
        return list(zip(strings[::2], strings[1::2], strict=True))
    return list(strings)


def _in_json(tensor: InputTensor) -> Iterator[str]:
    values: list[Any] = tensor.data or []
    if values and isinstance(values[0], list):
        rows = (row if isinstance(row, list) else [row] for row in values)
        values = list(chain.from_iterable(rows))
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise InvalidInput(
                f"{tensor.name}.data[{place}] is {shown(value)}, no text", param=tensor.name
            )
        yield value


def _in_bytes(tensor: InputTensor, raw: memoryview) -> Iterator[str]:
    start = place = 0
    while start < len(raw):
        end = start + PREFIX
        end += int.from_bytes(raw[start:end], "little")
        if end > len(raw):
            raise InvalidInput(
                f"{tensor.name}[{place}] ends at byte {end} of {len(raw)}: before each text stands"
                " the number of its bytes, as uint32",
                param=tensor.name,
            )
        try:
            yield str(raw[start + PREFIX : end], "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{tensor.name}[{place}] is no UTF-8: {error.reason} at its byte {error.start}",
                param=tensor.name,
            ) from None
        start, place = end, place + 1
