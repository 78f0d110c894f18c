"""uvicorn's connection, with bounds on heads, on their number, and on the time that callers take.

What is wrong with a whole head goes to the application, which answers and logs it. What never
becomes a request is answered here. The application bounds the time of bodies that it reads.
"""

import time
from asyncio import BufferedProtocol
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fcntl import ioctl
from functools import partial
from itertools import chain
from termios import FIONREAD
from typing import Any, ClassVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from addnorm.service.errors import (
    HeadTooLarge,
    InvalidHead,
    InvalidHttp,
    RequestTimeout,
    ServiceError,
)
from addnorm.service.server.error_response import error_response
from addnorm.service.settings import Settings
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import ASK

BODY_GRACE_S = 2.0  # the application rejects a slow body first, with a message
INVALID_HTTP = (
    "this is not an HTTP/1.1 request: the request line, a header, Content-Length or a chunk is"
    " malformed (TLS and HTTP/2 look so too)"
)
CONTINUE = b"HTTP/1.1 100"  # sent before the answer
READ_BYTES = 16 * 1024  # parsed at once; other connections wait meanwhile
LONG_PIECE_S = 0.0005  # a plain body's 16 KiB take a twentieth of that
# From then on a connection without a request makes room for a new one. Larger: connections that ask
# for nothing keep others out for longer. Smaller: callers far away lose those that they just made.
SILENT_S = 1.0
# The same of a connection whose caller does not take an answer that needed no key, which anybody
# may ask for. Larger: such callers keep others out for longer. Smaller: where connections are few,
# readers on slow networks lose the pages that they read.
UNREAD_S = 0.25
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


class Flow(FlowControl):
    """uvicorn's, but nothing is read while requests sent ahead wait: all of them would be kept.
    Beside one of them the server reads on, or it would not learn that their caller has left."""

    pipeline: Collection[Any]  # the connection's

    def resume_reading(self) -> None:
        if len(self.pipeline) < 2:
            super().resume_reading()


@dataclass
class HeadWithBody:
    """The transport of one answer, until its head and the first part of its body are there. uvicorn
    writes them apart, and uvloop sends each write at once, as a packet of its own."""

    cycle: Any  # uvicorn's, which answers one request
    transport: Any
    head: bytes = b""

    def write(self, part: bytes) -> None:
        if self.head:
            self.cycle.transport = self.transport
            self.transport.writelines((self.head, part))
        elif part.startswith(CONTINUE):
            self.transport.write(part)
        else:
            self.head = part

    def close(self) -> None:
        # of an answer that the application has not ended
        if self.head and not self.transport.is_closing():
            self.transport.write(self.head)
        self.transport.close()

    def is_closing(self) -> bool:
        return bool(self.transport.is_closing())


