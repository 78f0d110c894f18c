"""Large bodies and answers: in pieces, off the event loop, and the same bytes as in one."""

import gzip
import http.client
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector

from addnorm.service.dialects.native.native_infer import INFER
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.registry import Models
from addnorm.service.errors import BodyTooLarge, InvalidInput
from addnorm.service.settings import Settings
from addnorm.service.wire.codec import decoding
from addnorm.service.wire.codec import negotiation as content
from addnorm.service.wire.codec.negotiation import (
    PIECE_BYTES,
    PIECE_VALUES,
    Several,
    compress,
    decompress,
    slices,
    written,
)
from addnorm.service.wire.codec.shown import shown
from addnorm.service.wire.codec.validation import BLOCK_BYTES, fit, parse
from tests.conftest import Serve, service_of, serving
from tests.support import web
from tests.support.waiting import eventually

floats = np.random.default_rng(0).standard_normal
SETTINGS = Settings()

# answers


NO_ROWS = np.zeros((0, 300), np.float32)
VALUES: dict[str, Any] = {
    "nothing": {},
    "little": {"a": [1.5, None, "text"], "b": {"c": True}},
    "flat": floats(300_000, np.float32),
    "a grid": floats((40, 50, 128), np.float32),
    "few long rows": floats((3, 100_000), np.float32),
    "float16": floats((200, 700)).astype(np.float16),
    "ragged": [floats((length, 300), np.float32) for length in (1, 400, 2, 3, 1000, 5)],
    "no rows": [NO_ROWS, floats((300, 300), np.float32), NO_ROWS],
    "an empty grid": {
        "grid": np.zeros((0, 3), np.float32), "list": [], "flat": floats(100_000, np.float32),
    },
    "null at pads": [[None, floats(5)] * 20_000, [None] * 50_000],
    "embeddings": {
        "data": [{"index": n, "embedding": floats(384, np.float32)} for n in range(1024)],
        "usage": {"n": 3},
    },
    "base64": {"data": [{"index": n, "embedding": "A" * 2048} for n in range(1024)]},
    "one long text": {"text": "é" * 2_000_000, "list": ["b" * 2_000_000]},
    "odd names": {'"': floats(100_000, np.float32), "é\n": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_json_in_pieces_is_the_json_of_one(name: str) -> None:
    whole = orjson.dumps(VALUES[name], option=orjson.OPT_SERIALIZE_NUMPY)
    for num_bytes in (len(whole), 10 * PIECE_BYTES):
        assert b"".join(written(VALUES[name], num_bytes)) == whole


def lazy(value: Any) -> Any:
    """The value with iterators for its lists."""
    if isinstance(value, dict):
        return {name: lazy(item) for name, item in value.items()}
    return map(lazy, value) if isinstance(value, list) else value


@pytest.mark.parametrize("num_bytes", [0, 10 * PIECE_BYTES])
def test_json_of_what_is_made_while_it_is_written_is_the_same(num_bytes: int) -> None:
    values = ([], [[], [[]], 1], {"a": [{"b": [1.5, "c"]}, None], "d": "e"}, VALUES["embeddings"])
    for value in values:
        whole = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        assert b"".join(written(lazy(value), num_bytes)) == whole
    flat = {"a": [1, 2, 3], "b": []}
    some = (Several([1]), Several(), Several([2, 3]), Several())
    parts = {"a": iter(some), "b": iter([Several()])}
    assert b"".join(written(parts, num_bytes)) == orjson.dumps(flat)


def test_of_what_is_made_while_it_is_written_only_the_json_is_held() -> None:
    """Numbers of Python take several times their JSON."""
    rows = ({"values": [float(n)] * 1000} for n in range(400))
    tracemalloc.start()
    try:
        parts = written(rows, 10 * PIECE_BYTES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < sum(map(len, parts)) + 4 * PIECE_BYTES


@pytest.mark.parametrize(
    "name", ["flat", "a grid", "few long rows", "ragged", "embeddings", "base64"]
)
def test_no_more_is_written_in_one_go_than_a_piece(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sizes: list[int] = []
    whole = content._dumped

    def dumped(value: Any) -> bytes:
        sizes.append(
            content._size(value) if not isinstance(value, list) else sum(map(content._size, value))
        )
        return whole(value)

    monkeypatch.setattr(content, "_dumped", dumped)
    parts = written(VALUES[name], 10 * PIECE_BYTES)
    assert max(sizes) <= PIECE_VALUES
    assert max(map(len, parts)) < 4 * PIECE_BYTES


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_compressed_in_pieces_is_whole(coding: str) -> None:
    parts: list[bytes | memoryview] = [
        b"",
        b"a" * 3_000_000,
        memoryview(floats(500_000)).cast("B"),
        b"end",
    ]
    body = b"".join(compress(parts, coding))
    plain = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body)
    assert plain == b"".join(parts)


def test_slices_are_not_copied() -> None:
    part = bytearray(10)
    pieces = list(slices(memoryview(part), 4))
    part[:] = b"0123456789"
    assert [bytes(piece) for piece in pieces] == [b"0123", b"4567", b"89"]


# bodies


def test_json_has_a_limit_of_its_own() -> None:
    body = b'{"input_ids": [[1]]}' + b" " * SETTINGS.max_json_bytes
    with pytest.raises(
        BodyTooLarge, match=f"{len(body)} bytes of JSON, the limit is {SETTINGS.max_json_bytes}"
    ):
        parse(body, SETTINGS)


OK_TEXT = 'a\\\\\\"' + "\\" * 5  # backslashes and quotes, escaped
TEXTS = [
    OK_TEXT * 1000,
    "\\" * (BLOCK_BYTES - 20),
    '"' * 100_000,
    ':[{,"' * 50_000,
    "\\" * (BLOCK_BYTES // 2) + '"',
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("shift", range(4))
def test_what_stands_in_strings_is_not_counted_wherever_a_block_ends(text: str, shift: int) -> None:
    body = orjson.dumps({"model": "m" * shift, "texts": [text, ":,[{" * 100_000, text, text]})
    assert fit(INFER.request, parse(body, SETTINGS)).texts == [
        text,
        ":,[{" * 100_000,
        text,
        text,
    ]
    bad = body[:-1] + b"".join(b',"k%d":0' % n for n in range(9193)) + b"}"
    with pytest.raises(InvalidInput, match="more than 9192 keys"):
        parse(bad, SETTINGS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a" * 10_000_000, '"' + "a" * 59 + "..."),
        ([[[[[1]]]]], '[[["..."]]]'),
        ([1] * 1_000_000, "[" + "1," * 29 + "1..."),
        ({"k" * 1_000_000: 1}, '{"' + "k" * 58 + "..."),
        (2.0**64, "1.8446744073709552e+19: more than 64 bits hold"),
        (1.5, "1.5"),
        (None, "null"),
    ],
    ids=["text", "deep", "list", "key", "wide", "float", "null"],
)
def test_a_value_is_shown_in_short(value: Any, words: str) -> None:
    started = time.thread_time()
    assert shown(value) == words
    assert time.thread_time() - started < 0.05


def test_a_bomb_is_not_decompressed_on_the_event_loop() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    assert decompress(bomb, "gzip", 16_000_000, stop_bytes=65_536) is None
    assert len(decompress(bomb, "gzip", 16_000_000)) == 10_000_000
    assert decompress(gzip.compress(b"little"), "gzip", 16_000_000, stop_bytes=65_536) == b"little"
    with pytest.raises(BodyTooLarge):
        decompress(bomb, "gzip", 1000, stop_bytes=65_536)
    with pytest.raises(InvalidInput, match="cut short"):
        decompress(bomb[:-1], "gzip", 16_000_000)
    with pytest.raises(InvalidInput, match="bytes after its end"):
        decompress(gzip.compress(b"little") + bytes(100_000), "gzip", 16_000_000)


# the event loop


def longest_wait_s(url: str, work: Callable[[], object]) -> float:
    """The longest wait of a caller who asks again and again, until the work is done, whether the
    server lives. It is CPU time of this process, which serves: while it waits for a core it holds
    nobody up."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(split.hostname or "", split.port)
    thread = threading.Thread(target=work)
    thread.start()
    times = [time.process_time()]
    while thread.is_alive():
        connection.request("GET", "/livez")
        connection.getresponse().read()
        times.append(time.process_time())
        time.sleep(0.002)
    connection.close()
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def sent(url: str, path: str, body: bytes, headers: str = "") -> None:
    """Sends it and throws the answer away, as it would hold up this process to read it."""
    split = urlsplit(url)
    with socket.create_connection((split.hostname, split.port)) as connection:
        lines = ("host: x", "connection: close", f"content-length: {len(body)}", headers, "")
        head = "\r\n".join((f"POST {path} HTTP/1.1", *lines))
        connection.sendall(head.encode() + body)
        while connection.recv(1 << 20):
            pass


WIDE = orjson.dumps(
    {
        "model": "gpt",
        "input_ids": [[1] * 1024] * 256,
        "attention_mask": [[1] + [0] * 1023] * 256,
        "outputs": ["activations"],
    }
)
LONG = b'{"input_ids": [[%s]]}' % b",".join([b"7" * 4299] * 1900)
# four blocks of deflate, each with codes of its own and not a byte; so many take a second
BLOCKS = bytes.fromhex(
    "04c081000000000090ff6b100007020000000040feaf41001c080000000000f9bf060170200000000000e4ff1a"
)
NOTHING = b"\x78\x01" + BLOCKS * 370_000
LARGE: dict[str, tuple[str, bytes, str]] = {
    "an answer of 130 MB": ("/v1/infer", WIDE, ""),
    "the same, compressed": ("/v1/infer", WIDE, "accept-encoding: gzip\r\n"),
    "integers of 4,299 digits": ("/v1/infer", gzip.compress(LONG, 1), "content-encoding: gzip\r\n"),
    "what stands for nothing": ("/v1/infer", NOTHING, "content-encoding: deflate\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_does_not_hold_up_the_event_loop(serve: Serve, name: str) -> None:
    """One of ten attempts must succeed, for the machine may be busy. `python -m benchmarks
    other-keys` has figures."""
    path, body, headers = LARGE[name]
    with serve() as url:
        assert any(
            longest_wait_s(url, lambda: sent(url, path, body, headers)) < 0.1 for _ in range(10)
        )


def test_what_is_told_of_many_models_is_made_off_the_event_loop(few: Models) -> None:
    class Asked(Collector):
        def collect(self) -> Iterator[Metric]:
            threads.append(threading.current_thread().name)
            yield from ()

    threads: list[str] = []
    inference = service_of(few, worker_threads=1)
    inference.metrics.registry.register(Asked())
    with serving(inference) as url:
        threads.clear()
        assert web.get(f"{url}/metrics").status_code == 200
    assert [name.partition("_")[0] for name in threads] == ["read"]


def test_bodies_that_wait_to_be_read_count_among_those_held(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed they are small, and many would fit."""
    body = gzip.compress(LONG, 1)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    statuses: list[int] = []

    def ask(url: str) -> None:
        statuses.append(
            web.post(f"{url}/v1/infer", content=body, headers=headers, timeout=60).status_code
        )

    def held(*arguments: Any) -> Any:
        """Waits before it reads, as if the others' reading came first."""
        while not go.is_set():
            time.sleep(0.002)
            checkpoint()
        return read(*arguments)

    read, go = decoding.parse, threading.Event()
    monkeypatch.setattr(decoding, "parse", held)
    with serve(max_pending_body_bytes=9_000_000) as url:
        threads = [threading.Thread(target=ask, args=(url,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: 429 in statuses)
        go.set()
        for thread in threads:
            thread.join()
        ask(url)
    assert set(statuses[:-1]) == {400, 429}
    assert statuses[-1] == 400


def test_as_many_documents_of_several_fields_are_read_as_a_request_may_have() -> None:
    documents = [{"text": "a", "title": "b", "url": "c"}] * SETTINGS.max_sequences
    body = orjson.dumps({"query": "q", "documents": documents})
    assert len(parse(body, SETTINGS)["documents"]) == SETTINGS.max_sequences
