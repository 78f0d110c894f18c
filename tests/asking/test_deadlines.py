"""Deadlines are checked between all stages, and count the time to make and write an answer."""

import asyncio
import gzip
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.cost import FADE_S, Cost, Rate, measure
from addnorm.service.asking.turns import Turns
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.outputs import Activations, Logits, Output, TopLogits, Value
from addnorm.service.engine.registry import Models
from addnorm.service.errors import Expired, Overloaded
from tests.conftest import Serve, service_of
from tests.support import web
from tests.support.asks import ask_for
from tests.support.metrics import samples
from tests.support.waiting import PATIENCE_S, eventually

# one token, and as many pads as an answer may have: little to compute, 100 MB and more to write
NUM_ROWS, WIDTH = 256, 1024
WIDE: dict[str, Any] = {
    "model": "gpt",
    "input_ids": [[1] * WIDTH] * NUM_ROWS,
    "attention_mask": [[1] + [0] * (WIDTH - 1)] + [[0] * WIDTH] * (NUM_ROWS - 1),
    "outputs": ["activations"],
}


@pytest.fixture
def server(serve: Serve) -> Iterator[httpx.Client]:
    """One that has measured nothing yet."""
    with serve() as url, web.client(base_url=url, timeout=60) as client:
        yield client


def wide_v2(timeout_us: int) -> dict[str, Any]:
    names = ("input_ids", "attention_mask")
    about = {"shape": [NUM_ROWS, WIDTH], "datatype": "INT64"}
    inputs = [{"name": name, **about, "data": WIDE[name]} for name in names]
    body = {"outputs": [{"name": "activations"}], "parameters": {"timeout": timeout_us}}
    return {"inputs": inputs, **body}


@pytest.mark.parametrize(
    ("coding", "timeout_ms"), [("identity", 120), ("gzip", 200), ("deflate", 200)]
)
def test_an_answer_that_takes_too_long_to_write_is_given_up(
    server: httpx.Client, coding: str, timeout_ms: int
) -> None:
    headers = {"x-request-timeout-ms": str(timeout_ms), "accept-encoding": coding}
    answer = server.post("/v1/infer", json=WIDE, headers=headers)
    assert answer.status_code == 504, len(answer.content)
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    held = samples(server.get("/metrics").text)
    assert held["addnorm_pending_bytes", (("what", "responses"),)] == 0


def test_a_deadline_in_the_body_counts_to_the_first_byte(server: httpx.Client) -> None:
    answer = server.post("/v2/models/gpt/infer", json=wide_v2(120_000))
    assert answer.status_code == 504, len(answer.content)


def test_what_was_measured_is_rejected_before_any_work(server: httpx.Client) -> None:
    def ask(timeout_ms: float, output: str = "activations") -> httpx.Response:
        headers = {"x-request-timeout-ms": f"{timeout_ms:.0f}", "accept-encoding": "gzip"}
        return server.post("/v1/infer", json={**WIDE, "outputs": [output]}, headers=headers)

    known = ask(60_000)
    assert known.status_code == 200
    (encode_ms,) = re.findall(r"encode;dur=([\d.]+)", known.headers["server-timing"])
    answer = ask(0.6 * float(encode_ms))
    assert answer.status_code == 504
    assert "computing and writing the answer takes about" in answer.json()["error"]["message"]
    assert ask(60_000, "pooled").status_code == 200


def test_a_caller_that_leaves_ends_the_writing(server: httpx.Client) -> None:
    body = orjson.dumps(WIDE)
    url = urlsplit(str(server.base_url))
    with socket.create_connection((url.hostname, url.port)) as gone:
        lines = ("host: x", "accept-encoding: gzip", f"content-length: {len(body)}", "", "")
        head = "\r\n".join(("POST /v1/infer HTTP/1.1", *lines))
        gone.sendall(head.encode() + body)
        time.sleep(0.2)
    left = 'route="/v1/infer",status="499"'
    assert eventually(lambda: left in server.get("/metrics").text)


# without HTTP


def one(models: Models, output: Output[Value] | None = None, **fields: Any) -> Ask:
    ask = ask_for(models.find("gpt"), [[1, 2, 3]], output or Logits(), **fields)
    ask.sizes = [output.size(ask.model.bundle, ask.batch, ask.padding) for output in ask.outputs]
    return ask


def slowly(num_pieces: int, done: list[int]) -> str:
    for number in range(num_pieces):
        time.sleep(0.005)
        done.append(number)
        checkpoint()
    return "made"


def test_work_ends_with_the_piece_in_which_the_deadline_passes() -> None:
    def work() -> None:
        for number in range(2000):
            done.append(number)
            if number == 5:
                deadline.started -= 2 * deadline.timeout_s
            checkpoint()

    threads, deadline, done = Turns(1, "test"), Ask(timeout_s=PATIENCE_S), list[int]()
    with pytest.raises(Expired):
        asyncio.run(threads.run(deadline, work))
    threads.close()
    assert done == list(range(6))


def test_one_who_waits_for_a_thread_hears_of_the_deadline_in_time() -> None:
    async def waits() -> None:
        busy = asyncio.create_task(threads.run(Ask(timeout_s=2 * PATIENCE_S), blocks))
        await asyncio.sleep(0)
        with pytest.raises(Expired):
            await threads.run(Ask(timeout_s=0.1), slowly, 1, [])
        assert not busy.done()
        go.set()
        await busy

    def blocks() -> None:
        assert go.wait(PATIENCE_S)

    threads, go = Turns(1, "test"), threading.Event()
    asyncio.run(waits())
    threads.close()


