"""Under an ASGI server that is not ours: who leaves is noticed, and limits and errors hold."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from starlette.types import Message

from addnorm.service.engine.registry import Models
from addnorm.service.server.app import ForOtherServers
from addnorm.service.server.wiring import Service
from tests.conftest import service_of
from tests.support.metrics import samples
from tests.support.waiting import PATIENCE_S, runs_held_up, until

GOOD = json.dumps(
    {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}
).encode()
JSON = (b"content-type", b"application/json")
LIMITS = {"body_timeout_s": 0.2, "max_body_bytes": 1000}
Headers = Sequence[tuple[bytes, bytes]]


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class Call:
    """One request as the plainest ASGI server would make it: pieces of a body come through a
    queue, and so does the caller's leaving."""

    def __init__(self, *pieces: bytes, headers: Headers = (), is_whole: bool = True) -> None:
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        for number, piece in enumerate(pieces, 1):
            more = number < len(pieces) or not is_whole
            self.coming.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        self._headers = [JSON, *headers]

    def leave(self) -> None:
        self.coming.put_nowait({"type": "http.disconnect"})

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self, service: Service, method: str = "POST", path: str = "/v1/infer") -> Answer:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "headers": self._headers,
            "query_string": b"",
        }
        app = ForOtherServers(service.app)
        async with asyncio.timeout(PATIENCE_S):
            await app(scope, self.coming.get, self._send)
        start, *parts = self.sent
        bodies = [part["body"] for part in parts]
        assert all(isinstance(body, bytes) for body in bodies)  # as ASGI has it
        return Answer(start["status"], dict(start["headers"]), b"".join(bodies))


@pytest.fixture(scope="module")
def limited(few: Models) -> Iterator[Service]:
    service = service_of(few, **LIMITS)
    yield service
    service.close()


@pytest.fixture
def held_up(few: Models) -> Iterator[tuple[Service, threading.Event]]:
    """A service whose runs of notebook wait, and what lets them go."""
    service = service_of(few, worker_threads=1)
    with runs_held_up(few) as go:
        yield service, go
    service.close()


def test_a_body_in_pieces_is_answered(limited: Service) -> None:
    answer = asyncio.run(Call(GOOD[:20], GOOD[20:]).run(limited))
    assert answer.status == 200
    assert json.loads(answer.body)["pooled"]
    assert b"x-addnorm-fingerprint" in answer.headers


def test_a_large_answer_comes_as_bytes(limited: Service) -> None:
    fields = {"model": "gpt", "input_ids": [[7] * 30] * 4, "outputs": ["logits"]}
    accept = (b"accept", b"application/vnd.safetensors")
    answer = asyncio.run(Call(json.dumps(fields).encode(), headers=[accept]).run(limited))
    assert answer.status == 200
    assert len(answer.body) == int(answer.headers[b"content-length"]) > 100_000


def test_who_leaves_is_noticed_and_nothing_is_computed_for_them(
    held_up: tuple[Service, threading.Event],
) -> None:
    service, go = held_up

    async def leaves() -> None:
        first, others = Call(GOOD), [Call(GOOD) for _ in range(3)]
        answered = asyncio.create_task(first.run(service))
        await until(lambda: service.scheduler.num_busy == 1)
        left = [asyncio.create_task(call.run(service)) for call in others]
        await until(lambda: service.scheduler.num_queued_tokens() == 15)
        for call in others:
            call.leave()
        answers = await asyncio.gather(*left)  # though no run has ended
        assert [answer.status for answer in answers] == [499] * 3
        go.set()
        assert (await answered).status == 200
        await until(lambda: service.scheduler.num_busy == 0)  # what has run is counted
        metrics = await Call().run(service, "GET", "/metrics")
        computed = ("addnorm_micro_batch_tokens_sum", (("model", "notebook"),))
        assert samples(metrics.body.decode())[computed] == 5

    asyncio.run(leaves())


def test_a_server_that_loses_the_caller_by_an_error_counts_as_left(
    held_up: tuple[Service, threading.Event],
) -> None:
    service, _ = held_up

    async def breaks() -> None:
        call = Call(GOOD)
        take = call.coming.get

        async def get() -> Message:
            if call.coming.empty():
                raise RuntimeError("the proxy has died")
            return await take()

        call.coming.get = get  # type: ignore[method-assign]
        assert (await call.run(service)).status == 499

    asyncio.run(breaks())


def test_who_leaves_within_the_body_is_noticed(limited: Service) -> None:
    call = Call(GOOD[:20], is_whole=False)
    call.leave()
    assert asyncio.run(call.run(limited)).code == "client_gone"


def test_no_task_outlives_its_request(limited: Service) -> None:
    async def one() -> None:
        await Call(GOOD).run(limited)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(one())


def test_a_deadline_holds(held_up: tuple[Service, threading.Event]) -> None:
    service, _ = held_up
    call = Call(GOOD, headers=[(b"x-request-timeout-ms", b"100")])
    assert asyncio.run(call.run(service)).status == 504


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        (lambda: Call(GOOD[:20], is_whole=False), 408, "request_timeout"),
        (lambda: Call(GOOD.ljust(1001)), 413, "body_too_large"),
        (lambda: Call(GOOD, b" " * 900, b" " * 900), 413, "body_too_large"),
        (lambda: Call(headers=[(b"content-length", b"1001")]), 413, "body_too_large"),
        (lambda: Call(GOOD, headers=[(b"x-long", b"x" * 32_768)]), 431, "head_too_large"),
        (lambda: Call(GOOD, headers=[JSON]), 400, "invalid_input"),
        (lambda: Call(GOOD, headers=[(b"transfer-encoding", b"gzip")]), 400, "invalid_input"),
        (lambda: Call(b"{"), 400, "invalid_input"),
    ],
    ids=["slow", "large", "large in pieces", "declared", "head", "twice", "coding", "no JSON"],
)
def test_limits_and_errors_hold(limited: Service, call: Any, status: int, code: str) -> None:
    async def asked() -> Answer:
        return await call().run(limited)

    answer = asyncio.run(asked())
    assert (answer.status, answer.code) == (status, code)
