"""What bodies are written in: media types and content codings, negotiated. Knows bytes and headers only."""

import gzip
import zlib
from collections.abc import Sequence

from starlette.datastructures import Headers

from service.errors import BodyTooLarge, InvalidInput, NotAcceptable, UnsupportedMediaType

JSON = "application/json"
OCTETS = "application/octet-stream"
WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # zlib's wbits; deflate means zlib's own format
LEVEL = 1  # of compression: answers are floats, which higher levels hardly make smaller


def sent_type(headers: Headers) -> str:
    """The request's media type without its parameters; JSON where none is named."""
    return headers.get("content-type", JSON).partition(";")[0].strip().lower()[:60]


def require_json(headers: Headers) -> None:
    """For routes that take nothing else."""
    if (media_type := sent_type(headers)) != JSON:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON}")


def negotiated(headers: Headers, offered: Sequence[str]) -> str:
    """Which of the offered media types Accept prefers (RFC 9110, 12.5.1), the first where it says nothing."""
    accept = headers.get("accept", "*/*")
    if accept in ("*/*", offered[0]):
        return offered[0]
    ranges = dict(_weighted(accept))
    # the most specific range that fits decides; among equals, who is named wins, then who is offered first
    best = max(offered, key=lambda media_type: _preference(ranges, media_type))
    if not _preference(ranges, best)[0]:
        raise NotAcceptable(f"Accept is {accept[:200]!r}: offered are {' and '.join(offered)}", param="accept")
    return best


def _preference(ranges: dict[str, float], media_type: str) -> tuple[float, int]:
    """Quality and how closely it is meant."""
    kind = media_type.partition("/")[0]
    for closeness, named in ((2, media_type), (1, f"{kind}/*"), (0, "*/*")):
        if named in ranges:
            return ranges[named], closeness
    return 0.0, 0


def _weighted(header: str) -> list[tuple[str, float]]:
    """`a;q=0.5, b` -> [("a", 0.5), ("b", 1.0)]"""
    weighted = []
    for element in header.lower().split(","):
        name, *parameters = (part.strip() for part in element.split(";"))
        quality = next((value[2:].strip() for value in parameters if value.startswith("q=")), "1")
        try:
            weighted.append((name, min(1.0, max(0.0, float(quality)))))
        except ValueError:
            raise InvalidInput(f"q is {quality[:60]!r}: a number from 0 to 1", param="accept") from None
    return weighted


def decompressed(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Never makes more than max_bytes, whatever the body says it holds."""
    stream = zlib.decompressobj(WINDOWS[coding])
    try:
        plain = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise InvalidInput(f"the body is not {coding}: {error}", param="content-encoding") from None
    if len(plain) > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes decompressed, the limit")
    if not stream.eof or stream.unused_data:
        what = "has bytes after its end" if stream.eof else "is cut short"
        raise InvalidInput(f"the body's {coding} stream {what}", param="content-encoding")
    return plain


def wanted_coding(headers: Headers) -> str | None:
    """The answer's coding. One named alone is a wish; a list is what HTTP libraries send of themselves."""
    accept = headers.get("accept-encoding")
    if accept is None or "," in accept:
        return None
    ((coding, quality),) = _weighted(accept)
    return coding if coding in WINDOWS and quality else None


def compressed(body: bytes, coding: str) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0) if coding == "gzip" else zlib.compress(body, LEVEL)
