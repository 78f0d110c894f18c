"""Unmodified packages with a URL, a key and a model set, against a server with tiny models."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.findings import BUILD
from benchmarks.peers.client_packages import PACKAGES
from benchmarks.peers.grpc_packages import GRPC_PACKAGES
from tests.conftest import inference_of, serving
from tests.support.task_models import DEFAULTS

CLIENTS = Path(__file__).parents[2] / "docs" / "clients.md"
PYTHON = BUILD / "packages/bin/python"
pytestmark = pytest.mark.client_packages


def assert_works(program: str, *arguments: str) -> None:
    command = [PYTHON, peers.program(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"{arguments[-1]}: {done.stdout}")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_gets_what_the_plain_route_gives(task_url: str, name: str) -> None:
    assert_works("client_packages", task_url, name)


@pytest.fixture(scope="module")
def both(task_bundles: Path) -> Iterator[tuple[str, str]]:
    """The URL of a server, and where it listens for gRPC."""
    pytest.importorskip("grpc")
    service = inference_of(task_bundles, default_models=DEFAULTS, grpc_port=0)
    with serving(service) as url:
        yield url, f"127.0.0.1:{service.grpc.port}"


@pytest.mark.parametrize("name", GRPC_PACKAGES)
def test_a_package_gets_over_grpc_what_http_gives(both: tuple[str, str], name: str) -> None:
    assert_works("grpc_packages", *both, name)


def test_the_program_of_the_clients_page_runs_over_grpc(small: Path) -> None:
    pytest.importorskip("grpc")
    programs = re.findall(r"```python\n(.+?)```", CLIENTS.read_text(), re.DOTALL)
    (program,) = (each for each in programs if "localhost:8001" in each)
    service = inference_of(small, grpc_port=0)
    with serving(service):
        program = program.replace("localhost:8001", f"localhost:{service.grpc.port}")
        subprocess.run([PYTHON, "-c", program], check=True, timeout=60)
