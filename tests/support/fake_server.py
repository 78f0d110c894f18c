"""An HTTP server whose answers a test makes up."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from addnorm.load.servers import Server

Answer = Callable[[bytes], tuple[int, bytes]]  # body: status, content


@contextmanager
def fake_server(
    answer: Answer, stall_s: float = 0.0, paths: set[str] | None = None
) -> Iterator[Server]:
    """A server that gives answer(body) to each body, after the first `stall_s` seconds. GET
    requests have an empty body. paths: takes those that were asked."""
    stalls, turn = iter([stall_s]), threading.Lock()
    paths_asked: set[str] = set() if paths is None else paths

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.give(self.rfile.read(int(self.headers["content-length"])))

        def do_GET(self) -> None:
            self.give(b"")

        def give(self, body: bytes) -> None:
            paths_asked.add(self.path)
            with turn:
                time.sleep(next(stalls, 0.0))
            status, content = answer(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        request_queue_size = 128  # callers that connect at once

    with Listener(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Server("127.0.0.1", server.server_port)
        finally:  # else a failed test would wait for the thread for ever
            server.shutdown()
            thread.join()
