"""Tags and entities equal those of transformers' pipeline, strings and offsets included."""

from dataclasses import asdict
from typing import Any, get_args

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from addnorm.service.asking.tasks.classification import probabilities
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.asking.tasks.tagging import Aggregation, TokenPlaces, tag_tokens
from tests.support.pipelines import (
    FAMILIES,
    LINES,
    TEXT,
    answer,
    logits,
    model,
    pipeline,
    tokenizer,
)

LABELS = ("O", "B-PER", "I-PER", "I-LOC", "MISC", "X-DATE-DAY")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def theirs(family: str) -> Any:
    config = {"id2label": dict(enumerate(LABELS))}
    return pipeline(
        "token-classification", model(family, "ForTokenClassification", **config), family
    )


@pytest.mark.parametrize("ignored", [("O",), (), ("PER", "B-PER", "DATE-DAY")])
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_entities_equal_the_pipelines(
    theirs: Any, family: str, aggregation: Aggregation, ignored: tuple[str, ...]
) -> None:
    tokenizer_ = tokenizer(family).backend_tokenizer
    for text in (LINES[0], TEXT, " ", "."):
        scores = probabilities(logits(theirs.model, family, text), "softmax")
        ours = tag_tokens(
            text,
            TokenPlaces.of_encoding(tokenizer_.encode(text)),
            scores,
            LABELS,
            Pieces.from_tokenizer(tokenizer_),
            aggregation,
            ignored,
        )
        expected = answer(
            theirs, text, aggregation_strategy=aggregation, ignore_labels=list(ignored)
        )
        assert [asdict(tag) for tag in ours] == [
            tag | {"score": pytest.approx(tag["score"], abs=1e-4)} for tag in expected
        ]


def test_the_texts_hold_what_tells_the_rules_apart(theirs: Any) -> None:
    """Else they could not fail: each aggregation finds others, and some join several tokens."""
    spans = {
        name: [
            (tag.get("entity_group"), tag["start"], tag["end"], round(float(tag["score"]), 4))
            for tag in answer(theirs, TEXT, aggregation_strategy=name)
        ]
        for name in get_args(Aggregation)
    }
    assert len({str(tags) for tags in spans.values()}) == len(spans)
    assert len(spans["simple"]) < len(spans["none"])


def test_a_token_that_begins_with_a_space_begins_a_word() -> None:
    """Tokenizers that do not trim offsets have such tokens."""
    bpe = Tokenizer(BPE({"a": 0, "b": 1, "Ġ": 2, "Ġa": 3}, [("Ġ", "a")]))
    bpe.pre_tokenizer, bpe.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    scores = np.float32([[1, 0], [1, 0], [0, 1]])
    places = TokenPlaces.of_encoding(bpe.encode("a ab"))
    tags = tag_tokens("a ab", places, scores, ["B-X", "B-Y"], Pieces.from_tokenizer(bpe), "first")
    assert [(tag.word, tag.start, tag.end) for tag in tags] == [("a", 0, 1), (" ab", 1, 4)]
