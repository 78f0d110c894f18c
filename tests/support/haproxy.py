"""haproxy with deploy/haproxy.cfg."""

import csv
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.load.servers import Server
from benchmarks.processes import LOOPBACK, START_S, free_port
from tests.support.name_server import name_server
from tests.support.waiting import eventually

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "haproxy.cfg"
PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
OWN = "global\n  stats socket {} level admin\n"


@dataclass(frozen=True)
class Balancer(Server):
    """Where it listens, and its statistics."""

    control: Path = Path()

    def num_up(self) -> int:
        """Servers that get requests."""
        return sum(row["status"].startswith("UP") for row in self._replicas())  # "UP 1/2" too

    def num_answered(self) -> list[int]:
        """Requests with an answer of 2xx, for each server that gets requests."""
        rows = self._replicas()
        return [int(row["hrsp_2xx"]) for row in rows if row["status"].startswith("UP")]

    def _replicas(self) -> list[dict[str, str]]:
        return [row for row in self._statistics() if row["svname"].startswith("replica")]

    def _statistics(self) -> list[dict[str, str]]:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.control))
            control.sendall(b"show stat\n")
            text = b"".join(iter(lambda: control.recv(65536), b"")).decode()
        return list(csv.DictReader(text.strip().splitlines()))


@contextmanager
def balancer(addresses: Sequence[str], port: int) -> Iterator[Balancer]:
    """haproxy before the servers at these addresses, which all listen on this port.

    addresses: read again every second.
    """
    if PROGRAM is None:
        raise RuntimeError("haproxy is not installed; on Debian: apt-get install haproxy")
    with TemporaryDirectory() as folder, name_server(addresses) as names:
        own, control = Path(folder, "own.cfg"), Path(folder, "control")
        own.write_text(OWN.format(control))
        listen = free_port()
        environment = {
            **os.environ,
            "ADDNORM_LISTEN": f"{LOOPBACK}:{listen}",
            "ADDNORM_DNS": f"{LOOPBACK}:{names}",
            "ADDNORM_SERVERS": f"replica.test:{port}",
        }
        command = [PROGRAM, "-db", "-q", "-f", str(CONFIGURATION), "-f", str(own)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            running = Balancer(LOOPBACK, listen, process.pid, control=control)
            wait_for_servers(running, len(addresses))
            yield running
        finally:
            process.terminate()
            process.wait()


def wait_for_servers(found: Balancer, num_servers: int) -> None:
    """Until so many servers are ready."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if found.num_up() == num_servers:
                return
        except OSError:
            pass  # it starts
        time.sleep(0.05)
    raise RuntimeError(f"haproxy did not find {num_servers} servers within {START_S:.0f} s")


PREFIXED = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend pages
  bind {listen}
  http-request deny deny_status 404 unless {{ path_beg {prefix}/ }}
  http-request replace-path {prefix}(/.*) \\1
  default_backend server
backend server
  server one {server}
"""


@contextmanager
def prefixed(url: str, prefix: str) -> Iterator[str]:
    """haproxy before one server, which takes this prefix off each path. -> the server's new URL."""
    listen = f"{LOOPBACK}:{free_port()}"
    with TemporaryDirectory() as folder:
        configuration = Path(folder, "own.cfg")
        server = url.removeprefix("http://")
        configuration.write_text(PREFIXED.format(listen=listen, prefix=prefix, server=server))
        process = subprocess.Popen([str(PROGRAM), "-db", "-q", "-f", str(configuration)])
        try:
            assert eventually(lambda: _accepts(listen))
            yield f"http://{listen}{prefix}"
        finally:
            process.terminate()
            process.wait(START_S)


def _accepts(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0
