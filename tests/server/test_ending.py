"""The process ends when it is told to, whatever callers, threads and its log's reader do."""

import fcntl
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import free_port
from tests.support import web
from tests.support.waiting import PATIENCE_S, eventually

GRACE_S = 2.0
MUCH = 10  # times longer than promised: the machine may be busy
SERVE = [sys.executable, "-m", "addnorm", "serve"]
HANGS = """
import sys, time
from addnorm.service import command
from addnorm.service.server import process
load_all = process.load_all
def hanging(*arguments):
    models = load_all(*arguments)
    target = models.find("notebook").target("fp32")
    target.run = target.run_on_all_cores = lambda batch: time.sleep(1000)
    return models
process.load_all = hanging
command.serve(sys.argv[1:])
"""
IDS = {"model": "gpt", "input_ids": [[7] * 500] * 12}
GOOD = json.dumps({**IDS, "outputs": ["pooled"]}).encode()
LARGE = json.dumps({**IDS, "outputs": ["logits"]}).encode()  # 78 MB of answer
JSON = {"content-type": "application/json"}
SHORT = json.dumps({"model": "notebook", "input_ids": [[1, 3]], "outputs": ["pooled"]}).encode()


def before() -> None:
    """What the parent leaves it: tests may run under nohup, and some programs block signals."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))


@contextmanager
def started(
    command: list[str], bundles: Path, log: Any, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server and its port."""
    port = free_port()
    variables = {"ADDNORM_PORT": str(port), "ADDNORM_GRACE_S": str(GRACE_S), **environment}
    process = subprocess.Popen(
        [*command, "--bundles", str(bundles)], env={**os.environ, **variables}, stderr=log,
        preexec_fn=before,
    )  # fmt: skip
    try:
        assert eventually(lambda: is_listening(port))
        yield process, port
    finally:
        process.kill()
        process.wait()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def call(port: int, tls: bool = False) -> socket.socket:
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.settimeout(PATIENCE_S)
    caller.connect(("127.0.0.1", port))
    return ssl._create_unverified_context().wrap_socket(caller) if tls else caller


def head(num_bytes: int, *lines: str) -> bytes:
    first = ("POST /v1/infer HTTP/1.1", "host: x", "content-type: application/json")
    return "\r\n".join((*first, f"content-length: {num_bytes}", *lines, "", "")).encode()


def reads_nothing(port: int, tls: bool) -> socket.socket:
    caller = call(port, tls)
    caller.sendall(head(len(LARGE)) + LARGE)
    assert caller.recv(12) == b"HTTP/1.1 200"
    return caller


def says(text: bytes) -> Callable[[int, bool], socket.socket]:
    def saying(port: int, tls: bool) -> socket.socket:
        caller = call(port, tls)
        caller.sendall(text)
        return caller

    return saying


SLOW = {
    "reads nothing": reads_nothing,
    "half a body": says(head(1000) + b"{"),
    "a body that hangs": says(head(len(SHORT)) + SHORT),  # where runs of this model do
    "half a head": says(b"POST /v1/infer HTTP/1.1\r\nhost:"),
    "says nothing": says(b""),
    "says nothing, not even hello": lambda port, tls: call(port),
}


def accepted(port: int, tls: bool) -> socket.socket:
    """A caller whose body the server has begun to wait for."""
    caller = call(port, tls)
    caller.sendall(head(len(GOOD), "expect: 100-continue"))
    assert caller.recv(25, socket.MSG_WAITALL if not tls else 0) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return caller


def ends(process: subprocess.Popen[bytes], port: int, sig: signal.Signals, tls: bool) -> None:
    """The process ends in time beside slow callers, and answers another that it has accepted."""
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    client = web.client(base_url=url, verify=False, timeout=PATIENCE_S)
    with client, ExitStack() as callers:
        for slow in SLOW.values():
            callers.enter_context(slow(port, tls))
        other = callers.enter_context(accepted(port, tls))
        for _ in range(60):  # lines of the log, more than the pipe holds
            assert client.get("/v1/models").status_code == 200
        began = time.monotonic()
        process.send_signal(sig)
        assert eventually(lambda: client.get("/readyz").status_code == 503)
        process.send_signal(sig)
        other.sendall(GOOD)
        assert other.recv(12) == b"HTTP/1.1 200"
        assert process.wait(PATIENCE_S) == 0
        assert time.monotonic() - began < MUCH * (GRACE_S + 1)


def test_neither_slow_callers_nor_a_run_that_hangs_nor_an_unread_log_keep_it(small: Path) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    with started([sys.executable, "-c", HANGS], small, writer) as (process, port):
        ends(process, port, signal.SIGTERM, tls=False)
    for end in (reader, writer):
        os.close(end)


def test_a_terminal_that_closes_ends_it_in_order_beside_slow_callers_of_https(
    small: Path, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = map(str, certificate)
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        started(SERVE, small, file, ADDNORM_TLS_CERT=cert, ADDNORM_TLS_KEY=key) as (process, port),
    ):
        ends(process, port, signal.SIGHUP, tls=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1]["message"].startswith("Finished server process")
    assert not [line for line in lines if line["level"] == "error"]


def test_a_closed_stderr_and_unused_signals_do_not_end_it(small: Path) -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *SERVE]
    with started(command, small, None) as (process, port):
        for unused in (signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(unused)
        answer = web.post(f"http://127.0.0.1:{port}/v1/infer", content=SHORT, headers=JSON)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
