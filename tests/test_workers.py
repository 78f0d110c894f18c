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
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from tests.test_lifecycle import SHORT, Process, refused, samples

Caller = TypeVar("Caller")
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

    def by_both(self, connect: Callable[[], Caller]) -> list[Caller]:
        """Connects until each worker has at least two of the connections."""
        callers = [connect()]
        while min(connections(pid, self.port) for pid in self.two_workers()) < 2:
            assert len(callers) < 50
            callers.append(connect())
        return callers

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


def connections(pid: int, port: int) -> int:
    """How many callers' connections the process has."""
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink())
    inodes = {link[8:-1] for link in links if link.startswith("socket:")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" and row[9] in inodes for row in rows)


def metrics_folder(worker: int) -> Path:
    environment = dict(
        entry.split("=", 1) for entry in Path(f"/proc/{worker}/environ").read_text().split("\0") if entry
    )
    return Path(environment["PROMETHEUS_MULTIPROC_DIR"])


@pytest.fixture
def fleet(notebook: Path) -> Iterator[Fleet]:
    fleet = Fleet(notebook.parent.parent)
    yield fleet
    folders = {metrics_folder(pid) for pid in filter(alive, fleet.started())}
    fleet.process.kill()
    for pid in filter(alive, fleet.started()):
        os.kill(pid, signal.SIGKILL)
    for folder in folders:  # killed like this, nobody clears up
        shutil.rmtree(folder, ignore_errors=True)
    fleet.wait()


def test_what_both_workers_served_is_counted_once_whoever_is_asked(fleet: Fleet) -> None:
    def connect() -> httpx.Client:
        client = httpx.Client(base_url=fleet.url)
        assert client.post("/v1/infer", json=SHORT).status_code == 200
        return client

    served = {"route": "/v1/infer", "model": "notebook", "status": "200"}
    clients = fleet.by_both(connect)
    num = len(clients)
    eventually(lambda: fleet.metric("addnorm_requests_total", **served) == num)  # counted after they are answered
    for client in clients:
        got = samples(client.get("/metrics").text)
        assert got["addnorm_requests_total", tuple(sorted(served.items()))] == num
        assert got["addnorm_request_seconds_count", (("route", "/v1/infer"),)] == num
        assert got["addnorm_real_tokens_total", (("model", "notebook"),)] == 5 * num
        assert got["addnorm_micro_batch_tokens_sum", (("model", "notebook"),)] == 5 * num
        assert got["addnorm_workers", ()] == 2
        assert got["addnorm_queue_tokens", ()] == 0
        assert got["process_resident_memory_bytes", ()] > 3 * 40e6  # the parent's, too
        client.close()


def test_a_burst_of_connections_goes_to_both_whoever_wakes_first(fleet: Fleet) -> None:
    first, second = fleet.two_workers()
    for pid in (first, second):
        os.kill(pid, signal.SIGSTOP)
    burst = [socket.create_connection(("127.0.0.1", fleet.port)) for _ in range(40)]
    os.kill(first, signal.SIGCONT)
    time.sleep(0.3)
    os.kill(second, signal.SIGCONT)
    eventually(lambda: sum(connections(pid, fleet.port) for pid in (first, second)) == 40)
    assert min(connections(pid, fleet.port) for pid in (first, second)) >= 5
    for connection in burst:
        connection.close()


def test_a_killed_worker_costs_its_own_requests_only_and_comes_back(fleet: Fleet) -> None:
    victim, _ = fleet.two_workers()
    requests = fleet.by_both(lambda: HalfSent(fleet.port))
    num_lost = connections(victim, fleet.port)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: not alive(victim))
    assert [fleet.infer() for _ in range(20)] == [200] * 20
    assert (
        sorted(request.finish() for request in requests) == ["200"] * (len(requests) - num_lost) + ["closed"] * num_lost
    )
    eventually(lambda: len(fleet.started()) == 3)
    assert victim not in fleet.two_workers()
    again = fleet.by_both(lambda: HalfSent(fleet.port))
    assert [request.finish() for request in again] == ["200"] * len(again)
    assert fleet.metric("addnorm_workers") == 2
    num_answered = len(requests) - num_lost + 20 + len(again)
    assert fleet.metric("addnorm_real_tokens_total", model="notebook") == 5 * num_answered


def test_sigterm_under_load_loses_nothing_and_exits_0(fleet: Fleet) -> None:
    def call_until_refused(_: int) -> list[int]:
        answers, deadline = [fleet.infer()], time.monotonic() + 20
        while answers[-1] == 200 and time.monotonic() < deadline:
            answers.append(fleet.infer())
        return answers

    accepted = fleet.by_both(lambda: HalfSent(fleet.port))
    with ThreadPoolExecutor(4) as callers:
        answers = callers.map(call_until_refused, range(4))
        time.sleep(0.3)
        fleet.process.send_signal(signal.SIGTERM)
        assert all(own[:-1] == [200] * (len(own) - 1) and own[-1] == 503 for own in answers)
    time.sleep(0.5)
    assert fleet.infer() == 503  # for as long as something is in flight
    assert [request.finish() for request in accepted] == ["200"] * len(accepted)
    assert fleet.wait() == 0
    assert refused(fleet.port)


def test_a_second_server_on_the_port_does_not_start(fleet: Fleet) -> None:
    command = [sys.executable, "-m", "service", "--bundles", "nowhere", "--workers", "2"]
    second = subprocess.run(
        command, env={**os.environ, "ADDNORM_PORT": str(fleet.port)}, capture_output=True, timeout=60
    )
    assert second.returncode != 0
    assert b"address already in use" in second.stderr.lower()


def test_workers_end_with_their_parent(fleet: Fleet) -> None:
    workers = fleet.two_workers()
    folder = metrics_folder(workers[0])
    assert list(folder.iterdir())
    fleet.process.kill()
    eventually(lambda: not any(map(alive, workers)))
    assert refused(fleet.port)
    assert not folder.exists()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory")
def test_metrics_are_kept_where_a_full_disk_does_not_reach(fleet: Fleet) -> None:
    assert metrics_folder(fleet.two_workers()[0]).parent == Path("/dev/shm")


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
