"""Unmodified packages with a URL, a key and a model set, against a server with tiny models."""

import subprocess

import pytest

from benchmarks import peers
from benchmarks.findings import BUILD
from benchmarks.peers.client_packages import PACKAGES

pytestmark = pytest.mark.client_packages


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_gets_what_the_plain_route_gives(task_url: str, name: str) -> None:
    command = [BUILD / "packages/bin/python", peers.program("client_packages"), task_url, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"{name}: {done.stdout}")
