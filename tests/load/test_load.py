"""The load tools: streams as stated, stalls seen, wrong answers counted, and one speed ratio."""

import gzip
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from addnorm.export import sources
from addnorm.export.writer import Plan, export
from addnorm.load import plots, servers
from addnorm.load.bench.check import NAIVE_TOLERANCE, Reference, alone
from addnorm.load.bench.run import Load, Result, measure
from addnorm.load.bench.stream import PROFILES, SWEEP_LONGEST, make
from addnorm.load.servers import Server
from addnorm.load.stress import livez
from addnorm.load.stress.caller import Request, Seen
from addnorm.load.stress.requests.mixed import Sent, mixed
from addnorm.load.stress.requests.worst import CASES, Case
from addnorm.load.stress.scenarios import fairness
from addnorm.load.stress.scenarios.deadlines import Deadlines, deadlines, joined, late
from addnorm.load.stress.scenarios.stall import stalls
from addnorm.service.runtime import bundle as bundle_format
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Limits, Manifest
from addnorm.service.settings import Settings
from tests.support.exports import shared_exports
from tests.support.fake_server import Answer, fake_server

LIMITS = Limits(max_positions=512, vocab_size=1000)
MIN_RATIO = 1.5  # of CPU time for a useful token on `big`; `make bench` measures tokens/s


def compute(output: str, sequence: Ints) -> Floats:
    """A token's activation is its id and a third of it; pooled is their mean."""
    rows = np.stack([sequence, sequence / 3], axis=1).astype(np.float32)
    return rows if output == "activations" else rows.mean(0)


def right(body: bytes) -> tuple[int, bytes]:
    asked = orjson.loads(body)
    (output,) = asked["outputs"]
    rows = []
    for ids, mask in zip(asked["input_ids"], asked["attention_mask"], strict=True):
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


@pytest.mark.parametrize("profile", PROFILES)
def test_streams_are_deterministic(profile: str) -> None:
    """The same seed gives the same bodies in the same order, another seed gives others."""
    first, again, other = (make(PROFILES[profile], LIMITS, seed) for seed in (3, 3, 4))
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
        ("small", lambda _: (200, b'{"pooled": [[1.0, 2.0]'), "not the answer asked for"),
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


