"""Encoded answers, and how they are compressed."""

import base64
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import NDArray

from addnorm.service.asking.ask import Ask
from addnorm.service.wire.codec.negotiation import JSON, compress

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
Times = Callable[[Ask], Mapping[str, str]]  # seconds of the stages -> headers


class Payload(NamedTuple):
    """An encoded answer. The parts follow each other on the wire and are never joined here."""

    # at least one; memoryviews of bytes, so that len() counts bytes
    parts: Sequence[bytes | memoryview]
    media_type: str = JSON
    headers: Mapping[str, str] = NO_HEADERS
    times: Times | None = None  # beside server-timing, as the dialect's clients know them


Encode = Callable[[Ask], Payload]


def base64_of(vector: NDArray[Any]) -> str:
    """Little-endian, whatever this machine's order."""
    little = vector.dtype.newbyteorder("<")
    return base64.b64encode(vector.astype(little, copy=False).tobytes()).decode()


def compressing(encode: Encode, coding: str, ask: Ask) -> Payload:
    """`encode`, and the payload compressed."""
    plain = encode(ask)
    parts = compress(plain.parts, coding)
    return plain._replace(parts=parts, headers={**plain.headers, "content-encoding": coding})
