"""Unmodified clients that need an environment of their own, against a server with tiny models."""

import subprocess

import pytest

from benchmarks import peers
from benchmarks.findings import BUILD
from benchmarks.peers.http_clients import CLIENTS

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_works_as_its_documentation_says(task_url: str, name: str) -> None:
    command = [BUILD / "clients/bin/python", peers.program("http_clients"), task_url, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"{name}: {done.stdout}")
