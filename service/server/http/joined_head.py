"""The head of an answer goes out with the first part of its body. uvicorn writes them one after the
other, which costs the server a system call more, and the caller too."""

from asyncio import Transport

INTERIM = b"HTTP/1.1 100 "  # its answer is still to come


class JoinedHead:
    """What one answer is written to, in place of its transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self._head = transport, b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes | memoryview) -> None:
        if self._head:
            self._transport.writelines((self._head, data))
            self._head, self.write = b"", self._transport.write  # type: ignore[method-assign]
        elif bytes(data[: len(INTERIM)]) == INTERIM:
            self._transport.write(data)
        else:
            self._head = bytes(data)

    def close(self) -> None:
        if self._head:  # no body followed
            self.write(b"")
        self._transport.close()