@pytest.mark.parametrize("stage", ["before", "in the queue", "while writing"])
def test_the_deadline_is_looked_at_in_every_stage(few: Models, stage: str) -> None:
    def encode(ask: Ask) -> str:
        return slowly(1 if stage == "in the queue" else 1000, [])

    inference = service_of(few, worker_threads=1)
    timeout_s, arrived = {
        "before": (1.0, time.monotonic() - 2), "in the queue": (1e-4, time.monotonic()),
        "while writing": (0.2, time.monotonic()),
    }[stage]  # fmt: skip
    ask = one(few, encode=encode, timeout_s=timeout_s, started=arrived)
    with pytest.raises(Expired):
        asyncio.run(inference.answers.answer(ask))
    inference.close()


def test_answers_under_way_are_counted_on(few: Models) -> None:
    """What others' answers take is a reason to come back later; what one's own takes is not."""
    inference = service_of(few, worker_threads=1)
    query = one(few)
    cost = inference.answers.costs["a"]
    cost.making(query).add(3, 0.6, is_done=True)
    cost.writing(query).add(1000, 0.0, is_done=True)

    async def ask(timeout_s: float, key: str = "a", num_pieces: int = 60) -> str:
        ask = one(few, key=key, timeout_s=timeout_s, encode=lambda _: slowly(num_pieces, []))
        with inference.gate.admit(ask):
            return await inference.answers.answer(ask)  # type: ignore[no-any-return]

    async def three() -> list[Any]:
        return await asyncio.gather(ask(60), ask(0.5), ask(1.0), return_exceptions=True)

    first, own, others = asyncio.run(three())
    assert asyncio.run(ask(0.5, "b", 1)) == "made", "one key's rate teaches nothing of another's"
    assert inference.gate.total["answer_s"] == 0
    inference.close()
    assert first == "made"
    assert isinstance(own, Expired)
    assert isinstance(others, Overloaded)
    assert others.code == "deadline_not_met"
    assert others.retry_after_s == pytest.approx(0.6, rel=0.2)


def test_one_kind_of_answer_teaches_nothing_of_others(few: Models) -> None:
    """Fill-mask makes its results while it writes."""
    mask = {"route": "/v1/fill-mask", "num_bytes": 1000}
    cost, slow = Cost(), one(few, answer_bytes=1000, **mask)
    cost.writing(slow).add(1000, 10.0, is_done=True)
    cost.making(slow).add(3, 10.0, is_done=True)
    assert cost.predicted_s(one(few, answer_bytes=2000, **mask)) == pytest.approx(20.0)
    for other in (
        one(few, Activations(), answer_bytes=2000, route="/v1/infer", num_bytes=1000),
        one(few, Activations(), **mask),
    ):
        assert cost.predicted_s(other) == 0.0


def test_rates_follow_what_was_measured_and_fade_while_they_reject() -> None:
    rate = Rate()
    assert rate.s_per_unit == 0.0
    rate.add(100, 1.0, is_done=True)
    assert rate.s_per_unit == pytest.approx(0.01)
    rate.add(100, 0.2, is_done=False)  # given up: it took longer than that, which was known
    assert rate.s_per_unit == pytest.approx(0.01)
    rate.add(10, 1.0, is_done=False)  # at least ten times as long
    assert rate.s_per_unit > 0.015
    for _ in range(20):
        rate.add(100, 1.0, is_done=True)
    assert rate.s_per_unit == pytest.approx(0.01, rel=0.01)
    rate.fade(now=5.0)
    rate.fade(now=5.0)
    assert rate.s_per_unit == pytest.approx(0.01, rel=0.01)  # however many are refused at once
    rate.fade(now=5.0 + FADE_S)
    assert rate.s_per_unit == pytest.approx(0.01 / 2.718, rel=0.01)


def test_a_small_answer_is_predicted_to_take_what_its_rows_and_bytes_take(few: Models) -> None:
    cost, all_rows = Cost(), one(few, num_bytes=1000)
    last_row = one(few, Logits(positions="last"), num_bytes=1000)
    assert cost.predicted_s(all_rows) == 0.0
    cost.making(all_rows).add(30, 0.3, is_done=True)
    cost.writing(all_rows).add(10_000, 0.1, is_done=True)
    assert cost.predicted_s(all_rows) == pytest.approx(3 * 0.01 + 0.01)
    assert cost.predicted_s(last_row) == pytest.approx(1 * 0.01 + 0.01)
    assert cost.predicted_s(one(few, Activations(), num_bytes=1000)) == pytest.approx(0.01)
    assert cost.predicted_s(one(few, TopLogits(top_k=2))) == 0.0  # was never measured


@pytest.mark.parametrize("is_done", [True, False])
def test_time_that_others_take_is_not_counted_as_the_works(is_done: bool) -> None:
    """The clock stands still meanwhile, also where the work is given up."""
    rate, clock = Rate(), iter([100.0, 115.0])
    with suppress(Expired), measure(rate, 3, lambda: next(clock)):
        if not is_done:
            raise Expired("late")
    assert rate.s_per_unit == 5.0
    with measure(rate, 0, lambda: 0.0):  # without units it tells nothing
        pass
    assert rate.s_per_unit == 5.0


def test_a_compressed_body_is_read_within_its_deadline(server: httpx.Client) -> None:
    body = gzip.compress(orjson.dumps(WIDE))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    headers["x-request-timeout-ms"] = "1"
    assert server.post("/v1/infer", content=body, headers=headers).status_code in (429, 504)
