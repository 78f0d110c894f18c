"""The bench: embeddings compared by bit, ratios the right way round, one of them measured."""

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

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.wishes import Wishes
from addnorm.load.client import Answers
from addnorm.load.options import NAIVE_TOLERANCE
from addnorm.load.run import Figures, Load, Reference, compute_alone, measure
from addnorm.load.stream import PROFILES, Stream, make
from addnorm.service.engine import bundle as bundle_format
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Limits
from benchmarks import peers, processes
from benchmarks.bench import contenders
from benchmarks.bench.contenders import ONE_THREAD
from benchmarks.bench.rows import TITLES
from benchmarks.contender import FP32, INT8, NAIVE
from benchmarks.tables import BEFORE, Row
from tests.conftest import ExportPreset

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
    return contenders.streams(bundle, {"model": "m"})


def compute(output: str, sequence: Ints) -> Floats:
    assert output == "embedding"
    return np.array([len(sequence), sequence.mean()], np.float32)


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


@pytest.fixture(scope="module")
def layouts(
    export_preset: ExportPreset, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Bundle]:
    """The preset of the standard load, in both layouts."""
    out = tmp_path_factory.mktemp("bundles")
    padded = export(sources.preset("postnorm", Wishes(layout="padded")), out, "padded")
    return {"packed": bundle_format.read(export_preset("postnorm") / "1"), "padded": padded}


def test_addnorm_outruns_naive_on_padded_batches(layouts: dict[str, Bundle]) -> None:
    """On 70 % padding, real processes over HTTP, every answer checked, measured in turn."""
    stream = make(PROFILES["big"], layouts["packed"].manifest.limits)
    bits = Reference(compute_alone(layouts["packed"], "fp32"))
    bits.learn(stream.requests)
    load, ratios = Load(8, 0.6, warm_up_s=0.2), []
    with processes.addnorm(layouts["packed"]) as addnorm, peers.naive(layouts["padded"]) as naive:
        for _ in range(3):
            ours = measure(addnorm, stream, bits, load, progress=False)
            naive_figures = measure(
                naive, stream, bits.with_tolerance(NAIVE_TOLERANCE), load, progress=False
            )
            assert ours.errors == naive_figures.errors == {}
            assert ours.server_cpu_s_per_1000_tokens
            assert naive_figures.server_cpu_s_per_1000_tokens
            ratios.append(
                naive_figures.server_cpu_s_per_1000_tokens / ours.server_cpu_s_per_1000_tokens
            )
    assert median(ratios) >= MIN_RATIO, ratios
