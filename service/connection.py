"""One connection: uvicorn's, with bounds on its head, on the time it takes to send, and on the time it takes to read.

uvicorn has none of these. What is wrong with a whole head goes to the application, which answers and logs it; what
never becomes a request is answered here.
"""

import re
from itertools import chain
from typing import Any, ClassVar, cast

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import HeadTooLarge, InvalidInput, RequestTimeout, ServiceError, TooManyConnections
from service.settings import Settings

SINGLE = {b"authorization", b"content-encoding", b"content-type", b"host", b"x-request-id", b"x-request-timeout-ms"}
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
LINE_BYTES = len(": \r\n")
BODY_GRACE_S = 2.0  # the application refuses a slow body first, in words


class Connection(HttpToolsProtocol):
    """Swept once a second: timers for each request would cost more."""

    settings: ClassVar[Settings]  # of the server; see `limited`

    def __init__(self, config: Config, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self._since: float | None = None  # when what is being received began
        self._in_head = False
        self._head_bytes = 0  # of a head that comes in pieces, the first not counted
        self._is_surplus = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(Any, Joined(transport, self)))
        self._since = self._all_sent = self.loop.time()  # _all_sent: when there was last nothing to send
        self._is_surplus = len(self.connections) > self.settings.max_connections
        if len(self.connections) > 2 * self.settings.max_connections:
            transport.abort()  # no longer worth an answer

    def data_received(self, data: bytes) -> None:
        is_head = self.cycle is None or not self.cycle.more_body
        if self._since is None:
            self._since = self.loop.time()
        head = self.headers if self._in_head else None
        super().data_received(_without_upgrade(data) if is_head else data)
        if self._in_head and self.headers is head:
            self._head_bytes += len(data)
            if self._head_bytes > self.settings.max_header_bytes:
                self._refuse(self._too_large(self._head_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if refusal := self._wrong():
            self.scope["state"]["refusal"] = refusal
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._since = None

    def on_response_complete(self) -> None:
        cast(Joined, self.transport).flush()
        super().on_response_complete()

    def _wrong(self) -> ServiceError | None:
        """What is wrong with a whole head."""
        if self._is_surplus:
            limit = self.settings.max_connections
            return TooManyConnections(f"{limit} connections are open, the limit: come back later", retry_after_s=1)
        num_bytes = len(self.url) + sum(map(len, chain.from_iterable(self.headers))) + LINE_BYTES * len(self.headers)
        if num_bytes > self.settings.max_header_bytes:
            return self._too_large(num_bytes)
        names = [name for name, _ in self.headers]
        if len(set(names)) < len(names):
            for name in SINGLE:
                if names.count(name) > 1:
                    return InvalidInput(f"the header {name.decode()} is sent twice", param=name.decode())
        return None

    def _too_large(self, num_bytes: int) -> HeadTooLarge:
        return HeadTooLarge(f"the head has {num_bytes} bytes, the limit is {self.settings.max_header_bytes}")

    def send_400_response(self, msg: str) -> None:
        """What the parser does not take."""
        self._refuse(InvalidInput(f"this is no HTTP/1.1 request: {msg}", code="invalid_http"))

    def _refuse(self, error: ServiceError) -> None:
        """Answers what never became a whole request, unless an earlier one is being answered, and closes."""
        is_idle = self.cycle is None or self.cycle.response_complete
        is_its_own = not is_idle and self.cycle.more_body and not self.cycle.response_started
        if not self.transport.is_closing() and not self.pipeline and (is_idle or is_its_own):
            known = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
            body = orjson.dumps({"error": known})
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.status] + head + body)
        if is_idle or is_its_own:
            self.transport.close()
        else:
            self.cycle.keep_alive = False  # what came before is answered, the last of it closes

    def sweep(self, now: float) -> None:
        """Ends what takes too long."""
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
            self.scope["state"]["late"] = RequestTimeout(f"the body did not arrive within {limit_s:g} s")
            self.cycle.message_event.set()  # wakes who waits for the body


def _without_upgrade(data: bytes) -> bytes:
    """Who asks for another protocol (HTTP/2, as Java's client does) may be left with this one, but the parser would take
    the body for the other's. A name that is cut in two by the network is not found: then the body is missed, as a 400."""
    end = data.find(b"\r\n\r\n")
    head, rest = (data, b"") if end < 0 else (data[:end], data[end:])
    return UPGRADE.sub(b"\r\nx-upgrade:", head) + rest if UPGRADE.search(head) else data


class Joined:
    """A transport that sends the head of an answer with the first of its body: uvicorn would send two packets."""

    def __init__(self, transport: Any, connection: Connection) -> None:
        self._transport, self._connection = transport, connection
        self._head: bytes | None = None
        self._answered: Any = None  # the request whose answer was begun last

    def write(self, data: Any) -> None:
        cycle = self._connection.cycle
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif cycle is not None and cycle.response_started and cycle is not self._answered:
            self._head, self._answered = data, cycle
        else:
            self._transport.write(data)

    def flush(self) -> None:
        if self._head is not None:  # without a body: to HEAD, or the application broke off
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def limited(settings: Settings) -> type[Connection]:
    """The class of one server's connections: uvicorn makes them, and hands nothing of ours on."""
    return type("Connection", (Connection,), {"settings": settings})
