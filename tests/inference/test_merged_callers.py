"""Many callers ask for the same new sequence at once: it is computed once, for all of them."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from addnorm.service.models.model import Model
from addnorm.service.models.registry import Models
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.scheduling.job import Run
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from tests.conftest import OWN, serving
from tests.support import web
from tests.support.metrics import total
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.web import IDLE_S

CALLERS, TIMES = 64, 8


class Held(NamedTuple):
    """A server whose session runs wait at a gate."""

    service: Service
    client: httpx.Client
    model: Model
    gate: threading.Event
    running: threading.Event  # set when a run has begun

    def ask(self, sequence: list[int]) -> bytes:
        body = {"model": "notebook", "input_ids": [sequence], "outputs": ["pooled"]}
        answer = self.client.post("/v1/infer", json=body)
        assert answer.status_code == 200, answer.text
        return answer.content

    def count(self, name: str) -> int:
        return int(total(self.service.metrics, f"addnorm_{name}_total"))

    def num_runs(self) -> int:
        return sum(runs.count for runs in self.model.statistics.runs().values())


@pytest.fixture
def held(notebook: Path) -> Iterator[Held]:
    model = Model(bundles.read(notebook), token_budget=64)
    gate, running = threading.Event(), threading.Event()
    target = model.target(None)
    target.run = target.run_on_all_cores = _gated(target.run, gate, running)
    service = build(Models([model]), Settings(**{**OWN, "cache_bytes": 2**20}))
    limits = httpx.Limits(max_connections=CALLERS, keepalive_expiry=IDLE_S)
    with (
        serving(service) as url,
        web.client(base_url=url, timeout=60, limits=limits) as client,
    ):
        yield Held(service, client, model, gate, running)


def _gated(run: Run, gate: threading.Event, running: threading.Event) -> Run:
    def gated(batch: Batch) -> Rows:
        running.set()
        assert gate.wait(PATIENCE_S)
        return run(batch)

    return gated


def new_sequences() -> Iterator[list[int]]:
    yield from ([1 + index // 5, 1 + index % 5, 3] for index in range(TIMES))


def test_equal_new_sequences_of_many_callers_are_one_session_run(held: Held) -> None:
    """Whenever they come: before the run, while it goes on, or after it."""

    def num_shared() -> int:
        return held.count("merged_sequences") + held.count("cache_hits")

    with ThreadPoolExecutor(CALLERS) as callers:
        for number, sequence in enumerate(new_sequences(), 1):
            asked = [callers.submit(held.ask, sequence) for _ in range(CALLERS)]
            if number == 1:  # some come before the run's end for sure
                assert eventually(lambda: held.count("cache_misses") > 1)
                held.gate.set()
            assert len({one.result() for one in asked}) == 1
            assert held.num_runs() == number
            # what is merged is counted after its answer
            assert eventually(lambda number=number: num_shared() == number * (CALLERS - 1))
    assert held.count("merged_sequences")


@pytest.mark.parametrize("num_busy", [0, 2], ids=["while it runs", "while it waits"])
def test_others_are_answered_if_the_first_caller_leaves(held: Held, num_busy: int) -> None:
    """num_busy: worker threads with runs of their own."""
    sequence, num_others = [1, 2, 3], CALLERS - 1
    with ExitStack() as until_the_end, ThreadPoolExecutor(num_others) as callers:
        for number in range(num_busy):
            until_the_end.enter_context(asked(held, [4] * (1 + 4 * number)))
            assert eventually(lambda number=number: held.service.scheduler.num_busy == number + 1)
        with asked(held, sequence):
            assert eventually(lambda: held.count("cache_misses") == num_busy + 1)
            assert held.running.wait(PATIENCE_S)
            answers = [callers.submit(held.ask, sequence) for _ in range(num_others)]
            assert eventually(lambda: held.count("cache_misses") == num_busy + CALLERS)
        assert eventually(lambda: held.count("requests") == 1)  # the server knows that it has left
        held.gate.set()
        assert len({answer.result() for answer in answers}) == 1
    assert held.num_runs() == num_busy + 1


@contextmanager
def asked(held: Held, sequence: list[int]) -> Iterator[None]:
    """Sends a request for a caller that leaves at the end."""
    body = json.dumps({"input_ids": [sequence], "outputs": ["pooled"]}).encode()
    head = f"POST /v1/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    place = held.client.base_url
    with socket.create_connection((place.host, place.port), PATIENCE_S) as connection:
        connection.sendall(head.encode() + body)
        yield