class Connection(HttpToolsProtocol):
    """The server calls `sweep` once a second: timers for each request would cost more."""

    # of the server; see `protocol_factory`
    settings: ClassVar[Settings]
    # those without a request, longest idle first: no whole head has come, or all are answered
    idle: ClassVar[dict["Connection", None]]
    # those whose answer needed no key and is not taken, longest waiting first
    unread: ClassVar[dict["Connection", None]]
    surplus: ClassVar[dict["Connection", None]]  # those over the limit, in the order they came

    _since: float | None = None  # when the head or body that is being received began
    _in_head = _in_body = False
    _num_loose = 0  # bytes that are not body: since a head or body began or ended, or body came
    _is_rejected = False  # nothing that arrives is parsed any more

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = Flow(transport)
        self.flow.pipeline = self.pipeline
        self._unanswered = list[Any]()  # uvicorn's cycles: the one that is answered, `pipeline`
        self._since = self.idle_since = self.unread_since = self.loop.time()
        self._all_sent = self._since  # when there was last nothing to send
        self.idle[self] = None
        limit = self.settings.max_connections
        if len(self.connections) > limit and not self._makes_room():
            self.surplus[self] = None
        if len(self.connections) > 2 * limit and self.surplus:
            # the newest may be a probe, which is answered; this one has had time to ask
            oldest = next(iter(self.surplus))
            del self.surplus[oldest]
            oldest.transport.abort()

    def _makes_room(self) -> bool:
        """Closes what anybody may open or ask for without a key, so that it keeps nobody out."""
        oldest = next(iter(self.unread), None)
        if oldest is None or self.idle_since - oldest.unread_since < UNREAD_S:
            oldest = next(iter(self.idle))  # at least this one
            if self.idle_since - oldest.idle_since < SILENT_S:
                return False
        self.unread.pop(oldest, None)
        self.idle.pop(oldest, None)
        oldest.transport.abort()
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        ask = self._unanswered[0].scope["state"].get(ASK) if self._unanswered else None
        if ask is None or not (ask.key or ask.record.is_inferred):
            self.unread_since = self.loop.time()
            self.unread[self] = None

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return  # not parsed: the parser would keep a header until it is whole
        if self._since is None:
            self._since = self.loop.time()
        self._num_loose += len(data)
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                break
            except (HttpParserUpgrade, HttpParserError) as interruption:
                method = self.parser.get_method()
                if isinstance(interruption, HttpParserError) or method == b"CONNECT":  # for proxies
                    self.logger.warning("Invalid HTTP request received.")
                    self._reject(InvalidHttp(INVALID_HTTP))
                    break
                # Java's client asks for HTTP/2, which a server may ignore (RFC 9110, 7.8). What
                # follows would be the other protocol's to the parser: it gets the head without that
                version = self.parser.get_http_version().encode()
                head = [b"%b %b HTTP/%b" % (method, self.url, version)]
                head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
                data = b"\r\n".join((*head, b"", data[interruption.args[0] :]))
                self.parser = HttpRequestParser(self)
                # as uvicorn does, so that requests sent ahead are read
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if self._num_loose > MAX_HEAD_BYTES and not self._is_rejected:
            self._reject(too_large(self._num_loose))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._unanswered:  # of which uvicorn has told the last
            cycle.disconnected = True
            if ask := cycle.scope["state"].get(ASK):
                ask.leave()
        self._unset_keepalive_if_required()  # uvicorn leaves it to what is lost by an error
        self.idle.pop(self, None)
        self.unread.pop(self, None)
        self.surplus.pop(self, None)

    def yield_to_others(self) -> None:
        """Reads on in the event loop's next round. In one round, every connection that sends much
        would read up to 32 pieces."""
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._num_loose = True, 0
        if self._since is None:  # it came with the end of another
            self._since = self.loop.time()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the head is parsed again
        self._since = self.loop.time()
        self.idle.pop(self, None)
        state = self.scope["state"]  # what the application asks of the connection
        state["is_closing"], state["is_surplus"] = self.transport.is_closing, self in self.surplus
        super().on_headers_complete()  # raises if the target has no path
        self._unanswered.append(self.cycle)
        self._in_head, self._in_body, self._num_loose = False, True, 0
        if self.scope["http_version"] == "1.0":  # its callers would take it for the answer
            self.cycle.waiting_for_100_continue = False
        if self.scope["method"] != "HEAD":  # whose answer has no body
            transport: Any = HeadWithBody(self.cycle, self.transport)
            self.cycle.transport = transport
        self.headers = []  # of the trailers, which are ignored

    def on_body(self, body: bytes) -> None:
        self._num_loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_head:
            return  # the head is parsed again
        super().on_message_complete()
        self._since, self._in_body, self._num_loose = None, False, 0
        self.flow.resume_reading()  # it may have paused in the body: else nothing tells who leaves

    def on_response_complete(self) -> None:
        super().on_response_complete()
        del self._unanswered[0]
        if not self.transport.is_closing() and not self._unanswered:
            self.idle_since = self.loop.time()
            self.idle[self] = None

    def shutdown(self) -> None:
        """Closes the connection, unless a request arrives or has arrived. Its answer ends it."""
        if not self._is_rejected and not self.transport.is_closing():
            unread = ioctl(self.transport.get_extra_info("socket").fileno(), FIONREAD, bytes(4))
            if self._in_head or any(unread):
                return
        super().shutdown()

    def _reject(self, error: ServiceError) -> None:
        """Answers what never became a whole request, and closes.

        If an earlier request is being answered, that comes first.
        """
        self._is_rejected, self._since = True, None
        answer = error_response(OPENAI_ERRORS.envelope, error)
        is_its_own = self._unanswered and self.cycle.more_body and not self.cycle.response_started
        is_answered = self._in_body and not self._unanswered
        if self._unanswered and not is_its_own:
            self.cycle.keep_alive = False
            return
        if self.pipeline:  # it is the last there: its turn comes
            self.pipeline[0] = (self.cycle, cast(Any, answer))
            return
        if not self.transport.is_closing() and not is_answered:
            headers = (b"%b: %b\r\n" % header for header in answer.raw_headers)
            head = STATUS_LINE[answer.status_code] + b"".join(headers)
            self.transport.write(head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def sweep(self, now: float) -> None:
        """Ends what takes too long."""
        limit_s = self.settings.body_timeout_s
        if self._since is not None:
            if self.flow.read_paused:
                self._since = now  # the server is not reading
            elif now - self._since > limit_s and self._in_head:
                self._reject(RequestTimeout(f"the head did not arrive within {limit_s:g} s"))
            elif now - self._since > limit_s + BODY_GRACE_S:
                self.transport.abort()
        elif self in self.idle and now - self.idle_since > self.settings.keep_alive_s:
            self.transport.close()  # uvicorn's timer ends with what comes after the answer
        if not self.transport.get_write_buffer_size():
            self._all_sent = now
        elif now - self._all_sent > self.settings.send_timeout_s:
            self.transport.abort()


class PieceReader(BufferedProtocol):
    """Reads for a connection in small pieces.

    Event loops hand a Protocol up to 256 KiB at once, which may be 10,000 requests.
    """

    def __init__(self, kind: type[Connection], buffer: bytearray, **arguments: Any) -> None:
        """arguments: of the connection. buffer: may be shared, since what is read is parsed
        at once."""
        self._connection, self._buffer = kind(**arguments), buffer
        for name in ("connection_made", "connection_lost", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(self._connection, name))

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        started = time.monotonic()
        self._connection.data_received(bytes(memoryview(self._buffer)[:nbytes]))
        connection, is_long = self._connection, time.monotonic() - started > LONG_PIECE_S
        num_requests = len(connection.connections) - len(connection.idle)
        # after a full piece more is there, which beside no other request holds up nobody
        if is_long or (nbytes == READ_BYTES and num_requests > 1):
            connection.yield_to_others()


def protocol_factory(
    settings: Settings, connection: type[Connection] = Connection
) -> Callable[..., PieceReader]:
    """Makes the connections of one server, for uvicorn."""
    attributes: dict[str, Any] = {"settings": settings, "idle": {}, "unread": {}, "surplus": {}}
    kind = type("Connection", (connection,), attributes)
    return partial(PieceReader, kind, bytearray(READ_BYTES))


def wrong_head(scope: Scope) -> ServiceError | None:
    """The error of a wrong head, over HTTP and over gRPC; None: it is right."""
    headers: Headers = scope["headers"]
    http_version = scope.get("http_version", "1.1")
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or http_version != "1.1"):
        # the end of the body must be beyond doubt
        sent_codings = b", ".join(codings).decode("latin-1")[:60]
        return InvalidHead(
            f"transfer-encoding is {sent_codings!r} in HTTP/{http_version}: send chunked alone, in"
            " HTTP/1.1; name a compression in content-encoding",
            param="transfer-encoding",
        )
    target = scope.get("raw_path") or scope["path"].encode()
    num_bytes = len(target) + len(scope.get("query_string", b"")) + LINE_BYTES * len(headers)
    num_bytes += sum(map(len, chain.from_iterable(headers)))
    if num_bytes > MAX_HEAD_BYTES:
        return too_large(num_bytes)
    # of two the server would take one, and a proxy in front of it perhaps the other
    names = [name for name, _ in headers]
    if http_version == "1.1" and b"host" not in names:
        return InvalidHead(
            "the header host is missing: HTTP/1.1 requires it (RFC 9112, 3.2); send the name and"
            " port that you connect to",
            param="host",
        )
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
