"""One blocking caller: a keep-alive connection that sends any request and drops the answer.

For few large requests. `load.client` is lighter for many small ones.
"""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

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
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **fields})

    def wire(self) -> bytes:
        """The bytes of HTTP/1.1, with the length of the body."""
        body = self.body or b""
        headers = {"host": "stress", "content-length": str(len(body)), **self.headers}
        lines = [f"{self.method} {self.path} HTTP/1.1", *map(": ".join, headers.items()), "", ""]
        return "\r\n".join(lines).encode() + body


class Caller:
    def __init__(self, host: str, port: int, timeout_s: float = 60.0) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._buffer = bytearray(READ_BYTES)

    def ask(self, request: Request) -> int:
        """The status of the answer, which is read to its end and dropped; NO_RESPONSE if no whole
        answer came. Then the next request reconnects."""
        try:
            self._connection.request(
                request.method, request.path, request.body, dict(request.headers)
            )
            with self._connection.getresponse() as answer:
                while answer.readinto(self._buffer):
                    pass
        except (OSError, http.client.HTTPException):  # also TimeoutError
            self.close()
            return NO_RESPONSE
        if answer.length:  # what is missing
            self.close()
            return NO_RESPONSE
        return answer.status

    def close(self) -> None:
        self._connection.close()
