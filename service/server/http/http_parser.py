"""httptools' parser, but after a head that asks for another protocol it goes on in HTTP/1.1."""

from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Parser:
    """Java's client asks for HTTP/2, which a server may ignore (RFC 9110, 7.8).

    httptools would take what follows for the other protocol's.
    """

    def __init__(self, connection: HttpToolsProtocol) -> None:
        self._connection = connection
        self._parser = self._new()

    def _new(self) -> HttpRequestParser:
        parser = HttpRequestParser(self._connection)
        # as uvicorn does, so that requests sent ahead are read
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
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
