"""A name server for one name, as docker's: an address for each server."""

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from socketserver import BaseRequestHandler, UDPServer

HEADER_BYTES = 12
A_RECORD = 1
ANSWER, ONE_QUESTION = 0x8180, 1  # flags: an answer, without error (RFC 1035, 4.1.1)
TO_THE_QUESTION = 0xC00C  # in place of the name: where it stands in the packet


def answer(query: bytes, addresses: Sequence[str]) -> bytes:
    """To a query for IPv4 addresses: all of them. To any other query: none."""
    end = query.index(0, HEADER_BYTES) + 5  # of the question: a name, its type and class
    question = query[HEADER_BYTES:end]
    record_type = struct.unpack("!H", question[-4:-2])[0]
    matches = addresses if record_type == A_RECORD else ()
    records = (
        struct.pack("!HHHIH", TO_THE_QUESTION, A_RECORD, 1, 0, 4) + socket.inet_aton(address)
        for address in matches
    )
    header = query[:2] + struct.pack("!5H", ANSWER, ONE_QUESTION, len(matches), 0, 0)
    return header + question + b"".join(records)


@contextmanager
def name_server(addresses: Sequence[str]) -> Iterator[int]:
    """Its port on 127.0.0.1. addresses: read at each query."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            query, sock = self.request
            sock.sendto(answer(query, addresses), self.client_address)

    with UDPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
