"""Heads that make one row a sequence, labels, pairs: as a pair classifier is served."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from addnorm.export.sources import sources
from addnorm.export.writer import Plan, export
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.exports import shared_exports
from tests.support.families import NUM_LABELS, answers, made, save, sequences
from tests.support.texts import tokenizer

NAME = "classifier"
LABELS = [f"LABEL_{index}" for index in range(NUM_LABELS)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that classifies sequences of three token types, with a tokenizer."""
    folder = save(made("BertForSequenceClassification"), tmp_path_factory.mktemp(NAME) / NAME)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def client(classifier: Path) -> Iterator[httpx.Client]:
    root = classifier.parent / "bundles"
    with shared_exports():
        export(sources.checkpoint(classifier), root, NAME, None, Plan())
    with serving(inference_of(root)) as url, web.client(base_url=url, timeout=60) as client:
        yield client


def test_a_classifier_answers_one_row_of_logits_a_sequence(client: httpx.Client) -> None:
    theirs = made("BertForSequenceClassification")
    sent = sequences(theirs)
    body = {"input_ids": [ids for ids, _ in sent], "token_type_ids": [types for _, types in sent]}
    got = client.post("/v1/infer", json=body).json()["logits"]
    expected = [answers(theirs, *one)[1].tolist() for one in sent]  # type: ignore[union-attr]
    np.testing.assert_allclose(got, expected, atol=1e-4)
    alone = [
        client.post("/v1/infer", json={name: [rows[index]] for name, rows in body.items()}).json()
        for index in range(len(sent))
    ]
    assert [answer["logits"][0] for answer in alone] == got, "bits alone as in company"
    best = client.post("/v1/infer", json=body | {"logits": {"top_k": 2}}).json()["logits"]
    assert [row[0] for row in best["token_ids"]] == np.argmax(expected, 1).tolist()


def test_a_pair_of_texts_is_answered_with_its_logits(
    client: httpx.Client, classifier: Path
) -> None:
    first, second = "the same", "a b"  # with special tokens 7, and texts may have 8
    encoding = Tokenizer.from_file(str(classifier / "tokenizer.json")).encode(first, second)
    length = sum(encoding.attention_mask)
    ids, types = encoding.ids[:length], encoding.type_ids[:length]
    assert 1 in types
    answer = client.post("/v1/infer", json={"texts": [[first, second]]}).json()
    assert answer.keys() == {"model", "version", "logits", "usage"}
    logits = answers(made("BertForSequenceClassification"), ids, types)[1]
    assert logits is not None
    torch.testing.assert_close(torch.tensor(answer["logits"][0]), logits, atol=1e-4, rtol=0)


def test_the_labels_and_the_width_are_told(client: httpx.Client) -> None:
    entry = client.get(f"/v1/models/{NAME}").json()
    assert entry["labels"] == LABELS
    assert entry["outputs"] == ["activations", "logits", "pooled", "norm_stats"]
    outputs = client.get(f"/v2/models/{NAME}").json()["outputs"]
    assert {"name": "logits", "datatype": "FP32", "shape": [-1, NUM_LABELS]} in outputs
