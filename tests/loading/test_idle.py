"""Models that nobody asks for lose their sessions. The next request loads them again, and nobody's
is lost."""

import json
import shutil
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.model import Model
from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import Service
from addnorm.service.settings import Settings
from benchmarks.stress.copies import republish
from tests.conftest import OWN, client_of, inference_of
from tests.support import web
from tests.support.bundles import flip
from tests.support.grpc_client import calling
from tests.support.metrics import samples
from tests.support.waiting import PATIENCE_S, eventually

ROUNDS, CALLERS = 5, 8
NOW = 0.0  # whoever asks
SOON = 1e-9  # unless somebody asks
BODIES = [
    {"model": "notebook", "input_ids": [[1] + [3 + at % 3] * (1 + at // 3)]}
    for at in range(CALLERS)
]


@pytest.fixture
def service(small: Path) -> Service:
    return inference_of(small)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with client_of(service) as client:
        yield client


def notebook(service: Service) -> Model:
    return service.models.find("notebook")


def timing(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [stage.partition(";")[0] for stage in answer.headers["server-timing"].split(", ")]


def outputs(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return json.dumps({**answer.json(), "id": ""})


def test_the_first_request_waits_and_says_so_and_the_server_stays_ready(
    service: Service, client: httpx.Client
) -> None:
    before = client.post("/v1/infer", json=BODIES[0])
    shown = client.get("/v1/models").json()
    service.repository.unload_idle(NOW)
    assert client.get("/readyz").status_code == 200
    assert client.get("/v2/models/notebook/ready").status_code == 200
    assert client.get("/v1/models").json() == shown
    info = ("addnorm_model_info", "notebook")
    assert info in {(name, dict(labels).get("model")) for name, labels in scraped(client)}
    assert not notebook(service).is_loaded
    after = client.post("/v1/infer", json=BODIES[0])
    assert timing(after) == ["decode", "load", "queue", "infer", "encode"]
    assert timing(client.post("/v1/infer", json=BODIES[0])) == timing(before)
    assert outputs(after) == outputs(before)
    assert after.headers["x-addnorm-fingerprint"] == before.headers["x-addnorm-fingerprint"]
    assert client.get("/readyz").status_code == 200
    counted = client.get("/v2/models/notebook/stats").json()["model_stats"][0]
    assert counted["inference_stats"]["success"]["count"] == 3
    engine = weakref.ref(notebook(service).engine("fp32"))
    service.repository.unload_idle(NOW)
    assert engine() is None  # nothing holds what was loaded again


def scraped(client: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(client.get("/metrics").text)


def test_no_request_is_lost_however_often_models_are_unloaded(
    service: Service, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """All who wait for a model wait for one load of it."""
    expected = [outputs(client.post("/v1/infer", json=body)) for body in BODIES]
    caplog.set_level("INFO", "addnorm")
    ended, num_asked = threading.Event(), [0] * CALLERS

    def ask(at: int) -> None:
        while not ended.is_set():
            assert outputs(client.post("/v1/infer", json=BODIES[at])) == expected[at]
            num_asked[at] += 1

    with ThreadPoolExecutor(CALLERS) as callers:
        asking = [callers.submit(ask, at) for at in range(CALLERS)]
        try:
            for _ in range(ROUNDS):
                service.repository.unload_idle(NOW)
                asked = list(num_asked)
                assert eventually(
                    lambda asked=asked: (
                        all(map(int.__lt__, asked, num_asked))
                        or any(each.done() for each in asking)
                    )
                )
        finally:
            ended.set()
    assert [each.exception() for each in asking] == [None] * CALLERS
    num_loads = sum("serving notebook/1, ready in" in line for line in caplog.messages)
    assert num_loads == ROUNDS


def test_an_idle_model_is_unloaded_by_itself(small: Path) -> None:
    service = inference_of(small, idle_unload_s=0.01)
    with client_of(service) as client:
        for _ in range(2):
            assert eventually(lambda: not any(model.is_loaded for model in service.models.all()))
            assert "load" in timing(client.post("/v1/infer", json=BODIES[0]))


def test_a_model_is_not_idle_while_a_request_is_under_way(
    service: Service, client: httpx.Client
) -> None:
    go, taken = threading.Event(), threading.Event()

    def waits(batch: Batch) -> Rows:
        taken.set()
        go.wait()
        return run(batch)  # type: ignore[return-value]

    target = notebook(service).target("fp32")
    run = target.run
    target.run = target.run_on_all_cores = waits
    with ThreadPoolExecutor(1) as caller:
        under_way = caller.submit(client.post, "/v1/infer", json=BODIES[1])
        assert taken.wait(PATIENCE_S)
        service.repository.unload_idle(SOON)
        assert notebook(service).is_loaded
        go.set()
        assert "load" not in timing(under_way.result())
    assert eventually(lambda: not notebook(service).statistics.num_under_way)


def test_a_bundle_that_was_replaced_meanwhile_is_asked_for_again(
    notebook: Path, tmp_path: Path
) -> None:
    path = republish(bundles.read(notebook), tmp_path / "bundles", 1)
    service = inference_of(tmp_path / "bundles")
    with client_of(service) as client:
        service.repository.unload_idle(NOW)
        republish(bundles.read(notebook), tmp_path / "new", 1, added={"notes.txt": b"new"})
        shutil.rmtree(path)
        (tmp_path / "new" / "notebook" / "1").rename(path)
        changed = client.post("/v1/infer", json=BODIES[0])
        assert changed.status_code == 503
        assert "changed while it was unloaded: send the request again" in changed.text
        assert client.post("/v1/infer", json=BODIES[0]).status_code == 200


def test_every_probe_is_well_again_without_a_request_and_tells_no_path(
    notebook: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = republish(bundles.read(notebook), tmp_path / "bundles", 1)
    paths = ("/readyz", "/health", "/v2/health/ready", "/v2/models/notebook/ready", "/ping")
    paths += ("/v1/health/ready", "/v2/models/notebook/versions/1/ready")
    models = load_all(tmp_path / "bundles", Settings(**OWN))
    with calling(models) as (grpc, service, url), web.client(base_url=url) as client:

        def ready() -> list[bool]:
            over_http = [client.get(probe).status_code == 200 for probe in paths]
            named = grpc("ModelReady", name="notebook").ready
            return [*over_http, grpc("ServerReady").ready, named, grpc("Check").status == 1]

        assert all(ready())
        service.repository.unload_idle(NOW)
        kept = shutil.copy(path / "model.onnx", tmp_path)
        flip(path / "model.onnx")
        told = client.post("/v1/infer", json=BODIES[0])
        assert told.status_code == 503
        assert eventually(lambda: not any(ready()))
        for answer in (told, client.get("/readyz")):
            assert "bundle notebook/1: model.onnx does not match its sha256" in answer.text
            assert str(tmp_path) not in answer.text
        assert f"bundle {path}: model.onnx does not match" in caplog.text
        shutil.copy(kept, path / "model.onnx")
        assert eventually(lambda: all(ready()))
        assert "load" not in timing(client.post("/v1/infer", json=BODIES[0]))
