"""`addnorm load`: streams as stated, wrong answers counted, latency from the intended time."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np
import orjson
import pytest

from addnorm.corpus import embeddings_client
from addnorm.load.client import Connection
from addnorm.load.options import NAIVE_TOLERANCE
from addnorm.load.run import Load, Reference, Result, measure
from addnorm.load.servers import Server
from addnorm.load.stream import PROFILES, SWEEP_LONGEST, Stream, make, unique, zipf
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.manifest import Limits
from tests.support.fake_server import Answer, fake_server

LIMITS = Limits(max_positions=512, vocab_size=1000)


def compute(output: str, sequence: Ints) -> Floats:
    """A token's activation is its id and a third of it; pooled is their mean."""
    rows = np.stack([sequence, sequence / 3], axis=1).astype(np.float32)
    return rows if output == "activations" else rows.mean(0)


def right(body: bytes) -> tuple[int, bytes]:
    body_sent = orjson.loads(body)
    (output,) = body_sent["outputs"]
    rows = []
    for ids, mask in zip(body_sent["input_ids"], body_sent["attention_mask"], strict=True):
        row = compute(output, np.array(ids)[np.array(mask) != 0])
        rows.append(row if output == "pooled" else np.pad(row, ((0, len(ids) - len(row)), (0, 0))))
    return 200, orjson.dumps({output: np.stack(rows)}, option=orjson.OPT_SERIALIZE_NUMPY)


def one_bit_off(body: bytes) -> tuple[int, bytes]:
    status, content = right(body)
    values = np.array(next(iter(orjson.loads(content).values())), np.float32)
    values.reshape(-1)[0] = np.nextafter(values.reshape(-1)[0], np.float32(np.inf))
    return status, orjson.dumps(
        {orjson.loads(body)["outputs"][0]: values}, option=orjson.OPT_SERIALIZE_NUMPY
    )


def pads_not_zero(body: bytes) -> tuple[int, bytes]:
    status, content = right(body)
    values = np.array(orjson.loads(content)["activations"], np.float32)
    values[np.array(orjson.loads(body)["attention_mask"]) == 0] = 7.0
    return status, orjson.dumps({"activations": values}, option=orjson.OPT_SERIALIZE_NUMPY)


def measured(server: Server, profile: str, load: Load, tolerance: float | None = None) -> Result:
    stream, reference = make(PROFILES[profile], LIMITS), Reference(compute, tolerance)
    reference.learn(stream.requests)
    return measure(server, stream, reference, load, progress=False)


