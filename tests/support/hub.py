"""A hub as huggingface_hub asks it, for one repository whose files lie in a folder."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REPOSITORY, COMMIT = "org/tiny", "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """url: for HF_ENDPOINT. sent: the files that were downloaded, in any order."""

    folder: Path
    url: str = ""
    gated: bool = False
    sent: list[str] = field(default_factory=list)

    def files(self) -> dict[str, bytes]:
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}


@contextmanager
def hub(folder: Path) -> Iterator[Hub]:
    """Serves it on a free port."""
    served = Hub(folder)
    handler = type("Handler", (_Handler,), {"hub": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        model, file = f"/api/models/{REPOSITORY}", f"/{REPOSITORY}/resolve/{COMMIT}/"
        files = self.hub.files()
        if path in (f"{model}/revision/main", f"{model}/revision/{COMMIT}"):
            listed = [{"rfilename": name} for name in files]
            self._json({"id": REPOSITORY, "sha": COMMIT, "siblings": listed})
        elif path == f"{model}/tree/{COMMIT}":
            self._json([_entry(name, content) for name, content in files.items()])
        elif path.startswith(file) and self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif path.startswith(file) and path.removeprefix(file) in files:
            self._file(path.removeprefix(file), files[path.removeprefix(file)])
        else:
            self._refuse(404, "RevisionNotFound" if path.startswith(model) else "RepoNotFound")

    do_HEAD = do_GET

    def _json(self, body: Any) -> None:
        self._answer(200, json.dumps(body).encode(), {})

    def _file(self, name: str, content: bytes) -> None:
        if self.command == "GET":
            self.hub.sent.append(name)
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._answer(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"", {"X-Error-Code": code})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests look at `sent`."""


def _entry(name: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": oid}
