"""Protobuf's classes for the messages of the two .proto files, and how a message is read: its parts
are counted before protobuf makes objects of them. An empty part has two bytes on the wire, and
hundreds as an object.

`messages.binpb` has the messages compiled to descriptors. Generated modules would need the protobuf
that they were generated with, and one process could not import other clients' modules of the same
names beside them. Source: protobuf's encoding, https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.validation import MAX_KEYS, max_values

DESCRIPTORS = Path(__file__).parent / "messages.binpb"
MessageTypes = Mapping[str, Any]


@cache
def message_types() -> MessageTypes:
    """Classes by their full names, as inference.ModelInferRequest."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    for file in files:
        pool.Add(file)
    names = [file.name for file in files]
    types: MessageTypes = message_factory.GetMessageClassesForFiles(names, pool)
    return types


def parse(name: str, body: bytes) -> Any:
    """The message of this type. InvalidInput if the body is none."""
    from google.protobuf.message import DecodeError

    try:
        return message_types()[name].FromString(body)
    except DecodeError as error:
        raise no_message(name, str(error)) from None


def no_message(name: str, reason: str) -> InvalidInput:
    return InvalidInput(f"the message is not a valid {name}: {reason}"[:200])


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types; the others are of groups
WIDTHS = {FIXED64: 8, FIXED32: 4}
MAX_VARINT = 10  # bytes
# by the numbers of fields that may hold many things: the layout of a message, the width of packed
# numbers (0: as many bytes as each needs), or TEXTS
Layout = dict[int, Any]
TEXTS = "texts"


def check_parts(name: str, body: bytes, settings: Settings) -> int:
    """The number of packed values, at most. InvalidInput if the message of this type has too many
    parts, or is none. A part takes half a microsecond, so their limits bound the time too."""
    most_values = max_values(settings)
    most_texts = 2 * settings.max_sequences  # each is a sequence, or half of a pair
    num_fields = num_texts = num_values = 0
    pending = [(0, len(body), _layout(message_types()[name].DESCRIPTOR))]
    while pending:
        at, end, layout = pending.pop()
        while at < end:
            tag, at = (body[at], at + 1) if body[at] < 0x80 else _varint(body, at)
            part_layout, wire_type = None, tag & 7
            if wire_type == BYTES and at < end:
                size, at = (body[at], at + 1) if body[at] < 0x80 else _varint(body, at)
                start, at, part_layout = at, at + size, layout.get(tag >> 3)
            elif wire_type == VARINT:
                _, at = _varint(body, at)
            elif wire_type in WIDTHS:
                at += WIDTHS[wire_type]
            else:
                raise no_message(
                    name, f"byte {at} ends a group or lies in one, but messages have no groups"
                )
            if at > end:
                raise no_message(name, f"a field ends after byte {end}, the end of its message")
            if part_layout is TEXTS:
                num_texts += 1
            else:
                num_fields += 1
            if type(part_layout) is dict:
                pending.append((start, at, part_layout))
            elif type(part_layout) is int:
                num_values += _num_packed(body, start, at, part_layout)
            if num_fields > MAX_KEYS:
                raise _too_many("fields", MAX_KEYS)
            if num_texts > most_texts:
                raise _too_many(TEXTS, most_texts)
            if num_values > most_values:
                raise _too_many("values", most_values)
    return num_values


def _too_many(kind: str, limit: int) -> InvalidInput:
    return InvalidInput(
        f"the message has more than {limit} {kind}, the limit: send less at once, and numbers as"
        " raw_input_contents"
    )


def _num_packed(body: bytes, start: int, end: int, width: int) -> int:
    if width or end - start < 100:
        return (end - start) // (width or 1)
    raw = np.frombuffer(body, np.uint8, end - start, start)
    return int(np.count_nonzero(raw < 0x80))  # the last byte of each value


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends: after the body, if it does not."""
    value = 0
    for place, byte in enumerate(body[at : at + MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return value, len(body) + 1


@cache
def _layout(message: Any) -> Layout:
    """The parts of a type of message, by its descriptor."""
    layout: Layout = {}
    for field in message.fields:
        if field.message_type is not None:
            layout[field.number] = _layout(field.message_type)
        elif field.is_packed:
            widths = {field.TYPE_DOUBLE: 8, field.TYPE_FLOAT: 4}
            layout[field.number] = widths.get(field.type, 0)
        elif field.name == "bytes_contents":
            layout[field.number] = TEXTS
    return layout
