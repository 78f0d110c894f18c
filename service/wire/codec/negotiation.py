"""Media types and content codings of bodies, negotiated. Knows bytes and headers only."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, overload

import numpy as np
import orjson

from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.errors import BodyTooLarge, InvalidInput, NotAcceptable
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS

JSON = "application/json"
OCTETS = "application/octet-stream"
WINDOWS = {
    "gzip": 16 + zlib.MAX_WBITS,
    "deflate": zlib.MAX_WBITS,
}  # zlib's wbits; deflate means zlib's own format
SAME_CODINGS = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3
MAX_MEMBERS = 1024  # of a gzip body: each costs 10 us, whatever it stands for
COMPRESSED_BYTES = 16 * 1024  # decompressed in one go: 1 ms, whatever they stand for
PIECE_VALUES = 32_768  # numbers written in one go: 2 to 4 ms, in which no other thread runs
VALUE_BYTES = 12  # of one, about
PIECE_BYTES = PIECE_VALUES * VALUE_BYTES
Headers = Mapping[str, str]  # names in lower case
LEVEL = 1  # of compression: answers are floats, which higher levels hardly make smaller
_dumped = partial(orjson.dumps, option=orjson.OPT_SERIALIZE_NUMPY)


def sent_type(headers: Headers) -> str:
    """The request's media type without its parameters; JSON where none is named."""
    return headers.get("content-type", JSON).partition(";")[0].strip().lower()[:60]


def negotiate(headers: Headers, offered: Sequence[str]) -> str:
    """The offered media type that Accept prefers; the first without Accept, and where Accept has
    none of them: a server may disregard it (RFC 9110, 12.5.1), and many clients send one that they
    do not mean, as `text/event-stream`. NotAcceptable for safetensors where there are none: who
    asks for these bytes cannot read JSON.

    Among types of equal quality one that is named goes before one that a range covers, and then
    the one that is offered first.
    """
    accept = headers.get("accept", "*/*")
    if accept in ("*/*", offered[0]):
        return offered[0]
    ranges = dict(_qualities(accept))
    best = max(offered, key=lambda media_type: _preference(ranges, media_type))
    if _preference(ranges, best)[0]:
        return best
    if ranges.get(SAFETENSORS) and SAFETENSORS not in offered:
        message = f"Accept is {accept[:200]!r}: send one of {' and '.join(offered)}"
        raise NotAcceptable(message, param="accept")
    return offered[0]


def _preference(ranges: dict[str, float], media_type: str) -> tuple[float, int]:
    """Quality and precision of the most precise range that covers the media type."""
    kind = media_type.partition("/")[0]
    for precision, media_range in ((2, media_type), (1, f"{kind}/*"), (0, "*/*")):
        if media_range in ranges:
            return ranges[media_range], precision
    return 0.0, 0


def _qualities(header: str) -> list[tuple[str, float]]:
    """`a;q=0.5, b` -> [("a", 0.5), ("b", 1.0)]. A q that is no number counts as none."""
    qualities = []
    for element in header.lower().split(","):
        name, *parameters = (part.strip() for part in element.split(";"))
        quality = next((value[2:].strip() for value in parameters if value.startswith("q=")), "1")
        try:
            qualities.append((name, min(1.0, max(0.0, float(quality)))))
        except ValueError:
            qualities.append((name, 1.0))
    return qualities


@overload
def decompress(body: bytes, coding: str, max_bytes: int) -> bytes: ...
@overload
def decompress(body: bytes, coding: str, max_bytes: int, stop_bytes: int) -> bytes | None: ...
def decompress(
    body: bytes, coding: str, max_bytes: int, stop_bytes: int | None = None
) -> bytes | None:
    """Never makes more than max_bytes. None if there are more than stop_bytes, or if it takes long
    to find out: any number of bytes may stand for none."""
    if stop_bytes is not None and len(body) > COMPRESSED_BYTES:
        return None
    # many clients send deflate without zlib's head, and servers take it (RFC 9110, 8.4.1.2)
    is_raw = coding == "deflate" and not _has_zlib_head(body)
    window = -zlib.MAX_WBITS if is_raw else WINDOWS[coding]
    stream, pieces, num_members = zlib.decompressobj(window), slices(body, COMPRESSED_BYTES), 1
    plain_parts = list[bytes]()
    num_left = 1 + (max_bytes if stop_bytes is None else min(stop_bytes, max_bytes))
    piece: bytes | memoryview | None = None
    try:
        while num_left and (piece := piece or next(pieces, None)):
            if stream.eof:
                if coding != "gzip" or num_members == MAX_MEMBERS:
                    break
                # several members are one body (RFC 1952, 2.2)
                stream, num_members = zlib.decompressobj(window), num_members + 1
            plain_parts.append(stream.decompress(piece, num_left))
            num_left -= len(plain_parts[-1])
            piece = stream.unused_data
            checkpoint()
    except zlib.error as error:
        fault = "has bytes after its end" if num_members > 1 else f"is not {coding}: {error}"
        raise InvalidInput(f"the body {fault}", param="content-encoding") from None
    if (num_bytes := sum(map(len, plain_parts))) > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes decompressed, the limit")
    if stop_bytes is not None and num_bytes > stop_bytes:
        return None
    if not stream.eof or piece or next(pieces, None):
        fault = "has bytes after its end" if stream.eof else "is cut short"
        raise InvalidInput(f"the body's {coding} stream {fault}", param="content-encoding")
    return b"".join(plain_parts)


