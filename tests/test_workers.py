"""Several processes behind one port: what one of them costs the others, and what they count together."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.test_lifecycle import SHORT, Process, refused, samples

STARTED = re.compile(r"Started server process \[(\d+)\]")
BODY = json.dumps(SHORT).encode()
HEAD = (
    f"POST /v1/infer HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n"
    "expect: 100-continue\r\n\r\n"
)


class Fleet(Process):
    """`python -m service --workers 2`; `url` is ready."""

    def __init__(self, bundles: Path) -> None:
        super().__init__(bundles, "--workers", "2")
        self.two_workers()

    def started(self) -> list[int]:
        """Process ids of all workers so far."""
        return [int(found[1]) for line in list(self.lines) if (found := STARTED.match(line["message"]))]

    def two_workers(self) -> list[int]:
        """Those that live, once they are two."""
        eventually(lambda: sum(map(alive, self.started())) == 2)
        return list(filter(alive, self.started()))

    def infer(self) -> int:
        return httpx.post(f"{self.url}/v1/infer", json=SHORT, timeout=10).status_code

    def metric(self, name: str, **labels: str) -> float:
        return samples(httpx.get(f"{self.url}/metrics").text).get((name, tuple(sorted(labels.items()))), 0)


class HalfSent:
    """A request that a worker has accepted, and whose body is still to come."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.sendall(HEAD.encode())
        assert self._socket.recv(1000).startswith(b"HTTP/1.1 100 ")

    def finish(self) -> str:
        """Status of the answer, or what became of the connection."""
        try:
            self._socket.sendall(BODY)
            return self._socket.recv(1000).decode()[9:12] or "closed"
        except ConnectionError:
            return "closed"
        finally:
            self._socket.close()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It accepts nothing meanwhile: what is sent goes to the other worker."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def fleet(notebook: Path) -> Iterator[Fleet]:
    fleet = Fleet(notebook.parent.parent)
    yield fleet
    fleet.process.kill()
    for pid in filter(alive, fleet.started()):
        os.kill(pid, signal.SIGKILL)
    fleet.wait()


def test_what_both_workers_served_is_counted_once_whoever_is_asked(fleet: Fleet) -> None:
    workers = fleet.two_workers()
    for num_requests, other in zip((3, 4), workers, strict=True):
        with stopped(other):
            assert [fleet.infer() for _ in range(num_requests)] == [200] * num_requests
    served = {"route": "/v1/infer", "model": "notebook", "status": "200"}
    eventually(lambda: fleet.metric("addnorm_requests_total", **served) == 7)  # counted after they are answered
    for other in workers:
        with stopped(other):
            assert fleet.metric("addnorm_requests_total", **served) == 7
            assert fleet.metric("addnorm_request_seconds_count", route="/v1/infer") == 7
            assert fleet.metric("addnorm_real_tokens_total", model="notebook") == 35
            assert fleet.metric("addnorm_micro_batch_tokens_sum", model="notebook") == 35
            assert fleet.metric("addnorm_workers") == 2
            assert fleet.metric("addnorm_queue_tokens") == 0
            assert fleet.metric("process_resident_memory_bytes") > 3 * 40e6  # the parent's, too


def test_a_killed_worker_costs_its_own_requests_only_and_comes_back(fleet: Fleet) -> None:
    victim, other = fleet.two_workers()
    with stopped(other):
        lost = [HalfSent(fleet.port) for _ in range(3)]
        assert fleet.infer() == 200
    with stopped(victim):
        kept = [HalfSent(fleet.port) for _ in range(3)]
    os.kill(victim, signal.SIGKILL)
    assert [fleet.infer() for _ in range(20)] == [200] * 20
    assert [request.finish() for request in lost] == ["closed"] * 3
    assert [request.finish() for request in kept] == ["200"] * 3
    eventually(lambda: len(fleet.started()) == 3)
    assert victim not in fleet.two_workers()
    with stopped(other):
        assert fleet.infer() == 200
        assert fleet.metric("addnorm_workers") == 2
        assert fleet.metric("addnorm_real_tokens_total", model="notebook") == 5 * (1 + 20 + 3 + 1)


def test_sigterm_under_load_loses_nothing_and_exits_0(fleet: Fleet) -> None:
    def call_until_refused(_: int) -> list[int]:
        answers, deadline = [fleet.infer()], time.monotonic() + 20
        while answers[-1] == 200 and time.monotonic() < deadline:
            answers.append(fleet.infer())
        return answers

    accepted = []
    for other in fleet.two_workers():
        with stopped(other):
            accepted += [HalfSent(fleet.port) for _ in range(3)]
    with ThreadPoolExecutor(4) as callers:
        answers = callers.map(call_until_refused, range(4))
        time.sleep(0.3)
        fleet.process.send_signal(signal.SIGTERM)
        assert all(own[:-1] == [200] * (len(own) - 1) and own[-1] == 503 for own in answers)
    time.sleep(0.5)
    assert fleet.infer() == 503  # for as long as something is in flight
    assert [request.finish() for request in accepted] == ["200"] * 6
    assert fleet.wait() == 0
    assert refused(fleet.port)


def test_workers_end_with_their_parent(fleet: Fleet) -> None:
    workers = fleet.two_workers()
    fleet.process.kill()
    eventually(lambda: not any(map(alive, workers)))
    assert refused(fleet.port)


def test_sigterm_while_workers_load_ends_them(notebook: Path) -> None:
    fleet = Process(notebook.parent.parent, "--workers", "2")
    started = time.monotonic()
    assert fleet.terminate() == 0
    assert time.monotonic() - started < 10
    assert refused(fleet.port)


def test_what_keeps_workers_from_starting_is_one_line_and_exit_code_1(notebook: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(notebook, tmp_path / "notebook" / "1")
    (broken / "model.onnx").write_bytes(b"")
    command = [sys.executable, "-m", "service", "--bundles", str(tmp_path), "--workers", "2"]
    ended = subprocess.run(
        command, env={**os.environ, "ADDNORM_PORT": "0"}, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith(f"addnorm: bundle {broken}: model.onnx has 0 bytes")
