"""How a connection reads and writes: uvicorn's flow control, asyncio's transport, changed."""

from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Flow(FlowControl):
    """uvicorn's, but nothing is read while requests sent ahead wait: all of them would be kept."""

    def __init__(self, connection: HttpToolsProtocol) -> None:
        super().__init__(connection.transport)
        self._pipeline = connection.pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class Joined:
    """A transport that sends an answer's head and its body's first part in one packet."""

    def __init__(self, transport: Any, connection: HttpToolsProtocol) -> None:
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
        if self._head is not None:  # there is no body: to HEAD, or the application failed
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
