"""Unix sockets: who may connect, what becomes of the file, and that answers are as over TCP."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from pydantic import SecretStr

from addnorm.service.engine.registry import Models
from addnorm.service.errors import StartupError
from addnorm.service.server.listening import UnixSocket
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, inference_of, serving
from tests.support import web
from tests.support.process import Process
from tests.support.waiting import PATIENCE_S

KEY = "key-of-sixteen-or-more"
BODY = {"model": "all-minilm-l6-v2", "input": ["how are you"]}
PROBE = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
serve = ["-m", "addnorm", "serve", "--bundles", sys.argv[2], "--idle-exit-s", "0.5"]
os.execv(sys.executable, [sys.executable, *serve])
"""


@contextmanager
def asking(path: Path, **named: object) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(path))
    with web.client(base_url="http://localhost", transport=transport, **named) as client:
        yield client


def curl(path: Path, body: object) -> dict[str, object]:
    command = ["curl", "-sS", "--unix-socket", str(path), "http://localhost/v1/embeddings"]
    sent = ["-H", "content-type: application/json", "-d", json.dumps(body)]
    ran = subprocess.run([*command, *sent], capture_output=True, check=True, timeout=PATIENCE_S)
    return dict(json.loads(ran.stdout))


def test_clients_get_the_same_bits_as_over_tcp(
    text_bundles: Path, text_client: httpx.Client, tmp_path: Path
) -> None:
    expected = text_client.post("/v1/embeddings", json=BODY).json()["data"]
    path = tmp_path / "addnorm.sock"
    with serving(inference_of(text_bundles, socket=path)), asking(path) as client:
        assert client.post("/v1/embeddings", json=BODY).json()["data"] == expected
        assert curl(path, BODY)["data"] == expected
        sdk = openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client)
        answer = sdk.embeddings.create(**BODY, encoding_format="float")  # type: ignore[arg-type]
        assert [entry.embedding for entry in answer.data] == [expected[0]["embedding"]]
    assert not path.exists()


def test_keys_limits_and_pages_are_as_over_tcp(few: Models, tmp_path: Path) -> None:
    path, body = tmp_path / "addnorm.sock", {"model": "notebook", "input_ids": [[1, 2], [3]]}
    few_of_all = Settings(**OWN, socket=path, max_sequences=1, max_connections=1)
    with serving(build(few, few_of_all)), asking(path) as client:
        assert "has 2 sequences, the limit is 1" in client.post("/v1/infer", json=body).text
        page = client.post("/v1/infer", json=body, headers={"origin": "http://other.example"})
        assert page.json()["error"]["code"] == "foreign_page"
        rebound = client.get("/v1/models", headers={"host": "other.example"})
        assert rebound.json()["error"]["code"] == "foreign_page"
        with asking(path) as second:  # the first one's connection is kept
            assert second.get("/v1/models").json()["error"]["code"] == "too_many_connections"
    closed = Settings(**OWN, socket=path, api_keys=SecretStr(f"one infer {KEY}"))
    with serving(build(few, closed)), asking(path) as client:
        assert client.post("/v1/infer", json=body).status_code == 401
        sent = {"authorization": f"Bearer {KEY}"}
        assert client.post("/v1/infer", json=body, headers=sent).status_code == 200


def test_a_killed_servers_file_is_replaced_a_running_ones_is_not(
    small: Path, tmp_path: Path
) -> None:
    path = tmp_path / "addnorm.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    process = Process(small, "--socket", str(path))
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        second = subprocess.run(
            [sys.executable, "-m", "addnorm", "serve", "--socket", str(path)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert second.stderr.splitlines() == [
            f"addnorm: ADDNORM_SOCKET={path}: cannot listen there: Address already in use; stop the"
            " program that listens there, or choose another path with --socket or ADDNORM_SOCKET"
        ]
        with asking(path) as client:
            assert client.get("/readyz").status_code == 200
        check = [sys.executable, "-m", "addnorm.service.server.healthcheck"]
        environment = {"ADDNORM_SOCKET": str(path), "ADDNORM_PORT": "", "ADDNORM_TLS_CERT": ""}
        subprocess.run(check, env={**os.environ, **environment}, check=True)
    finally:
        assert process.terminate() == 0
    assert not path.exists()


def test_a_path_where_no_server_can_listen_is_named(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for path, why in (
        (other, "the path is a file, but not a socket"),
        (tmp_path / "missing" / "addnorm.sock", "No such file or directory"),
        (tmp_path / ("x" * 120), "AF_UNIX path too long"),
    ):
        with pytest.raises(StartupError, match=rf"ADDNORM_SOCKET={path}: .*: {why}; choose"):
            UnixSocket(path).check()
    assert other.read_text() == "mine"


def test_the_file_of_another_server_stays(tmp_path: Path) -> None:
    """The first one may end later, when its own has gone."""
    path = tmp_path / "addnorm.sock"
    first, second = UnixSocket(path), UnixSocket(path)
    with first.listen():
        with pytest.raises(StartupError, match="already in use"):
            second.listen()
        path.unlink()
        with second.listen():
            first.remove()
            assert path.exists()
            second.remove()
            assert not path.exists()


def test_systemds_socket_is_served_until_only_probes_come(small: Path, tmp_path: Path) -> None:
    """Who asks before the server runs is answered, and who asks after its end waits for the next
    start."""
    path = tmp_path / "addnorm.sock"
    with socket.socket(socket.AF_UNIX) as opened, socket.socket(socket.AF_UNIX) as early:
        opened.bind(str(path))
        opened.listen()
        early.settimeout(PATIENCE_S)
        early.connect(str(path))
        early.sendall(PROBE)
        server = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(opened.fileno()), str(small)],
            pass_fds=[opened.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            answer = early.recv(1024)
            assert answer.startswith(b"HTTP/1.1 200")
            deadline = time.monotonic() + PATIENCE_S
            while answer and time.monotonic() < deadline:  # nobody asks for more than this
                early.sendall(PROBE)
                answer = early.recv(1024)
        except ConnectionError:
            answer = b""
        finally:
            _, log = server.communicate(timeout=PATIENCE_S)
        assert not answer  # it ended although probes came
        assert server.returncode == 0
        assert "no request for 0.5 s: shutting down" in log
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(path))
