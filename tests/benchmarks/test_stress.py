"""Some stress scenarios, in short; `python -m benchmarks stress` runs them long."""

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.service.runtime import bundle as bundle_format
from addnorm.service.runtime.manifest import Manifest
from addnorm.service.settings import Settings
from benchmarks.stress import livez
from benchmarks.stress.requests.greedy import Greed
from benchmarks.stress.requests.worst import CASES, Case
from benchmarks.stress.scenarios import other_keys, stall
from benchmarks.stress.scenarios.overload import overload
from benchmarks.stress.scenarios.stall import stalls
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
        delays = livez.delays(
            server.host, server.port, lambda: clock[0] > 1.0, clock=lambda: clock[0], sleep=passes
        )
    seen = [delay.seconds for delay in delays]
    assert 195 <= len(seen) <= 205
    assert [*seen[:2], seen[99]] == pytest.approx([0.5, 0.495, 0.005], abs=1e-6)
    assert max(seen[101:]) == pytest.approx(0.001, abs=1e-6)


def test_a_server_that_says_it_is_dead_is_no_delay() -> None:
    with pytest.raises(ConnectionError, match="503"):
        stall.waited([livez.Delay(0, 200, 0.1), livez.Delay(0, 503, 0.1)])


def test_what_one_key_costs_another_is_named() -> None:
    """A rejection, a wait of 51 ms more than a run takes, memory that was not counted; and none."""
    alone = other_keys.Waits(Counter({200: 9}), 1.0, 2.0)
    greed = Greed("many pairs", lambda _: [])
    late, refused = replace(alone, p99_ms=83.0), replace(alone, statuses=Counter({200: 8, 429: 1}))
    kinds = ["small", "large"]

    def missed(beside: list[other_keys.Waits], grown_mib: float) -> list[str]:
        memory, run_ms = (grown_mib, 100.0), 30.0
        row = other_keys.Row(greed, kinds, [alone, alone], beside, Counter(), *memory, run_ms)
        return list(row.missed())

    assert missed([alone, alone], 130.0) == []
    assert missed([late, refused], 131.0) == [
        "many pairs: small: p99 81 ms over alone, a run takes 30",
        "many pairs: large: {200: 8, 429: 1}",
        "many pairs: memory grew by 131 MiB, the server counted 100",
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.route}: {case.name}")
def test_the_worst_bodies_are_within_the_limit(case: Case, minilm: Manifest) -> None:
    """Decompressed. What is larger is refused unread, and shows nothing."""
    for request in case.make(minilm):
        body = request.body or b""
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if request.headers.get("transfer-encoding") == "chunked":
            body = b"".join(body.split(b"\r\n")[1:-2:2])
        assert len(body) <= Settings.model_construct().max_body_bytes


@pytest.fixture(scope="module")
def minilm(bundles: Path) -> Manifest:
    return bundle_format.read(bundles / "minilm" / "1").manifest


def test_stalls_are_measured_beside_the_requests_of_a_case(bundles: Path) -> None:
    """Alone and beside, each answer counted; a row says what it costs others."""
    wanted = [
        case
        for case in CASES
        if case.route == "/v1/infer" and ("plain" in case.name or "4,299" in case.name)
    ]
    found = stalls(bundle_format.read(bundles / "gpt" / "1"), None, wanted, seconds=0.3)
    assert [row.name for row in found.rows] == [case.name for case in wanted]
    assert all(sum(row.answers.values()) >= 2 and "0" not in row.answers for row in found.rows)
    assert found.rows[0].answers.keys() == {"200"}
    assert found.alone.num > 100
    assert all(
        0 < delays.p50 <= delays.p99 <= delays.longest
        for delays in (found.alone, *(r.beside for r in found.rows))
    )
    assert found.over(found.rows[1]) == found.rows[1].beside.p99 - found.alone.p99
