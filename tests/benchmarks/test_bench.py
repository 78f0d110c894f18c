"""The bench: embeddings compared by bit, ratios the right way round."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from addnorm.load.client import Answers
from addnorm.load.run import Figures, Reference
from addnorm.load.stream import Stream
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.manifest import Limits
from benchmarks.bench import contenders
from benchmarks.bench.contenders import ONE_THREAD
from benchmarks.bench.rows import TITLES
from benchmarks.contender import FP32, INT8, NAIVE
from benchmarks.tables import BEFORE, Row


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
