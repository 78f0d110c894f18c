"""The bench: texts and ids of equal sequences, ratios the right way round, one of them measured."""

import json
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from addnorm.export.sources import sources
from addnorm.export.writer import Plan, export
from addnorm.load.client import Answers
from addnorm.load.measure.check import NAIVE_TOLERANCE, Reference, compute_alone
from addnorm.load.measure.run import Figures, Load, measure
from addnorm.load.measure.stream import PROFILES, Stream, make
from addnorm.service.runtime import bundle as bundle_format
from addnorm.service.runtime.batch import Floats, Ints
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Limits
from benchmarks import peers, processes
from benchmarks.bench import curves, rows, texts
from benchmarks.bench.contenders import INFINITY, ONE_THREAD
from benchmarks.bench.lines import LINES
from benchmarks.bench.rows import ROWS, TITLES
from benchmarks.contender import FP32, INT8, NAIVE
from benchmarks.rounds import FRACTIONS, SATURATED_MS, Clock, open_loops
from benchmarks.tables import BEFORE, Row
from tests.support.exports import shared_exports
from tests.support.fake_server import fake_server

MIN_RATIO = 1.5  # of CPU time for a useful token on `big`; `make bench` measures tokens/s


@pytest.fixture
def bundle(tmp_path: Path) -> Any:
    """What the streams ask of a bundle with a tokenizer."""
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "pad": 3, "norm": 4, "row": 5}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    limits = Limits(max_positions=64, vocab_size=6, type_vocab_size=1, max_text_tokens=40)
    return SimpleNamespace(path=tmp_path, manifest=SimpleNamespace(limits=limits))


@pytest.fixture
def streams(bundle: Any) -> dict[str, Stream]:
    return texts.streams(bundle, {"model": "m"})


def compute(output: str, sequence: Ints) -> Floats:
    assert output == "embedding"
    return np.array([len(sequence), sequence.mean()], np.float32)


def test_texts_and_ids_are_the_same_sequences(streams: dict[str, Stream], bundle: Any) -> None:
    tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    tokenizer.no_padding()
    lengths = set()
    for of_texts, of_ids in zip(streams["texts"].requests, streams["ids"].requests, strict=True):
        sent, ids = json.loads(of_texts.body), json.loads(of_ids.body)
        assert [encoding.ids for encoding in tokenizer.encode_batch(sent["input"])] == ids["input"]
        assert [s.tolist() for s in of_texts.sequences] == ids["input"]
        assert sent["model"] == ids["model"] == "m"
        lengths |= set(map(len, ids["input"]))
    assert max(lengths) <= 40
    assert len(lengths) > 10


def embeddings(request: Any, *, reverse: bool = False, change: float = 0.0) -> bytes:
    """The body of a response of OpenAI's protocol."""
    vectors = [
        compute("embedding", sequence) + np.float32(change) for sequence in request.sequences
    ]
    data = [{"index": i, "embedding": vector.tolist()} for i, vector in enumerate(vectors)]
    return json.dumps({"data": data[::-1] if reverse else data}).encode()


def test_embeddings_are_compared_by_index_and_bit(streams: dict[str, Stream]) -> None:
    reference = Reference(compute)
    stream = streams["texts"]
    reference.learn(stream.requests)
    index = next(i for i, r in enumerate(stream.requests) if len(r.sequences) > 1)
    answers, request = Answers(), stream.requests[index]
    for body in (
        embeddings(request, reverse=True),
        embeddings(request, change=1e-5),
        b'{"data": []}',
    ):
        answers.add(index, 200, body, 0.1)
    right, errors = reference.verdicts(stream, answers)
    assert right == [True, False, False]
    assert errors == {"wrong": 2}
    near, _ = reference.with_tolerance(1e-3).verdicts(stream, answers)
    assert near == [True, True, False]


def test_a_stream_is_sent_to_its_path(streams: dict[str, Stream]) -> None:
    stream, paths = streams["texts"], set[str]()
    by_body = {request.body: request for request in stream.requests}
    with fake_server(lambda body: (200, embeddings(by_body[body])), paths=paths) as server:
        load = Load(2, 60.0, warm_up_s=0.0, num_answers=20)
        result = measure(server, stream, Reference(compute), load, progress=False)
    assert (result.num_answers, result.errors) == (20, {})
    assert paths == {"/v1/embeddings"}


FIGURES: dict[str, list[Figures]] = {
    f"small-8/{who}": [{"tokens_per_s": rate, "p99_ms": 1e4 / rate, "server_rss_mib": 300.0}] * 2
    for who, rate in {
        NAIVE: 100.0,
        ONE_THREAD: 80.0,
        FP32: 150.0,
        INT8: 300.0,
        f"{BEFORE}{FP32}": 120.0,
        f"{BEFORE}{INT8}": 200.0,
    }.items()
}


