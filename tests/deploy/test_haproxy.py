"""Several servers behind haproxy: deploy/haproxy.cfg, the compose profile, Prometheus."""

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import yaml

from addnorm.service.server.wiring import KNOWN_ANSWER_SHARE
from addnorm.service.settings import Settings
from benchmarks.processes import free_port
from tests.support import web
from tests.support.haproxy import PROGRAM, Balancer, balancer, wait_for_servers
from tests.support.name_server import answer
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parent.parent.parent
CONFIGURATION = (ROOT / "deploy" / "haproxy.cfg").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
UNSET = Settings()
needs_haproxy = pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed")


def seconds(name: str) -> float:
    (value,) = re.findall(rf"^  {name} (\d+)s$", CONFIGURATION, re.MULTILINE)
    return float(value)


def test_haproxys_limits_are_beyond_the_servers_so_that_servers_answer_with_a_message() -> None:
    assert seconds("timeout server") > UNSET.bulk_timeout_s
    assert seconds("timeout client") > max(UNSET.body_timeout_s, UNSET.send_timeout_s)
    assert seconds("timeout check") > KNOWN_ANSWER_SHARE * UNSET.run_timeout_s
    assert seconds("hard-stop-after") > UNSET.grace_s
    (connections,) = re.findall(r"default-server .* maxconn (\d+)", CONFIGURATION)
    assert int(connections) < UNSET.max_connections
    grace = COMPOSE["haproxy"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > seconds("hard-stop-after")


def test_no_two_services_publish_one_port_and_replicas_publish_none() -> None:
    published = [port for service in COMPOSE.values() for port in service.get("ports", ())]
    defaults = re.findall(r":-(\d+)}", "\n".join(published))
    assert len(set(defaults)) == len(published) == len(defaults)
    assert "ports" not in COMPOSE["replica"]
    assert COMPOSE["replica"]["profiles"] == COMPOSE["haproxy"]["profiles"] == ["scale"]


def test_a_replica_differs_from_the_single_server_by_its_share_of_the_machine_alone() -> None:
    keys = {"profiles", "scale", "cpus", "networks"}
    replica = {name: value for name, value in COMPOSE["replica"].items() if name not in keys}
    single = {name: value for name, value in COMPOSE["addnorm"].items() if name != "ports"}
    assert replica == single


def test_prometheus_finds_the_single_server_and_each_replica_by_one_name() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert discovery["names"] == ["addnorm"]
    assert "addnorm" in COMPOSE
    assert COMPOSE["replica"]["networks"]["default"]["aliases"] == ["addnorm"]


def test_the_name_server_answers_questions_for_ipv4_alone() -> None:
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x07replica\x00"
    got = answer(query + b"\x00\x01\x00\x01", ["127.0.0.2", "127.0.0.3"])
    assert got[:8] == b"\x12\x34\x81\x80\x00\x01\x00\x02"
    assert got.endswith(b"\x00\x04\x7f\x00\x00\x03")
    assert answer(query + b"\x00\x1c\x00\x01", ["127.0.0.2"])[6:8] == b"\x00\x00"


@needs_haproxy
def test_haproxy_accepts_the_configuration_without_a_warning() -> None:
    command = [PROGRAM or "", "-c", "-f", ROOT / "deploy" / "haproxy.cfg"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


class Replica:
    """Answers /readyz with `ready`, and all else with `status`."""

    def __init__(self) -> None:
        self.ready, self.status, self.asked = 200, 200, list[str]()
        self.go = Event()  # requests are held until then
        self.go.set()


@contextmanager
def served(replica: Replica, address: str, port: int) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.give(replica.ready)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            replica.asked.append(self.path)
            replica.go.wait(PATIENCE_S)
            self.give(replica.status)

        def give(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((address, port), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def replicas() -> Iterator[tuple[httpx.Client, Balancer, list[Replica]]]:
    """A caller of haproxy, haproxy, and the two servers that it has found by their name."""
    port, addresses, both = free_port(), ["127.0.0.2", "127.0.0.3"], [Replica(), Replica()]
    with ExitStack() as stack:
        for replica, address in zip(both, addresses, strict=True):
            stack.enter_context(served(replica, address, port))
        front = stack.enter_context(balancer(addresses, port))
        url = f"http://{front.host}:{front.port}"
        yield stack.enter_context(web.client(base_url=url, timeout=PATIENCE_S)), front, both


@needs_haproxy
def test_requests_reach_all_that_are_ready_and_503_is_repeated_elsewhere(
    replicas: tuple[httpx.Client, Balancer, list[Replica]],
) -> None:
    client, front, (first, second) = replicas

    def ask(number: int, content: bytes = b"{}") -> list[int]:
        return [client.post("/v1/infer", content=content).status_code for _ in range(number)]

    assert ask(10) == [200] * 10
    assert len(first.asked) == len(second.asked) == 5
    first.status = 503  # it drains, and no check has told yet
    assert ask(4) == [200] * 4
    assert len(second.asked) == 9
    assert ask(2, bytes(100_000)).count(503) == 1  # too large to be kept for that
    first.ready = 503
    wait_for_servers(front, 1)
    assert ask(4, bytes(100_000)) == [200] * 4
    second.status = 500  # it may have been computed: the caller decides
    num_requests = len(second.asked)
    assert ask(1) == [500]
    assert len(second.asked) == num_requests + 1


@needs_haproxy
def test_a_busy_replica_gets_no_request_while_another_is_free(
    replicas: tuple[httpx.Client, Balancer, list[Replica]],
) -> None:
    client, _, (busy, free) = replicas
    busy.go.clear()
    with ThreadPoolExecutor(2) as callers:
        both = [callers.submit(client.post, "/v1/infer", content=b"{}") for _ in range(2)]
        assert eventually(lambda: len(busy.asked) == len(free.asked) == 1)
        wait(both, PATIENCE_S, FIRST_COMPLETED)  # until then both are busy
        for _ in range(4):
            assert client.post("/v1/infer", content=b"{}").status_code == 200
        busy.go.set()
        assert [answer.result().status_code for answer in both] == [200, 200]
    assert (len(busy.asked), len(free.asked)) == (1, 5)


@needs_haproxy
def test_what_is_of_one_server_alone_cannot_be_asked(
    replicas: tuple[httpx.Client, Balancer, list[Replica]],
) -> None:
    client, _, both = replicas
    for path in ("/v2/repository/index", "/v2/%72epository/models/notebook/unload", "/metrics"):
        assert client.post(path, content=b"{}").status_code == 403
    assert not any(replica.asked for replica in both)
