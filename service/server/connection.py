"""One connection: uvicorn's, with bounds on its head, on the time it takes to send, and on the time it takes to read.

uvicorn has none of these. What is wrong with a whole head goes to the application, which answers and logs it; what
never becomes a request is answered here.
"""

import socket
import time
from asyncio import BaseTransport, BufferedProtocol
from collections.abc import Callable
from itertools import chain
from typing import Any, ClassVar, cast

import orjson
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from addnorm.service.errors import (
    HeadTooLarge,
    InvalidInput,
    RequestTimeout,
    ServiceError,
    TooManyConnections,
)
from addnorm.service.settings import Settings

SINGLE = {
    b"authorization",
    b"content-encoding",
    b"content-type",
    b"host",
    b"x-request-id",
    b"x-request-timeout-ms",
}
LINE_BYTES = len(": \r\n")
BODY_GRACE_S = 2.0  # the application refuses a slow body first, in words
READ_BYTES = 16 * 1024  # at once: what is parsed in one piece holds up every other connection
LONG_PIECE_S = 0.0005  # to parse; a piece of a plain body takes a twentieth
ASK_AFTER_S = (
    0.05  # how long a caller that sends no more waits before it is asked whether it is still there
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(HttpToolsProtocol):
    """Swept once a second: timers for each request would cost more."""

    settings: ClassVar[Settings]  # of the server; see `limited`

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.parser = cast(HttpRequestParser, Parser(self))
        self._since: float | None = None  # when what is being received began
        self._in_head = self._in_body = False
        self._num_loose = 0  # bytes received since the last head or body ended, or began, or some of the body came
        self._is_surplus = self._is_refused = self._has_ended = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = Flow(self)
        self._since = self._all_sent = (
            self.loop.time()
        )  # _all_sent: when there was last nothing to send
        self._is_surplus = len(self.connections) > self.settings.max_connections
        if len(self.connections) > 2 * self.settings.max_connections:
            transport.abort()  # no longer worth an answer

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return  # not parsed: the parser keeps a header until it is whole
        if self._since is None:
            self._since = self.loop.time()
        self._num_loose += len(data)
        super().data_received(data)
        if self._num_loose > self.settings.max_header_bytes and not self._is_refused:
            self._refuse(self._too_large(self._num_loose))

    def let_others_go_first(self) -> None:
        """Reads on in the event loop's next round: in one round it would read up to 32 pieces."""
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._num_loose = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer, which comes too late to say anything of the request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the head comes again, see Parser
        self._in_head, self._in_body, self._num_loose = False, True, 0
        if refusal := self._wrong():
            self.scope["state"]["refusal"] = refusal
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # as above
        super().on_message_complete()
        self._since, self._in_body, self._num_loose = None, False, 0

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's own returns bool | None
        """Whether to keep the connection: a caller that has sent all it wants may still read its answer.

        One that has left looks the same, so it is asked. TLS has no such half: there, asyncio closes in any case.
        """
        self._has_ended = self.scheme == "http" and self._is_answering() and not self._in_body
        if self._has_ended:
            self.cycle.keep_alive = False  # the last answer closes
            self.loop.call_later(ASK_AFTER_S, self._ask_whether_left)
        return self._has_ended

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _ask_whether_left(self) -> None:
        """A caller must take a 100 at any time before its answer (RFC 9110, 15.2); who has left resets the connection."""
        is_free = self._is_answering() and not self.cycle.response_started and not self.pipeline
        if is_free and not self.transport.is_closing() and self.scope["http_version"] == "1.1":
            self.transport.write(CONTINUE)
            self.loop.call_later(ASK_AFTER_S, self._end_if_left)

    def _end_if_left(self) -> None:
        """Nobody reads any more, so nobody else would notice."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()

    def _wrong(self) -> ServiceError | None:
        """What is wrong with a whole head."""
        if self._is_surplus:
            limit = self.settings.max_connections
            return TooManyConnections(
                f"{limit} connections are open, the limit: come back later", retry_after_s=1
            )
        if refusal := self._wrong_coding():
            return refusal
        num_bytes = (
            len(self.url)
            + sum(map(len, chain.from_iterable(self.headers)))
            + LINE_BYTES * len(self.headers)
        )
        if num_bytes > self.settings.max_header_bytes:
            return self._too_large(num_bytes)
        names = [name for name, _ in self.headers]
        if len(set(names)) < len(names):
            for name in SINGLE:
                if names.count(name) > 1:
                    return InvalidInput(
                        f"the header {name.decode()} is sent twice", param=name.decode()
                    )
        return None

    def _wrong_coding(self) -> InvalidInput | None:
        """Where a body ends must be beyond doubt."""
        codings = [
            value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"
        ]
        if codings in ([], [b"chunked"]) and (
            not codings or self.parser.get_http_version() == "1.1"
        ):
            return None
        sent = b", ".join(codings).decode("latin-1")[:60]
        version = self.parser.get_http_version()
        return InvalidInput(
            f"transfer-encoding is {sent!r} in HTTP/{version}: send chunked alone, in HTTP/1.1; what is compressed"
            " goes by content-encoding",
            param="transfer-encoding",
        )

    def _too_large(self, num_bytes: int) -> HeadTooLarge:
        what = (
            "the body's chunk sizes, extensions and trailers have"
            if self._in_body
            else "the head has"
        )
        return HeadTooLarge(
            f"{what} {num_bytes} bytes, the limit is {self.settings.max_header_bytes}"
        )

    def send_400_response(self, msg: str) -> None:
        """What the parser does not take."""
        self._refuse(InvalidInput(f"this is no HTTP/1.1 request: {msg}", code="invalid_http"))

    def _refuse(self, error: ServiceError) -> None:
        """Answers what never became a whole request, unless an earlier one is being answered, and closes."""
        self._is_refused = True
        is_answering = self._is_answering()
        is_its_own = is_answering and self.cycle.more_body and not self.cycle.response_started
        is_answered = self._in_body and not is_answering
        if is_answering and not is_its_own:
            self.cycle.keep_alive = False  # what came before is answered, the last of it closes
            return
        if not self.transport.is_closing() and not self.pipeline and not is_answered:
            known = {
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
            body = orjson.dumps({"error": known})
            head = (
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                % len(body)
            )
            self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    def sweep(self, now: float) -> None:
        """Ends what takes too long."""
        if self._has_ended:
            self._end_if_left()
        if self._since is not None:
            self._sweep_received(now, now - self._since)
        if not self.transport.get_write_buffer_size():
            self._all_sent = now
        elif now - self._all_sent > self.settings.send_timeout_s:
            self.transport.abort()

    def _sweep_received(self, now: float, seconds: float) -> None:
        limit_s = self.settings.body_timeout_s
        if self.flow.read_paused:
            self._since = now  # it is we who do not read
        elif seconds > limit_s + BODY_GRACE_S:
            self.transport.abort()
        elif seconds > limit_s and self._in_head:
            self._refuse(RequestTimeout(f"the head did not arrive within {limit_s:g} s"))
        elif seconds > limit_s and self.cycle is not None:
            self.scope["state"]["late"] = RequestTimeout(
                f"the body did not arrive within {limit_s:g} s"
            )
            self.cycle.message_event.set()  # wakes who waits for the body


class Parser:
    """httptools', but one that goes on in HTTP/1.1 after a head that asks for another protocol (HTTP/2, as Java's client
    does). Who asks may be left with this one (RFC 9110, 7.8), but httptools would take what follows for the other's."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._parser = self._new()

    def _new(self) -> HttpRequestParser:
        parser = HttpRequestParser(self._connection)
        parser.set_dangerous_leniencies(
            lenient_data_after_close=True
        )  # as uvicorn does: so requests sent ahead are read
        return parser

    def feed_data(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as asked:
                data = self._head_without_upgrade() + data[asked.args[0] :]
                self._parser = self._new()

    def _head_without_upgrade(self) -> bytes:
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        if method == b"CONNECT":
            raise HttpParserError("CONNECT is for proxies")
        lines = [
            b"%b: %b\r\n" % header for header in self._connection.headers if header[0] != b"upgrade"
        ]
        return b"".join(
            (b"%b %b HTTP/%b\r\n" % (method, self._connection.url, version), *lines, b"\r\n")
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class Flow(FlowControl):
    """uvicorn's, but nothing is read while requests sent ahead wait: each would be kept until its turn."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.transport)
        self._pipeline = connection.pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class Steps(BufferedProtocol):
    """Reads for a connection, little at a time: event loops hand a Protocol up to 256 KiB, which may be 10,000 requests."""

    def __init__(self, connection: Connection, buffer: bytearray) -> None:
        """buffer: may be shared, for what is read is parsed at once."""
        self._connection, self._buffer = connection, buffer

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        started = time.monotonic()
        self._connection.data_received(bytes(memoryview(self._buffer)[:nbytes]))
        if time.monotonic() - started > LONG_PIECE_S:
            self._connection.let_others_go_first()

    def connection_made(self, transport: BaseTransport) -> None:
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def limited(settings: Settings) -> Callable[..., Steps]:
    """Makes one server's connections: uvicorn calls it, and hands nothing of ours on."""
    kind, buffer = type("Connection", (Connection,), {"settings": settings}), bytearray(READ_BYTES)
    return lambda **named: Steps(kind(**named), buffer)