@pytest.mark.parametrize("metric", ["tokens_per_s", "p99_ms"])
def test_ratios_are_over_the_baseline_and_more_is_better(metric: str) -> None:
    columns = [ONE_THREAD, FP32, INT8, f"{BEFORE}{FP32}", f"{BEFORE}{INT8}"]
    cells = Row("load", metric, "small-8").cells(FIGURES, columns, TITLES)
    assert cells
    ratios = [cell.partition("**")[2][:4] for cell in cells[3:-1]]
    assert ratios == ["0.80", "1.50", "3.00", "1.20", "2.00", "1.25", "1.50"]
    assert cells[-1] == "`small-8`"


def test_without_infinity_texts_have_values_and_no_ratios() -> None:
    ours = {f"texts/{who}": [{"tokens_per_s": 2000.0}] for who in (FP32, INT8)}
    row = Row("texts", "tokens_per_s", "texts", INFINITY)
    assert row.cells(ours, [ONE_THREAD, FP32, INT8], TITLES) == [
        *("texts", "useful tokens/s", "-", "-", "2,000", "2,000", "`texts`")
    ]
    assert row.cells({f"texts/{INFINITY}": ours["texts/fp32"]}, [FP32], TITLES) is None


def test_memory_is_the_most_that_a_process_held() -> None:
    fp32 = [{"server_rss_mib": mib} for mib in (300.0, 400.0, 350.0)]
    both = {"small-8/fp32": fp32, "big/int8": [{"server_rss_mib": 380.0}]}
    other = {"tiny/fp32": [{"server_rss_mib": 100.0}], "engine-16/fp32": [{"tokens_per_s": 1.0}]}
    assert rows.memory({**both, **other}) == {
        ("preset", "Addnorm"): 400.0,
        ("tiny", "Addnorm"): 100.0,
    }


def test_every_row_names_a_load_and_a_baseline_of_it() -> None:
    lines = {name: line for own in LINES.values() for name, line in own.items()}
    for row in ROWS:
        assert row.base in lines[row.line].who or row.line == "ids"  # which has no peer
        assert row.base in TITLES
    for line in lines.values():
        assert line.traffic in PROFILES or line.traffic in ("texts", "ids")


class Queue:
    """A contender that answers `capacity` requests/s, and later the more it is asked."""

    def __init__(self, capacity: float) -> None:
        self.capacity, self.rates = capacity, list[float]()

    def run(self, traffic: str, load: Load) -> Figures:
        assert traffic == "small"
        assert load.rate
        self.rates.append(load.rate)
        used = load.rate / self.capacity
        return {"p50_ms": 10 / (1.05 - used), "p99_ms": 30 / (1.05 - used)}


def test_the_open_loop_begins_with_a_lone_caller_and_ends_at_capacity(tmp_path: Path) -> None:
    preset: Any = {NAIVE: Queue(50.0), FP32: Queue(100.0), INT8: Queue(200.0)}
    figures: dict[str, list[Figures]] = {}
    for who, contender in preset.items():
        figures[f"small-1/{who}"] = [{"p50_ms": 9.0, "p99_ms": 20.0}]
        figures[f"small-32/{who}"] = [{"requests_per_s": contender.capacity}]
    figures[f"small-1/{NAIVE}"] = [{"p50_ms": 2 * SATURATED_MS, "p99_ms": 3 * SATURATED_MS}]
    points = open_loops(preset, figures, 1.0, Clock(1.0))
    for who in (FP32, INT8):
        assert points[who][0] == {"rate": 0.0, "p50_ms": 9.0, "p99_ms": 20.0}
        assert [point["rate"] for point in points[who][1:]] == preset[who].rates
        assert preset[who].rates == [share * preset[who].capacity for share in FRACTIONS]
        assert FRACTIONS[-1] == 1
    assert preset[NAIVE].rates == []
    curves.draw_latency(tmp_path / "latency.png", {TITLES[who]: of for who, of in points.items()})
    assert (tmp_path / "latency.png").stat().st_size > 10_000


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
    bits = Reference(compute_alone(layouts["packed"], "fp32"))
    bits.learn(stream.requests)
    load, ratios = Load(8, 0.6, warm_up_s=0.2), []
    with processes.addnorm(layouts["packed"]) as addnorm, peers.naive(layouts["padded"]) as naive:
        for _ in range(3):
            ours = measure(addnorm, stream, bits, load, progress=False)
            theirs = measure(
                naive, stream, bits.with_tolerance(NAIVE_TOLERANCE), load, progress=False
            )
            assert ours.errors == theirs.errors == {}
            assert ours.server_cpu_s_per_1000_tokens
            assert theirs.server_cpu_s_per_1000_tokens
            ratios.append(theirs.server_cpu_s_per_1000_tokens / ours.server_cpu_s_per_1000_tokens)
    assert median(ratios) >= MIN_RATIO, ratios
