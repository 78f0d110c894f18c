"""Some stress scenarios, in short; `python -m benchmarks stress` runs them long."""

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.service.runtime import bundle as bundle_format
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.settings import Settings
from benchmarks.stress import asker
from benchmarks.stress.copies import publish
from benchmarks.stress.requests.greedy import GREEDS, Greed
from benchmarks.stress.scenarios import other_keys
from benchmarks.stress.scenarios.overload import overload
from tests.support.fake_server import fake_server


def test_an_overloaded_server_answers_right_or_rejects_and_says_when(bundles: Path) -> None:
    minilm = bundle_format.read(bundles / "minilm" / "1")
    figures, missed = overload(minilm, seconds=1, times=8, deadline_ms=3000)
    assert figures["refusals without Retry-After"] == 0
    assert not [words for words in missed if words.startswith("answers")]
    # `python -m benchmarks overload` asks for goodput, on a quiet machine
    assert figures["CPU time for a useful token over that at capacity"] < 4
    assert sum(value for name, value in figures.items() if name.startswith("refused")) > 0


def test_a_late_answer_counts_for_every_ask_that_it_held_up() -> None:
    """A stall of 0.5 s delays a hundred requests that were due every 5 ms, the first one most."""
    clock, takes_s = [0.0], iter([0.5])

    def passes(seconds: float) -> None:
        clock[0] += seconds

    def answer(_: bytes) -> tuple[int, bytes]:
        passes(next(takes_s, 0.001))
        return 200, b"{}"

    with fake_server(answer) as server:
        delays = asker.delays(
            server.host,
            server.port,
            lambda: clock[0] > 1.0,
            0.005,
            [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"],
            clock=lambda: clock[0],
            sleep=passes,
        )
    seen = [delay.seconds for delay in delays]
    assert 195 <= len(seen) <= 205
    assert [*seen[:2], seen[99]] == pytest.approx([0.5, 0.495, 0.005], abs=1e-6)
    assert max(seen[101:]) == pytest.approx(0.001, abs=1e-6)


def test_what_one_key_costs_another_is_named() -> None:
    """A rejection, a wait of 51 ms more than a run takes, memory that was not counted; and none."""
    alone = other_keys.Waits(Counter({200: 9}), 1.0, 2.0)
    greed = Greed("many pairs", lambda _: [])
    late, refused = replace(alone, p99_ms=83.0), replace(alone, statuses=Counter({200: 8, 429: 1}))
    held_up = replace(alone, p99_ms=53.0)
    kinds = ["small", "large", other_keys.LIVEZ]

    def missed(beside: list[other_keys.Waits], grown_mib: float) -> list[str]:
        memory, run_ms = (grown_mib, 100.0), 30.0
        row = other_keys.Row(greed, kinds, [alone] * 3, beside, Counter(), *memory, run_ms)
        return list(row.missed())

    assert missed([alone] * 3, 130.0) == []
    assert missed([late, refused, held_up], 131.0) == [
        "many pairs: small: p99 81 ms over alone, a run takes 30",
        "many pairs: large: {200: 8, 429: 1}",
        "many pairs: GET /livez: p99 51 ms over alone, a run takes 0",
        "many pairs: memory grew by 131 MiB, the server counted 100",
    ]


@pytest.mark.parametrize("greed", GREEDS, ids=lambda greed: greed.name)
def test_what_one_key_sends_is_within_the_limit(greed: Greed, gpt: Bundle) -> None:
    """Decompressed. What is larger is rejected unread, and shows nothing."""
    for request in greed.make(gpt.manifest):
        body = request.body or b""
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if request.headers.get("transfer-encoding") == "chunked":
            body = b"".join(body.split(b"\r\n")[1:-2:2])
        assert len(body) <= Settings.model_construct().max_body_bytes


@pytest.fixture(scope="module")
def gpt(bundles: Path) -> Bundle:
    return bundle_format.read(bundles / "gpt" / "1")


def test_waits_are_measured_alone_and_beside_what_one_key_sends(
    gpt: Bundle, tmp_path: Path
) -> None:
    publish(gpt, tmp_path)
    (greed,) = (greed for greed in GREEDS if greed.name == "8 MiB of spaces, gzip")
    with other_keys.serving(tmp_path, greed, None) as server:
        row = other_keys.beside(server, greed, gpt.manifest, seconds=0.3, alone_s=0.3)
    assert row.answers.keys() == {200}
    assert len(row.kinds) == len(row.alone) == len(row.beside) == 4
    for waits in (*row.alone, *row.beside):
        assert waits.statuses[200] > 1
        assert waits.num_refused == 0
        assert 0 < waits.p50_ms <= waits.p99_ms
