"""One fleet of two processors: this machine's own, and an emulated ARM, behind haproxy."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.processes import free_port
from benchmarks.processors import models
from benchmarks.processors.emulated import PROCESSORS, Python
from benchmarks.processors.questions import TEXTS
from tests.support import web
from tests.support.haproxy import PROGRAM, balancer
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.mixed_fleet,
    pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed"),
]
NUM_REQUESTS = 40
START_S = 900.0  # emulation is 20 to 60 times slower
SETTINGS = {
    "ADDNORM_CACHE_BYTES": "0", "ADDNORM_TOKEN_BUDGET": "512", "ADDNORM_WORKER_THREADS": "2",
    "ADDNORM_TIMEOUT_S": "600", "ADDNORM_RUN_TIMEOUT_S": "600",
}  # fmt: skip


def test_both_processors_answer_with_the_same_bits_and_one_fingerprint(tmp_path: Path) -> None:
    models.export_all([models.EMBEDDER], tmp_path / "bundles", tmp_path / "checkpoints")
    port, pythons = free_port(), [Python.here(), PROCESSORS["neoverse-n1"].python()]
    addresses = [f"127.0.0.{last}" for last in range(2, 2 + len(pythons))]
    with (
        server(pythons[0], tmp_path / "bundles", addresses[0], port),
        server(pythons[1], tmp_path / "bundles", addresses[1], port),
        balancer(addresses, port) as url,
        web.client(base_url=f"http://{url.host}:{url.port}", timeout=600) as client,
    ):
        for precision in ("fp32", "int8"):
            body = {"model": models.EMBEDDER, "input": TEXTS, "precision": precision}
            answers = [client.post("/v1/embeddings", json=body) for _ in range(NUM_REQUESTS)]
            assert {answer.status_code for answer in answers} == {200}
            assert len({str(answer.json()["data"]) for answer in answers}) == 1
            assert len({answer.headers["x-addnorm-fingerprint"] for answer in answers}) == 1
        assert min(url.num_answered()) >= NUM_REQUESTS / 4  # neither had them all


def is_ready(address: str, port: int) -> bool:
    try:
        return web.get(f"http://{address}:{port}/readyz", timeout=60).is_success
    except httpx.TransportError:
        return False


@contextmanager
def server(python: Python, bundles: Path, address: str, port: int) -> Iterator[None]:
    listen = {"ADDNORM_HOST": address, "ADDNORM_PORT": str(port)}
    process = subprocess.Popen(
        [*python.command, "-m", "addnorm", "serve", "--bundles", str(bundles)],
        env={**os.environ, **python.variables, **SETTINGS, **listen},
    )
    try:
        assert eventually(lambda: process.poll() is not None or is_ready(address, port), START_S)
        yield
    finally:
        process.terminate()
        process.wait(60)
