"""Where a server listens, and whether the image's health check finds it there."""

import http.client
import json
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from addnorm.service.errors import StartupError
from addnorm.service.server.listening import check_address
from addnorm.service.settings import Settings
from tests.conftest import Serve
from tests.support.waiting import PATIENCE_S, eventually

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text()
CHECK = json.loads(re.findall(r"CMD (\[.*health.*\])", DOCKERFILE)[0])[1:]


def answers(address: str, port: int) -> bool:
    with closing(http.client.HTTPConnection(address, port, timeout=PATIENCE_S)) as connection:
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status == 200
        except ConnectionRefusedError:
            return False


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("::", ["127.0.0.1", "::1"]),
        ("0::0", ["127.0.0.1", "::1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("::1", ["::1"]),
        ("127.0.0.2", []),
    ],
)
def test_the_health_check_finds_what_the_server_listens_on(
    serve: Serve, host: str, found: list[str]
) -> None:
    check_address(Settings(host=host, port=0))
    with serve(host=host) as url:
        port = int(url.rpartition(":")[2])
        loopback = ("127.0.0.1", "::1")  # in IPv4 a moment later than in IPv6
        assert eventually(lambda: [entry for entry in loopback if answers(entry, port)] == found)
        environment = {"ADDNORM_PORT": str(port), "ADDNORM_HOST": host}
        subprocess.run([sys.executable, *CHECK], env=environment, check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("name", "host"), [("port", "127.0.0.1"), ("port", "::"), ("grpc_port", "127.0.0.1")]
)
def test_a_port_that_is_taken_is_found_before_models_load(name: str, host: str) -> None:
    """Also where it is on IPv4 alone."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"port": 0, name: taken.getsockname()[1]}
        variable, option = f"ADDNORM_{name.upper()}", f"--{name.replace('_', '-')}"
        words = (
            f"{variable}={ports[name]}: cannot listen there: Address already in use; stop the"
            f" program that listens there, or choose another port with {option} or {variable}"
        )
        with pytest.raises(StartupError, match=words):
            check_address(Settings(host=host, **ports))


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a..b"])
def test_an_address_that_nobody_has_is_named(host: str) -> None:
    with pytest.raises(StartupError, match=f"ADDNORM_HOST={host}"):
        check_address(Settings(host=host, port=0))


@pytest.mark.parametrize("port", ["tcp://10.0.0.1:8000", "", " 8000 "])
def test_the_health_check_reads_the_port_as_the_server_does(port: str) -> None:
    environment = {"ADDNORM_PORT": port, "ADDNORM_HOST": "127.0.0.3"}  # where nothing listens
    done = subprocess.run(
        [sys.executable, *CHECK], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no answer from 127.0.0.3 port 8000: ")
