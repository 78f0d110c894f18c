"""The newest version computes what the pinned one answered: counted, unseen, and last."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.service.inference.shadow.differences import COSINE, SCORE, differences
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.job import AllRows, Target
from addnorm.service.scheduling.queue.fair_queue import LAST
from addnorm.service.server.wiring import Service
from benchmarks.stress.copies import republish
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.metrics import value
from tests.support.scheduling import Queue, echo, of_lengths
from tests.support.waiting import eventually, runs_held_up

BODY = {"model": "notebook", "input": [[1, 3, 4], [5, 2]]}
PIN = "/v2/repository/models/notebook"


@pytest.fixture
def versions(notebook: Path, tmp_path: Path) -> Path:
    for version in (1, 2):
        republish(bundles.read(notebook), tmp_path, version)
    return tmp_path


@contextmanager
def shadowed(root: Path, pin: str = "1?shadow=1") -> Iterator[tuple[Service, httpx.Client]]:
    settings = {"worker_threads": 2, "token_budget": 128, "admin": True, "answer_versions": True}
    service = inference_of(root, versions={"notebook": pin}, **settings)
    with serving(service) as url, web.client(base_url=url) as client:
        yield service, client


def ask(client: httpx.Client, model: str = "notebook") -> dict[str, Any]:
    answer = client.post("/v1/embeddings", json={**BODY, "model": model})
    assert answer.status_code == 200, answer.text
    return {name: found for name, found in answer.json().items() if name != "id"}


def change(service: Service, run: Callable[[Batch, Any], Rows]) -> None:
    """Other rows of notebook/2."""
    target = service.models.find("notebook/2").target("fp32")
    own = target.run
    target.run = target.run_on_all_cores = lambda batch: run(batch, own)


def opposite(batch: Batch, run: Any) -> Rows:
    rows: Rows = run(batch)
    return rows._replace(activations=-rows.activations)


def counted(service: Service, outcome: str) -> float:
    labels = {"model": "notebook", "outcome": outcome}
    return value(service.metrics, "addnorm_shadow_requests_total", **labels) or 0


def cosines(service: Service) -> tuple[float | None, float | None]:
    """How many, and their sum."""
    return tuple(
        value(service.metrics, f"addnorm_shadow_cosine_{what}", model="notebook")
        for what in ("count", "sum")
    )  # type: ignore[return-value]


@pytest.mark.parametrize(("is_other", "total"), [(True, -2.0), (False, 2.0)])
def test_callers_get_the_pinned_version_and_the_difference_is_counted(
    versions: Path, is_other: bool, total: float
) -> None:
    with shadowed(versions) as (service, client):
        if is_other:
            change(service, opposite)
        pinned = ask(client)
        assert pinned["model"] == "notebook/1"
        assert eventually(lambda: counted(service, "compared") == 1)
        count, found = cosines(service)
        assert count == 2
        assert found == pytest.approx(total)
        assert pinned == ask(client, "notebook/1")  # bit for bit


def test_a_shadow_that_takes_long_keeps_no_caller_waiting_and_the_next_is_dropped(
    versions: Path,
) -> None:
    with shadowed(versions) as (service, client), runs_held_up(service.models, "notebook/2") as go:
        ask(client)
        for number in (1, 2):
            ask(client)  # while the run of notebook/2 does not end
            assert counted(service, "dropped") == number
        go.set()
        assert eventually(lambda: counted(service, "compared") == 1)


def test_a_version_that_fails_is_counted_and_logged_once(
    versions: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(batch: Batch, run: Any) -> Rows:
        raise RuntimeError("no such kernel")

    with shadowed(versions) as (service, client):
        change(service, broken)
        for number in (1, 2):
            ask(client)
            assert eventually(lambda number=number: counted(service, "failed") == number)
        assert sum("notebook/2 cannot compute" in line for line in caplog.messages) == 1


def test_one_command_rolls_back_and_another_goes_on(versions: Path) -> None:
    with shadowed(versions, "2") as (service, client):
        assert ask(client)["model"] == "notebook/2"
        assert client.post(f"{PIN}/1/pin").status_code == 200
        assert ask(client)["model"] == "notebook/1"
        assert client.get("/v1/models").json()["data"][0]["version"] == "1"
        assert client.post(f"{PIN}/1/pin", json={"shadow": 1}).status_code == 200
        ask(client)
        assert eventually(lambda: counted(service, "compared") == 1)
        assert client.post(f"{PIN}/latest/pin").status_code == 200
        assert ask(client)["model"] == "notebook/2"
        assert client.post(f"{PIN}/7/pin").status_code == 404
        assert client.post(f"{PIN}/one/pin").status_code == 400
        assert client.post(f"{PIN}/1/pin", json={"shadow": 2}).status_code == 400
        assert ask(client)["model"] == "notebook/2"
        assert client.post(f"{PIN}/2/pin").status_code == 200
        client.post(f"{PIN}/2/unload")
        gone = client.post("/v1/embeddings", json=BODY)  # never silently another version
        assert (gone.status_code, "it has 1; it is pinned" in gone.text) == (404, True)


def test_what_is_last_is_computed_while_nothing_else_waits() -> None:
    queue, ours, theirs = Queue(10_000), Target(echo, 64), Target(echo, 64)
    batch = of_lengths(8)
    last = queue.admission.submit(ours, batch, 0, 100, LAST, AllRows(batch), is_piece=True)
    others = [queue.admission.submit(theirs, of_lengths(64), 0, 100, key) for key in "abca"]
    order = [queue.take(0) for _ in range(5)]
    assert [micro.sequences[0].job for micro in order if micro][-1] is last
    assert {micro.sequences[0].job for micro in order[:-1] if micro} == set(others)
    assert queue.take(0) is None


def test_differences_are_of_sequences_and_shapes_must_fit() -> None:
    left = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]], np.float32)
    right = np.array([[4.0, 3.0], [0.0, 0.0], [0.0, 2.0]], np.float32)
    assert differences({COSINE: left}, {COSINE: right})[COSINE] == pytest.approx([0.96, 1, 0])
    assert differences({SCORE: left}, {SCORE: right})[SCORE] == [1, 0, 2]
    for other in ({}, {COSINE: right[:, :1]}):
        with pytest.raises(ValueError, match="shapes"):
            differences({COSINE: left}, other)
