"""KServe's runtime: its command and variables serve a bundle as KServe mounts it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from addnorm.service.engine import bundle
from addnorm.service.settings import Settings
from benchmarks.processes import free_port
from benchmarks.stress.copies import republish
from tests.support import web

KSERVE = Path(__file__).parents[2] / "deploy" / "kserve"
TEXT = (KSERVE / "runtime.yaml").read_text()
RUNTIME: dict[str, Any] = yaml.safe_load(TEXT)
CONTAINER = RUNTIME["spec"]["containers"][0]
# the same with the lines for gRPC
GRPC = yaml.safe_load(re.sub(r"# (- \{name: (?:h2c|ADDNORM_GRPC))", r"\1", TEXT))
MOUNT = "/mnt/models"  # where KServe mounts what `storageUri` names
SERVICES = ("embeddings", "reranker")


def service(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((KSERVE / f"{name}.yaml").read_text())
    return loaded


@pytest.mark.parametrize("name", SERVICES)
def test_an_inference_service_finds_the_runtime(name: str) -> None:
    predictor = service(name)["spec"]["predictor"]
    model = predictor["model"]
    assert service(name)["metadata"]["name"] == name
    assert model["modelFormat"]["name"] in [
        entry["name"] for entry in RUNTIME["spec"]["supportedModelFormats"]
    ]
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]
    assert model["storageUri"].endswith(f"/{name}")
    assert MOUNT in CONTAINER["args"]


def test_the_kill_delay_is_longer_than_the_draining() -> None:
    before_s = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1])
    for name in SERVICES:
        predictor = service(name)["spec"]["predictor"]
        assert predictor["terminationGracePeriodSeconds"] > before_s + 30
        assert predictor["timeout"] > Settings().bulk_timeout_s


def test_what_the_comments_offer_opens_the_port_of_grpc() -> None:
    container = GRPC["spec"]["containers"][0]
    (port,) = (entry for entry in container["ports"] if entry["name"] == "h2c")
    (variable,) = (entry for entry in container["env"] if entry["name"] == "ADDNORM_GRPC_PORT")
    assert variable["value"] == str(port["containerPort"])
    for name in ("ports", "env"):  # nothing else is in comments
        assert len(container[name]) == len(CONTAINER[name]) + 1


@pytest.fixture(scope="module")
def mounted(notebook: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/mnt/models: a link to another folder, as with an OCI image; in it <name>/<version>, as
    `addnorm export --name` would have written it."""
    root = tmp_path_factory.mktemp("storage")
    before = bundle.read(notebook)
    manifest = before.manifest.model_copy(update={"name": "embeddings"})
    republish(replace(before, manifest=manifest), root, 1)
    link = tmp_path_factory.mktemp("mnt") / "models"
    link.symlink_to(root)
    return link


@pytest.fixture(scope="module")
def predictor(mounted: Path) -> Iterator[httpx.Client]:
    """The runtime's container, but for its port and where the models lie."""
    arguments = [str(mounted) if word == MOUNT else word for word in CONTAINER["args"]]
    variables = {entry["name"]: entry["value"] for entry in CONTAINER["env"] if "value" in entry}
    assert arguments[0] == "python"
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, *arguments[1:]],
        env={**os.environ, **variables, "ADDNORM_PORT": str(port), "ADDNORM_WORKER_THREADS": "1"},
    )
    try:
        with web.client(base_url=f"http://127.0.0.1:{port}") as client:
            wait_for(client, CONTAINER["startupProbe"]["httpGet"]["path"])
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def wait_for(client: httpx.Client, probe: str) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            answer = client.get(probe.replace("{{.Name}}", "embeddings"))
        except httpx.ConnectError:
            time.sleep(0.05)
        else:
            assert answer.status_code == 200, answer.text
            return
    raise AssertionError("it does not listen")


def test_kserves_clients_reach_the_model_by_the_services_name(predictor: httpx.Client) -> None:
    assert predictor.get("/v2/models/embeddings").json()["versions"] == ["1"]
    tensor = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 3, 4]}
    answer = predictor.post("/v2/models/embeddings/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text


def test_other_protocols_are_served_beside_it(predictor: httpx.Client) -> None:
    answer = predictor.post("/v1/embeddings", json={"model": "embeddings", "input": [[1, 3], [4]]})
    assert len(answer.json()["data"]) == 2


def test_the_startup_probe_fails_under_another_name(predictor: httpx.Client) -> None:
    path = CONTAINER["startupProbe"]["httpGet"]["path"]
    assert predictor.get(path.replace("{{.Name}}", "search")).status_code == 404
    assert predictor.get(CONTAINER["readinessProbe"]["httpGet"]["path"]).status_code == 200
    assert predictor.get(CONTAINER["livenessProbe"]["httpGet"]["path"]).status_code == 200
