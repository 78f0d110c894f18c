"""The bench of rerank: lengths as stated, wrong scores seen, ratios over the better peer."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

from addnorm.load.servers import Server
from addnorm.load.sweep.tables import contenders_table
from benchmarks.data.texts import words_of
from benchmarks.rerank.contenders import (
    CPU,
    FP32,
    INFINITY,
    INT8,
    NAIVE,
    TOLERANCE,
    Contender,
    WrongScores,
    compare,
)
from benchmarks.rerank.experiment import ROWS, TITLES
from benchmarks.rerank.requests import (
    LOADS,
    LONGEST,
    MEAN_TOKENS,
    NUM_DOCUMENTS,
    Request,
)

REQUEST = Request("a query", ("first", "second", "third"))


class Answering(Server):
    """Gives document i the score `base + i / 10`, the best first; then the next of the bases."""

    def __init__(self, *bases: float) -> None:
        super().__init__("nowhere", 0)
        object.__setattr__(self, "bases", list(bases))

    def ask(self, body: bytes, path: str = "") -> bytes:
        bases: list[float] = self.__dict__["bases"]
        base = bases.pop(0) if len(bases) > 1 else bases[0]
        order = reversed(range(len(json.loads(body)["documents"])))
        results = [{"index": i, "relevance_score": base + i / 10} for i in order]
        return json.dumps({"results": results}).encode()


def test_documents_have_the_lengths_that_the_load_says(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "pad": 1, "##ding": 2, "norm": 3, "12": 4, "row": 5}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = words_of(tmp_path)
    assert words == ["norm", "pad", "row"]
    lengths = {
        name: np.array([[len(text.split()) for text in request.documents] for request in requests])
        for name, requests in ((name, make(words, 0)) for name, make in LOADS.items())
    }
    assert (lengths["equal"] == MEAN_TOKENS).all()
    mixed = lengths["log-normal"]
    assert mixed.shape[1] == NUM_DOCUMENTS
    assert abs(mixed.mean() / MEAN_TOKENS - 1) < 0.1
    assert mixed.max() <= LONGEST
    assert mixed.std() > MEAN_TOKENS / 2


def test_scores_come_in_the_order_of_the_documents() -> None:
    scores = Contender(FP32, Answering(0.5), {}).scores(REQUEST)
    assert scores.tolist() == [0.5, 0.6, 0.7]


@pytest.mark.parametrize(
    ("who", "drift"),
    [(FP32, 1e-9), (INT8, 1e-9), (NAIVE, 2 * TOLERANCE), (NAIVE, math.nan), (FP32, math.nan)],
)
def test_a_changed_score_ends_the_bench(who: str, drift: float) -> None:
    contender = Contender(who, Answering(0.5, 0.5 + drift), {})
    contender.scores(REQUEST)
    with pytest.raises(WrongScores, match="same pair"):
        contender.scores(REQUEST)


@pytest.mark.parametrize("other", [0.5 + 2 * TOLERANCE, math.nan])
def test_a_peer_that_disagrees_ends_the_bench(other: float) -> None:
    def contenders(infinity: float) -> list[Contender]:
        bases = {NAIVE: 0.5, INFINITY: infinity, FP32: 0.5, INT8: 0.4}
        return [Contender(name, Answering(base), {}) for name, base in bases.items()]

    assert compare(contenders(0.5), REQUEST)[INT8] == pytest.approx(0.1)
    with pytest.raises(WrongScores, match=INFINITY):
        compare(contenders(other), REQUEST)


def test_ratios_are_over_the_better_peer_of_the_same_round() -> None:
    rates = {NAIVE: [10, 10, 10], INFINITY: [20, 5, 20], FP32: [40, 20, 60], INT8: [80, 80, 80]}
    runs = {
        f"equal-1/{who}": [{"documents_per_s": rate, CPU: 1000 / rate} for rate in of_rounds]
        for who, of_rounds in rates.items()
    }
    text = contenders_table(runs, ROWS, TITLES)
    fp32, int8 = "**3.00 x**, 2.00 - 4.00", "**4.00 x**, 4.00 - 16.00"
    assert f"| Infinity: 20 | 40 ({fp32}) | 80 ({int8}) |" in text
    assert f"| Infinity: 50 | 25 ({fp32}) | 12.5 ({int8}) |" in text
