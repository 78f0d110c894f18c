"""Faults of a request's head, whatever server has parsed it."""

from collections.abc import Collection
from itertools import chain

from starlette.types import Scope

from addnorm.service.errors import HeadTooLarge, InvalidHead, ServiceError

SINGLE = {  # headers that may be sent once
    b"authorization",
    b"content-encoding",
    b"content-type",
    b"host",
    b"x-request-id",
    b"x-request-timeout-ms",
}
LINE_BYTES = len(": \r\n")
MAX_HEAD_BYTES = 32 * 1024  # and of each run of chunk sizes, extensions and trailers in a body
Headers = Collection[tuple[bytes, bytes]]  # names in lower case


def wrong_head(scope: Scope) -> ServiceError | None:
    headers: Headers = scope["headers"]
    http_version = scope.get("http_version", "1.1")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or http_version != "1.1"):
        # the end of the body must be beyond doubt
        sent = b", ".join(codings).decode("latin-1")[:60]
        return InvalidHead(
            f"transfer-encoding is {sent!r} in HTTP/{http_version}: send chunked alone, in"
            " HTTP/1.1; name a compression in content-encoding",
            param="transfer-encoding",
        )
    target = scope.get("raw_path") or scope["path"].encode()
    num_bytes = len(target) + len(scope.get("query_string", b"")) + LINE_BYTES * len(headers)
    num_bytes += sum(map(len, chain.from_iterable(headers)))
    if num_bytes > MAX_HEAD_BYTES:
        return too_large(num_bytes)
    names = [name for name, _ in headers]
    if len(set(names)) < len(names):
        for name in SINGLE:
            if names.count(name) > 1:
                return InvalidHead(f"the header {name.decode()} is sent twice", param=name.decode())
    return None


def too_large(num_bytes: int) -> HeadTooLarge:
    """num_bytes: read so far."""
    return HeadTooLarge(
        "the request line and headers, or the body's chunk sizes, extensions and trailers, have"
        f" {num_bytes} bytes or more, the limit is {MAX_HEAD_BYTES}: send fewer or shorter ones"
    )