def _has_zlib_head(body: bytes) -> bool:
    """RFC 1950, 2.2: the method, and a check."""
    return body[:1] != b"" and body[0] & 15 == zlib.DEFLATED and not int.from_bytes(body[:2]) % 31


def wanted_coding(headers: Headers) -> str | None:
    """The content coding of the response: the one that accept-encoding names alone, if known.

    A list is no wish: HTTP libraries send one by themselves.
    """
    accept = headers.get("accept-encoding", "identity")
    if "," in accept or accept == "identity":
        return None
    ((coding, quality),) = _qualities(accept)
    return coding if coding in WINDOWS and quality else None


def compress(parts: Sequence[bytes | memoryview], coding: str) -> list[bytes | memoryview]:
    stream = zlib.compressobj(LEVEL, wbits=WINDOWS[coding])
    done: list[bytes | memoryview] = []
    for part in parts:
        for piece in slices(part, PIECE_BYTES):
            if output := stream.compress(piece):
                done.append(output)
            checkpoint()
    return [*done, stream.flush()]


def slices(part: bytes | memoryview, num_bytes: int) -> Iterator[bytes | memoryview]:
    """Slices of at most `num_bytes` bytes, none of them copied."""
    if len(part) <= num_bytes:
        yield part
        return
    view = memoryview(part)
    for start in range(0, len(view), num_bytes):
        yield view[start : start + num_bytes]


class Several(list[Any]):
    """Neighbouring items of an array that is made while it is written."""


def written(value: Any, num_bytes: int = 0) -> list[bytes | memoryview]:
    """The value as JSON, numpy's arrays as lists, in parts of about PIECE_BYTES.

    Joined they are the bytes of one `orjson.dumps`, which would hold the interpreter's lock to its
    end. An iterator, in the value or in another one, is an array: its items are made one after
    another, or `Several` at once, and only their JSON is kept.

    num_bytes: about how many it will be, if that is known.
    """
    if num_bytes <= PIECE_BYTES:
        with suppress(TypeError):  # there is an iterator in it
            return [_dumped(value)]
    parts: list[bytes | memoryview] = []
    pending = bytearray()  # not a list of the small parts: see `fragment`
    for part in _parts(value):
        pending += part
        if len(pending) >= PIECE_BYTES:
            parts.append(bytes(pending))
            pending.clear()
        checkpoint()
    return [*parts, bytes(pending)]


def fragment(value: Any) -> orjson.Fragment:
    """The value as JSON, as a part of a later `orjson.dumps`. A copy: what orjson returns takes
    4 KiB or more, however short it is."""
    return orjson.Fragment(bytes(memoryview(orjson.dumps(value))))


def _parts(value: Any) -> Iterator[bytes]:
    """Joined they are the value's JSON."""
    if isinstance(value, dict) and value:
        joint = b"{"
        for name, inner in value.items():
            assert isinstance(name, str)
            yield joint + _dumped(name) + b":"
            yield from _parts(inner)
            joint = b","
        yield b"}"
    elif isinstance(value, list | np.ndarray) and len(value):
        joint = b"["
        for start, end, size in _groups(value):
            if end - start == 1 and size > PIECE_VALUES and not isinstance(value[start], str):
                yield joint
                yield from _parts(value[start])
            else:
                yield joint + _dumped(value[start:end])[1:-1]
            joint = b","
        yield b"]"
    elif isinstance(value, Iterator):
        joint = b"["
        for inner in value:
            if not isinstance(inner, Several):
                yield joint
                yield from _parts(inner)
            elif inner:
                yield joint + _dumped(inner)[1:-1]
            else:
                continue
            joint = b","
        yield b"[]" if joint == b"[" else b"]"
    else:
        yield _dumped(value)


def _groups(values: Any) -> Iterator[tuple[int, int, int]]:
    """Groups of about PIECE_VALUES numbers: the first value, one past the last, their numbers."""
    if isinstance(values, np.ndarray):
        num_each = values.size // len(values)
        step = max(1, PIECE_VALUES // max(1, num_each))
        yield from (
            (start, min(start + step, len(values)), num_each * step)
            for start in range(0, len(values), step)
        )
        return
    start = size = 0
    for end, inner in enumerate(values):
        num_more = _size(inner)
        if end > start and size + num_more > PIECE_VALUES:
            yield start, end, size
            start, size = end, 0
        size += num_more
    yield start, len(values), size


def _size(value: Any) -> int:
    """Numbers in the value; of a text, as many as take its place."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return sum(map(_size, value))
    return 1 + len(value) // VALUE_BYTES if isinstance(value, str) else 1
