"""Work for which there is no memory fails alone: 503, one line in the log, and nothing is held."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.scheduler import Scheduler
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.engine import run_session
from addnorm.service.engine.outputs import Activations
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Target
from addnorm.service.errors import OutOfMemory
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol
from tests.conftest import service_of
from tests.support.asks import ask_for
from tests.support.scheduling import gate_of, of_lengths, submit_to
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def service(few: Models) -> Iterator[Service]:
    service = service_of(few, worker_threads=1)
    yield service
    service.close()


def test_the_caller_is_told_to_come_back_and_the_log_has_one_line(
    few: Models, caplog: pytest.LogCaptureFixture
) -> None:
    async def too_large(request: Request) -> None:
        np.empty(2**55)

    large = Protocol(tag="", errors=OPENAI_ERRORS, routes=(PlainRoute("/large", too_large),))
    service = build(few, Settings(worker_threads=1), protocols=(large,))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/large", headers={"x-request-id": "the-one"})

    with caplog.at_level(logging.ERROR):
        answer = asyncio.run(ask())
    service.close()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == OutOfMemory.code
    (line,) = caplog.records
    assert "GET /large, request the-one" in line.getMessage()
    assert line.exc_info is None, "a stack trace takes more memory"


@pytest.mark.parametrize("num_values", [10, 100_000], ids=["on the event loop", "on a thread"])
def test_nothing_is_held_after_an_answer_for_which_there_is_no_memory(
    service: Service, num_values: int
) -> None:
    def encode(ask: Ask) -> None:
        np.empty(2**55)

    options = {"answer_bytes": num_values, "key": "a", "encode": encode}
    ask = ask_for(service.models.find("gpt"), [[1, 2, 3]], Activations(), **options)
    with pytest.raises(MemoryError), service.gate.admit(ask):
        asyncio.run(service.answers.answer(ask))
    assert not any(service.gate.total.values())


def test_a_run_for_which_there_is_no_memory_fails_its_own_job_only() -> None:
    def run(batch: Batch) -> Rows:
        if len(batch.tokens) > 5:
            np.empty(2**55)
        column = batch.tokens[:, None].astype(np.float32)
        return Rows(column, column, column)

    scheduler, target = Scheduler(gate_of(1, 1000)), Target(run, 100)
    scheduler.start()
    large, small = (submit_to(scheduler, target, of_lengths(size), PATIENCE_S) for size in (9, 3))
    with pytest.raises(MemoryError):
        large.entry.future.result(PATIENCE_S)
    small.entry.future.result(PATIENCE_S)
    scheduler.close()


def test_onnxruntimes_words_for_it_are_known() -> None:
    def fails(words: str) -> Any:
        def run(outputs: Any, inputs: Any, options: Any) -> Any:
            raise RuntimeError(f"bfc_arena.cc:360 {words} for requested buffer of size 49153536")

        return SimpleNamespace(run=run)

    with pytest.raises(MemoryError):
        run_session(fails("Failed to allocate memory"), None, {})
    with pytest.raises(RuntimeError, match="broken"):
        run_session(fails("broken"), None, {})


def test_a_rejected_body_is_freed_at_once(few: Models) -> None:
    """Not when the collector next looks for cycles: bodies of many megabytes would stay."""
    service = service_of(few, worker_threads=1)

    async def ask(num: int) -> None:
        transport = httpx.ASGITransport(service.app)
        headers = {"x-request-timeout-ms": "123456"}  # tells these requests' deadlines from others
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            body = {"model": "notebook", "input_ids": [[1, 2.5] * 100_000]}  # read on a thread
            for _ in range(num):
                assert (await client.post("/v1/infer", json=body, headers=headers)).is_client_error

    def held() -> list[Ask]:
        asks = [one for one in gc.get_objects() if type(one) is Ask]
        return [one for one in asks if one.timeout_s == 123.456]

    gc.collect()
    gc.disable()
    try:
        asyncio.run(ask(5))
        service.close()
        assert len(held()) <= 1  # a thread may be slow to let go of the last one
    finally:
        gc.enable()
