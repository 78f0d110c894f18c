"""uvicorn's connection, with bounds on heads and on the time that callers take.

What is wrong with a whole head goes to the application in the request's context: the application
answers and logs it. What never becomes a request is answered here.
"""

import socket
import time
from asyncio import BaseTransport, BufferedProtocol
from collections.abc import Callable
from typing import Any, ClassVar, cast

from httptools import HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from addnorm.service.errors import (
    InvalidHttp,
    RequestTimeout,
    ServiceError,
    TooManyConnections,
)
from addnorm.service.protocols.dialect_errors import OPENAI_ERRORS
from addnorm.service.server.error_response import error_response
from addnorm.service.server.http.flow_control import Flow
from addnorm.service.server.http.head import too_large, wrong_head
from addnorm.service.server.http.http_parser import Parser
from addnorm.service.server.http.joined_head import JoinedHead
from addnorm.service.server.http.last_answer import LastAnswer, drawn_age, has_unread
from addnorm.service.server.http.room import Room
from addnorm.service.settings import Settings
from addnorm.service.telemetry.request_context import attach_context

BODY_GRACE_S = 2.0  # the application rejects a slow body first, with a message
INVALID_HTTP = (
    "this is no HTTP/1.1 request: the request line, a header, Content-Length or a chunk is"
    " malformed (TLS and HTTP/2 look so too)"
)
READ_BYTES = 16 * 1024  # parsed at once; other connections wait meanwhile
LONG_PIECE_S = 0.0005  # a plain body's 16 KiB take a twentieth of that
ASK_AFTER_S = 0.05  # before a caller that sends no more is asked whether it is still there
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(HttpToolsProtocol):
    """The server calls `sweep` once a second: timers for each request would cost more."""

    # of the server; see `protocol_factory`
    settings: ClassVar[Settings]
    room: ClassVar[Room["Connection"]]

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self.parser = cast(HttpRequestParser, Parser(self))
        self._since: float | None = None  # when what is being received began
        self._in_head = self._in_body = False
        # bytes that are not body: since the last head or body began or ended, or body came
        self._num_loose = 0
        self._is_rejected = False  # nothing that arrives is parsed any more
        self.aged_at: float | None = None  # from then on a response may be the last one
        self._has_ended = False  # the caller sends no more

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = Flow(self)
        self._since = self.idle_since = self.loop.time()
        self._all_sent = self._since  # when there was last nothing to send
        self._busy_since = self._since  # when it last was idle
        if self.settings.connection_max_age_s:
            self.aged_at = self._since + drawn_age(self.settings.connection_max_age_s)
        self.room.enter(self)

    @property
    def key(self) -> str:
        """The API key of the request under way; empty without one."""
        return attach_context(self.cycle.scope["state"]).key if self._is_answering() else ""

    def waits_for_caller(self, now: float) -> float:
        """Seconds that the rest of a body is awaited, or that a response is read. Where there are
        keys, all that a caller without one keeps it busy: each of its answers takes no time."""
        if self._in_body and self._since is not None and not self.flow.read_paused:
            return now - self._since
        if self.settings.needs_keys and self._is_answering() and not self.key:
            return now - self._busy_since
        return now - self._all_sent if self.transport.get_write_buffer_size() else 0.0

    def abort(self) -> None:
        self.transport.abort()

    def end(self, error: ServiceError) -> None:
        """Ends the request that waits for its caller: with the error, if it can still be told."""
        if not self._in_body or self.cycle is None:
            self.abort()
            return
        attach_context(self.scope["state"]).late = error
        self.cycle.message_event.set()  # wakes the application, which waits for the body

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return  # not parsed: the parser would keep a header until it is whole
        if self._since is None:
            self._since = self.loop.time()
        self._num_loose += len(data)
        super().data_received(data)
        if self._num_loose > self.settings.max_header_bytes and not self._is_rejected:
            self._reject(too_large(self._num_loose, self.settings))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it to what is lost by an error
        self.room.leave(self)
        if self._is_answering():
            deadline = attach_context(self.cycle.scope["state"]).deadline
            if deadline:  # else the body has not been read: who reads it is told
                deadline.leave()

    def yield_to_others(self) -> None:
        """Reads on in the event loop's next round. In one round it would read up to 32 pieces."""
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
        if self._in_head:  # else it is a trailer, which is ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the head is parsed again, see Parser
        self._in_head, self._in_body, self._num_loose = False, True, 0
        if self in self.room.idle:
            del self.room.idle[self]
            self._busy_since = self.loop.time()
        context = attach_context(self.scope["state"])
        context.head_error, context.is_closing = self._wrong(), self.transport.is_closing
        if self.aged_at is not None:
            context.ends_connection = self._ends_by_age
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose answer has no body
            self.cycle.transport = cast(Any, JoinedHead(self.transport))

    def on_body(self, body: bytes) -> None:
        self._num_loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # the head is parsed again
        super().on_message_complete()
        self.flow.resume_reading()  # the end of a large body may have paused it; see eof_received
        self._since, self._in_body, self._num_loose = None, False, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and not self._is_answering():
            self.idle_since = self.loop.time()
            self.room.idle[self] = None

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's own returns bool | None
        """Whether to keep the connection: a caller that sends no more may still read its response.

        A caller that has left looks the same, so it is asked. In TLS asyncio closes in any case.
        """
        self._has_ended = self.scheme == "http" and self._is_answering() and not self._in_body
        if self._has_ended:
            self.cycle.keep_alive = False  # the connection is closed after the last answer
            self.loop.call_later(ASK_AFTER_S, self._ask_whether_left)
        return self._has_ended

    def _ends_by_age(self) -> bool:
        """Whether the response that begins now is the connection's last one.

        Not while its request still arrives, nor if others were sent ahead: their answers come
        first. An idle connection is not ended by its age, because a request may be on its way.
        """
        cycle = self.cycle
        is_due = self.aged_at is not None and self.loop.time() >= self.aged_at
        if not is_due or not cycle.keep_alive or cycle.more_body or self.pipeline:
            return False
        cycle.transport = cast(Any, LastAnswer(self.transport, self._drop_the_rest))
        return True

    def _drop_the_rest(self) -> None:
        """The caller was told that nothing more is answered. `timeout_keep_alive` bounds the wait
        for its end."""
        self._is_rejected, self._since = True, None
        self.pipeline.clear()

    def shutdown(self) -> None:
        """Closes the connection, unless a request arrives or has arrived. Its answer ends it."""
        is_lost = self._is_rejected or self.transport.is_closing()
        if is_lost or not (self._in_head or has_unread(self.transport)):
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, unless a request has arrived that waits to be read."""
        is_closing = self._is_rejected or self.transport.is_closing()
        if is_closing or not has_unread(self.transport):
            super().timeout_keep_alive_handler()
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _ask_whether_left(self) -> None:
        """Sends a 100, which every caller must accept before its response (RFC 9110, 15.2).

        If the caller has left, its side resets the connection.
        """
        is_free = self._is_answering() and not self.cycle.response_started and not self.pipeline
        if is_free and not self.transport.is_closing() and self.scope["http_version"] == "1.1":
            self.transport.write(CONTINUE)
            self.loop.call_later(ASK_AFTER_S, self._end_if_left)

    def _end_if_left(self) -> None:
        """Nothing else notices that the caller has left: nothing reads from the connection."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()

    def _wrong(self) -> ServiceError | None:
        """What is wrong with a whole head."""
        if self in self.room.surplus:
            limit = self.settings.max_connections
            return TooManyConnections(
                f"{limit} connections are open, the limit; retry in 1 s", retry_after_s=1
            )
        return wrong_head(self.url, self.headers, self.parser.get_http_version(), self.settings)

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it when the parser does not accept the bytes."""
        self._reject(InvalidHttp(INVALID_HTTP))

    def _reject(self, error: ServiceError) -> None:
        """Answers what never became a whole request, and closes.

        If an earlier request is being answered, the connection is closed after that instead.
        """
        self._is_rejected = True
        is_answering = self._is_answering()
        is_its_own = is_answering and self.cycle.more_body and not self.cycle.response_started
        is_answered = self._in_body and not is_answering
        if is_answering and not is_its_own:
            self.cycle.keep_alive = False
            return
        if not self.transport.is_closing() and not self.pipeline and not is_answered:
            answer = error_response(OPENAI_ERRORS.envelope, error)
            headers = (b"%b: %b\r\n" % header for header in answer.raw_headers)
            head = STATUS_LINE[answer.status_code] + b"".join(headers)
            self.transport.write(head + b"\r\n" + bytes(answer.body))
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
            self._since = now  # the server is not reading
        elif seconds > limit_s + BODY_GRACE_S:
            self.transport.abort()
        elif seconds > limit_s and self._in_head:
            self._reject(RequestTimeout(f"the head did not arrive within {limit_s:g} s"))
        elif seconds > limit_s and self.cycle is not None:
            self.end(RequestTimeout(f"the body did not arrive within {limit_s:g} s"))


class PieceReader(BufferedProtocol):
    """Reads for a connection in small pieces.

    Event loops hand a Protocol up to 256 KiB at once, which may be 10,000 requests.
    """

    def __init__(self, connection: Connection, buffer: bytearray) -> None:
        """buffer: may be shared, since what is read is parsed at once."""
        self._connection, self._buffer = connection, buffer

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        started = time.monotonic()
        self._connection.data_received(bytes(memoryview(self._buffer)[:nbytes]))
        if time.monotonic() - started > LONG_PIECE_S:
            self._connection.yield_to_others()

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


def protocol_factory(
    settings: Settings, connection: type[Connection] = Connection
) -> Callable[..., PieceReader]:
    """What uvicorn makes the connections of one server with."""
    own = {"settings": settings, "room": Room[Connection](settings.max_connections)}
    kind = type("Connection", (connection,), own)
    buffer = bytearray(READ_BYTES)
    return lambda **named: PieceReader(kind(**named), buffer)
