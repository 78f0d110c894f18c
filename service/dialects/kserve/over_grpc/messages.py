"""Protobuf's classes for the messages of the two .proto files.

`messages.binpb` has them compiled to descriptors. Generated modules would need the protobuf that
they were generated with, and one process could not import other clients' modules of the same names
beside them.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from addnorm.service.errors import InvalidInput

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


def no_message(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"the message is no {name}: {why}"[:200])