def test_a_late_answer_counts_for_every_ask_that_it_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stall of 0.5 s delays a hundred requests that were due every 5 ms, the first one most."""
    clock, takes_s = [0.0], iter([0.5])

    def passes(seconds: float) -> None:
        clock[0] += seconds

    def answer(_: bytes) -> tuple[int, bytes]:
        passes(next(takes_s, 0.001))
        return 200, b"{}"

    monkeypatch.setattr(livez, "time", SimpleNamespace(perf_counter=lambda: clock[0], sleep=passes))
    with fake_server(answer) as server:
        seen = livez.delays(server.host, server.port, lambda: clock[0] > 1.0)
    assert 195 <= len(seen) <= 205
    assert [*seen[:2], seen[99]] == pytest.approx([0.5, 0.495, 0.005], abs=1e-6)
    assert max(seen[101:]) == pytest.approx(0.001, abs=1e-6)


def test_a_server_that_says_it_is_dead_is_no_delay() -> None:
    with fake_server(lambda _: (503, b"{}")) as server, pytest.raises(ConnectionError, match="503"):
        livez.delays(server.host, server.port, lambda: False)


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


def test_answers_later_than_their_deadline_are_found_in_the_log() -> None:
    """By the first byte if the log has it, else by the last. Counts 200s beyond the margin."""
    sent = [Sent(number, "small", 100, Request("")) for number in range(5)]
    seen = [
        Seen(200, 0.09, 1),
        Seen(200, 0.3, 1),
        Seen(200, 0.3, 1),
        Seen(504, 0.3, 1),
        Seen(200, 0.09, 1),
    ]
    lines: list[dict[str, Any]] = [
        {"ms": 500.0, "first_byte_ms": 149.0, "timeout_ms": 100},
        {"ms": 500.0, "first_byte_ms": 151.0, "timeout_ms": 100},
        {"ms": 151.0},
        {"ms": 500.0, "first_byte_ms": 500.0, "timeout_ms": 100},
    ]
    answers = joined(
        list(zip(sent, seen, strict=True)), {f"deadline-{n}": line for n, line in enumerate(lines)}
    )
    assert late(answers) == answers[1:3]
    assert late(answers, "client_late_ms") == answers[1:3]
    assert Deadlines({}, "first_byte_ms", 1.0, answers).wrong() == {
        "answers with 200 later than 50 ms past their deadline": 2,
        "requests that the log lacks": 1,
    }


def test_mixed_requests_are_the_same_for_the_same_seed(minilm: Manifest) -> None:
    first, again, other = (
        [mixed(minilm, number, seed) for number in range(30)] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert all(50 <= sent.timeout_ms <= 2000 for sent in first)


def test_every_request_under_a_deadline_is_answered_and_logged(bundles: Path) -> None:
    found = deadlines(
        bundle_format.read(bundles / "gpt" / "1"), 60, callers=8, seed=23
    )  # 15 kinds, none that takes minutes
    assert len(found.answers) == 60
    assert {answer.status for answer in found.answers} <= {200, 429, 504}
    assert set(found.wrong()) <= {
        "answers with 200 later than 50 ms past their deadline"
    }  # says nothing of this machine
    assert all(answer.server_late_ms is not None for answer in found.answers)
    assert "| all | " in found.table()


@pytest.fixture(scope="module")
def layouts(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """The preset of the standard load, in both layouts."""
    out = tmp_path_factory.mktemp("bundles")
    with shared_exports():
        padded = export(sources.preset("postnorm"), out, "padded", None, Plan("padded"))
    return {"packed": bundle_format.read(bundles / "postnorm" / "1"), "padded": padded}


def test_addnorm_outruns_naive_on_padded_batches(layouts: dict[str, Bundle]) -> None:
    """On 70 % padding, real processes over HTTP, every answer checked, measured in turn."""
    stream = make(PROFILES["big"], layouts["packed"].manifest.limits)
    bits = Reference(alone(layouts["packed"], "fp32"))
    bits.learn(stream.requests)
    load, ratios = Load(8, 0.6, warm_up_s=0.2), []
    with servers.addnorm(layouts["packed"]) as addnorm, servers.naive(layouts["padded"]) as naive:
        for _ in range(3):
            ours = measure(addnorm, stream, bits, load, progress=False)
            theirs = measure(naive, stream, bits.near(NAIVE_TOLERANCE), load, progress=False)
            assert ours.errors == theirs.errors == {}
            assert ours.server_cpu_s_per_1000_tokens
            assert theirs.server_cpu_s_per_1000_tokens
            ratios.append(theirs.server_cpu_s_per_1000_tokens / ours.server_cpu_s_per_1000_tokens)
    assert median(ratios) >= MIN_RATIO, ratios


def test_fairness_in_the_simulation_is_a_table_and_a_plot(tmp_path: Path) -> None:
    seen = {case.name: fairness.simulated(case, 3) for case in fairness.CASES}
    assert all(f"| {case.name} |" in fairness.cases_table(seen) for case in fairness.CASES)
    beside, another = seen["3 tokens, other model, 1 s"], seen["8 x 512, another key"].figures()
    assert beside.figures()["refused"] == 0
    assert max(beside.waits_s) < 3 * 512 / fairness.SIMULATED_TOKENS_PER_S
    assert another["p50_ms"] < another["the_twelve_p50_ms"] / 2
    plots.waits(
        tmp_path / "waits.png", {"simulated": {name: some.waits_s for name, some in seen.items()}}
    )
    assert (tmp_path / "waits.png").stat().st_size > 10_000
