"""haproxy with deploy/haproxy.cfg, and with the same file made a balancer of connections."""

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
from benchmarks.spread.names import name_server

CONFIGURATION = Path(__file__).resolve().parent.parent.parent / "deploy" / "haproxy.cfg"
PROGRAM = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
# A Kubernetes Service gives each new connection to a server drawn at random, and reads no HTTP
OF_CONNECTIONS = {"mode http": "mode tcp", "balance leastconn": "balance random(1)"}
OF_HTTP_ALONE = (
    "http-request",
    "option httplog",
    "option http-buffer-request",
    "option dontlog-normal",
    "retry-on",
)
OWN = "global\n  stats socket {} level admin\n"


@dataclass(frozen=True)
class Balancer(Server):
    """Where it listens, and its statistics."""

    control: Path = Path()

    def sums(self, *columns: str) -> list[int]:
        """The backend's totals in these columns: wretr (retried), wredis (retried on another
        server)."""
        rows = self._statistics()
        (backend,) = (
            row for row in rows if row["svname"] == "BACKEND" and row["# pxname"] == "replicas"
        )
        return [int(backend[column] or 0) for column in columns]

    def num_up(self) -> int:
        """Servers that get requests."""
        rows = [row for row in self._statistics() if row["svname"].startswith("replica")]
        return sum(row["status"].startswith("UP") for row in rows)  # "UP 1/2": a check failed

    def _statistics(self) -> list[dict[str, str]]:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self.control))
            control.sendall(b"show stat\n")
            text = b"".join(iter(lambda: control.recv(65536), b"")).decode()
        return list(csv.DictReader(text.strip().splitlines()))


@contextmanager
def balancer(
    addresses: Sequence[str], port: int, of_connections: bool = False
) -> Iterator[Balancer]:
    """haproxy before the servers at these addresses, which all listen on this port.

    addresses: read again every second. of_connections: does not look at the requests in them.
    """
    if PROGRAM is None:
        raise RuntimeError("haproxy is not installed; on Debian: apt-get install haproxy")
    with TemporaryDirectory() as folder, name_server(addresses) as names:
        own, control = Path(folder, "own.cfg"), Path(folder, "control")
        own.write_text(OWN.format(control))
        configuration = CONFIGURATION
        if of_connections:
            configuration = Path(folder, "connections.cfg")
            configuration.write_text(_of_connections(CONFIGURATION.read_text()))
        listen = free_port()
        environment = {
            **os.environ,
            "ADDNORM_LISTEN": f"{LOOPBACK}:{listen}",
            "ADDNORM_DNS": f"{LOOPBACK}:{names}",
            "ADDNORM_SERVERS": f"replica.test:{port}",
        }
        command = [PROGRAM, "-db", "-q", "-f", str(configuration), "-f", str(own)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            found = Balancer(LOOPBACK, listen, process.pid, control=control)
            wait_for_servers(found, len(addresses))
            yield found
        finally:
            process.terminate()
            process.wait()


def _of_connections(text: str) -> str:
    for http, tcp in OF_CONNECTIONS.items():
        text = text.replace(http, tcp)
    lines = (line for line in text.splitlines() if not line.strip().startswith(OF_HTTP_ALONE))
    return "\n".join(lines) + "\n"


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