STREAMS: dict[str, Callable[..., Stream]] = {
    **{name: partial(make, profile, LIMITS) for name, profile in PROFILES.items()},
    "with repeats": partial(zipf, PROFILES["small"], LIMITS, 50, 1.0, 500),
    "without repeats": partial(unique, PROFILES["small"], LIMITS, 50),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_deterministic(name: str) -> None:
    """The same seed gives the same bodies in the same order, another seed gives others."""
    first, again, other = (STREAMS[name](seed=seed) for seed in (3, 3, 4))
    bodies = [[request.body for request in stream.requests] for stream in (first, again, other)]
    assert bodies[0] == bodies[1] != bodies[2]
    assert list(islice(first.indices(), 300)) == list(islice(again.indices(), 300))


@pytest.mark.parametrize(
    ("profile", "longest"), [("big", 100), *((f"longest-{n}", n) for n in SWEEP_LONGEST)]
)
def test_big_requests_have_the_stated_shape(profile: str, longest: int) -> None:
    """32 sequences, 960 real tokens, the longest exactly as long as stated."""
    for request in make(PROFILES[profile], LIMITS).requests:
        body = orjson.loads(request.body)
        assert (
            np.array(body["input_ids"]).shape
            == np.array(body["attention_mask"]).shape
            == (32, longest)
        )
        assert np.array(body["attention_mask"]).sum() == request.num_tokens == 960
        assert body["outputs"] == ["pooled"]


@pytest.mark.parametrize(
    ("profile", "mean", "longest"), [("small", 30, 128), ("hidden", 30, 128), ("long", 120, 512)]
)
def test_small_requests_have_the_stated_shape(profile: str, mean: int, longest: int) -> None:
    """1 to 4 sequences, of the stated mean length and no longer than the cap."""
    requests = make(PROFILES[profile], LIMITS).requests
    lengths = [len(sequence) for request in requests for sequence in request.sequences]
    assert {len(request.sequences) for request in requests} == {1, 2, 3, 4}
    assert max(lengths) <= longest
    assert 0.8 * mean < np.mean(lengths) < 1.2 * mean


def test_streams_stay_within_the_models_limits() -> None:
    limits = Limits(max_positions=5, vocab_size=6)
    for request in make(PROFILES["tiny"], limits).requests:
        (sequence,) = request.sequences
        assert 1 <= len(sequence) <= 5
        assert sequence.max() < 6


@pytest.mark.parametrize("profile", ["small", "hidden"])
def test_right_answers_are_no_errors(profile: str) -> None:
    with fake_server(right) as server:
        result = measured(server, profile, Load(4, 60.0, warm_up_s=0.0, num_answers=60))
    assert result.errors == {}
    assert result.num_answers == 60
    assert result.tokens_per_s > result.requests_per_s > 0


@pytest.mark.parametrize(
    ("profile", "answer", "error"),
    [
        ("small", one_bit_off, "wrong"),
        ("hidden", one_bit_off, "wrong"),
        ("hidden", pads_not_zero, "wrong"),
        (
            "small",
            lambda _: (200, b'{"pooled": [[1.0, 2.0]'),
            "the answer does not match the request",
        ),
        ("small", lambda _: (429, b'{"error": {}}'), "429"),
    ],
)
def test_wrong_answers_are_errors(profile: str, answer: Answer, error: str) -> None:
    """And they count for no throughput."""
    with fake_server(answer) as server:
        result = measured(server, profile, Load(4, 60.0, warm_up_s=0.0, num_answers=40))
    wrong = result.errors.pop(error)
    assert not result.errors
    assert wrong >= 20  # where a request has no pads, they are not wrong
    assert result.requests_per_s == pytest.approx((40 - wrong) / result.wall_s)


def test_a_tolerance_forgives_a_bit_and_what_stands_at_pads() -> None:
    for answer in (one_bit_off, pads_not_zero):
        with fake_server(answer) as server:
            result = measured(
                server, "hidden", Load(4, 60.0, warm_up_s=0.0, num_answers=40), NAIVE_TOLERANCE
            )
        assert result.errors == {}


def test_a_server_that_is_not_there_is_an_error() -> None:
    assert measured(Server("127.0.0.1", 9), "small", Load(1, 60.0, num_answers=3)).errors == {
        "no answer": 3
    }


def test_open_loop_latency_counts_from_the_intended_time() -> None:
    """A stall of 0.6 s delays all requests that were due during it."""
    with fake_server(right, stall_s=0.6) as server:
        result = measured(server, "tiny", Load(1, 1.2, rate=100.0, warm_up_s=0.0))
    assert result.errors == {}
    assert result.p95_ms > 300
    with fake_server(right, stall_s=0.6) as server:
        closed = measured(server, "tiny", Load(1, 60.0, warm_up_s=0.0, num_answers=100))
    assert closed.p95_ms < 300  # a closed loop hides it: one request of a hundred was slow


def test_a_proxy_is_not_asked_for_servers_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY is set where other machines are reached through one, which cannot reach us."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def checked(url: str) -> int:
        async with embeddings_client.server(url, None) as client:
            return (await client.get("/livez")).status_code

    with fake_server(lambda body: (200, b"here")) as server:
        assert server.get("/livez") == server.ask(b"{}") == b"here"
        for host in ("127.0.0.1", "localhost"):
            assert asyncio.run(checked(f"http://{host}:{server.port}")) == 200


class Silent(asyncio.Transport):
    def write(self, data: object) -> None:
        pass


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_answers_may_come_in_chunks(size: int) -> None:
    """Other servers send such answers. The pieces that arrive may have any size."""
    body = b'{"a": "0\\r\\n"}' * 20
    chunks = b"".join(
        b"%x;x=1\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:150], body[150:])
    )
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + chunks + b"0\r\n\r\n"

    async def receive() -> tuple[int, bytes]:
        connection = Connection()
        connection.connection_made(Silent())
        sending = asyncio.create_task(connection.send(b""))
        await asyncio.sleep(0)
        for start in range(0, len(answer), size):
            connection.data_received(answer[start : start + size])
        return await sending

    assert asyncio.run(receive()) == (200, body)
