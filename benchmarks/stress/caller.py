"""One blocking caller: a keep-alive connection that sends any request and drops the answer.

For few large requests. `load.client` is lighter for many small ones.
"""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import orjson

from addnorm.load.client import NO_RESPONSE

READ_BYTES = 1 << 20
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Request:
    """`body` goes out as it is: compressed or in chunks where the headers say so."""

    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, path: str, body: Any, **headers: str) -> Self:
        """A body that is not yet JSON, and headers as `having` takes them."""
        return cls(path, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), JSON).having(
            **headers
        )

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    def having(self, **headers: str) -> Self:
        """The same with more headers, or others. In their names, `_` stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **named})


class Seen(NamedTuple):
    """What a caller sees of an answer. Seconds count from before the request is sent."""

    status: int  # NO_RESPONSE if no whole answer came
    first_byte_s: float
    num_bytes: int
    why: str = ""  # there is none


class Caller:
    def __init__(self, host: str, port: int, timeout_s: float = 60.0) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._buffer = bytearray(READ_BYTES)

    def ask(self, request: Request) -> Seen:
        """The answer, read to its end and dropped. Reconnects for the next request if it breaks."""
        started = time.monotonic()
        try:
            self._connection.request(
                request.method, request.path, request.body, dict(request.headers)
            )
            with self._connection.getresponse() as answer:
                first_byte_s, num_bytes = time.monotonic() - started, 0
                while num_read := answer.readinto(self._buffer):
                    num_bytes += num_read
            missing = answer.length
        except (OSError, http.client.HTTPException) as error:  # also TimeoutError
            self.close()
            return Seen(
                NO_RESPONSE, time.monotonic() - started, 0, f"{type(error).__name__} {error}"
            )
        if missing:
            self.close()
            return Seen(NO_RESPONSE, first_byte_s, num_bytes, f"{missing} bytes are missing")
        return Seen(answer.status, first_byte_s, num_bytes)

    def close(self) -> None:
        self._connection.close()
