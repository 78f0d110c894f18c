"""Pairs of texts and prompts: what the library makes of them, and words for what does not fit."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from addnorm.service.engine import bundle as bundles
from benchmarks.stress.copies import republish
from tests.conftest import client_of, inference_of
from tests.support import web
from tests.support.texts import LONG, MAX_TEXT_TOKENS, TEXT_MODEL, library

PAIRS = [["the same text", "padding costs nothing."], ["a", ""], ["a b", "a b c"]]
MIXED = ["pads are dropped", *PAIRS, "", "a"]
PROMPTS = {"query": "the text, ", "passage": "a ", "none": ""}
OUTPUTS = ["activations", "pooled", "norm_stats"]


def post(client: httpx.Client, path: str = "/v1/infer", **body: Any) -> httpx.Response:
    return client.post(path, json={"model": TEXT_MODEL, **body})


def test_tokenize_shows_of_which_text_each_token_is(text_client: httpx.Client) -> None:
    answer = post(text_client, "/v1/tokenize", texts=MIXED).json()
    expected = library().encode_batch([tuple(t) if isinstance(t, list) else t for t in MIXED])
    for field, part in {"input_ids": "ids", "token_type_ids": "type_ids"}.items():
        assert answer[field] == [getattr(encoding, part) for encoding in expected]
    assert answer["sequence_ids"][2] == [None, 0, None, None]
    assert answer["sequence_ids"][3] == [None, 0, 0, None, 1, 1, 1, None]
    assert answer["offsets"][3] == [[0, 0], [0, 1], [2, 3], [0, 0], [0, 1], [2, 3], [4, 5], [0, 0]]


def test_pairs_give_the_bits_of_their_ids_and_types_beside_single_texts(
    text_client: httpx.Client,
) -> None:
    shown = post(text_client, "/v1/tokenize", texts=MIXED).json()
    ids = {name: shown[name] for name in ("input_ids", "token_type_ids")}
    answer = post(text_client, texts=MIXED, outputs=OUTPUTS).json()
    assert answer == post(text_client, **ids, outputs=OUTPUTS).json()
    for index, text in enumerate(MIXED):
        alone = post(text_client, texts=[text], outputs=["pooled"]).json()["pooled"][0]
        assert answer["pooled"][index] == alone
    without = post(text_client, input_ids=ids["input_ids"], outputs=["pooled"]).json()["pooled"]
    same = [one == other for one, other in zip(without, answer["pooled"], strict=True)]
    assert same == [True, False, False, False, True, True]


def test_pairs_give_the_authors_vectors_also_where_they_are_cut(
    text_client: httpx.Client, text_checkpoint: Path
) -> None:
    pairs = [*PAIRS, ["a b c", LONG], [LONG, "a b c"], [LONG, LONG], ["a " * 400, "b"]]
    tokenize = AutoTokenizer.from_pretrained(text_checkpoint)
    model = BertModel.from_pretrained(text_checkpoint).eval()
    got = post(text_client, texts=pairs, truncate=True).json()["pooled"]
    for vector, pair in zip(got, pairs, strict=True):
        batch = [
            [text] for text in pair
        ]  # outside of a list it takes an empty second text for none
        inputs = tokenize(*batch, truncation=True, max_length=MAX_TEXT_TOKENS, return_tensors="pt")
        assert inputs["token_type_ids"].any()
        with torch.no_grad():
            mean = model(**inputs).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(vector, mean, atol=1e-5)


@pytest.fixture(scope="module")
def prompted(text_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Clients of the model with prompts, by the name of the default prompt."""
    root = tmp_path_factory.mktemp("prompted")
    plain = bundles.read(text_bundles / TEXT_MODEL / "1")
    for default, name in ((None, TEXT_MODEL), ("query", "asking")):
        changed = {"name": name, "prompts": PROMPTS, "default_prompt_name": default}
        manifest = plain.manifest.model_copy(update=changed)
        republish(replace(plain, manifest=manifest), root, 1)
    with client_of(inference_of(root), timeout=30) as client:
        yield client


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_is_put_before_each_text(prompted: httpx.Client, name: str) -> None:
    texts = ["a b c", "", "the text"]
    whole = [PROMPTS[name] + text for text in texts]
    for path, field in (
        ("/v1/infer", "texts"), ("/v1/tokenize", "texts"), ("/v1/embeddings", "input"),
    ):  # fmt: skip
        got = post(prompted, path, **{field: texts, "prompt_name": name})
        assert got.status_code == 200
        assert web.answered(got) == web.answered(post(prompted, path, **{field: whole}))


def test_the_default_prompt_is_put_before_texts_but_not_before_pairs(
    prompted: httpx.Client,
) -> None:
    def ids(model: str, **body: Any) -> Any:
        return post(prompted, "/v1/tokenize", model=model, **body).json()["input_ids"]

    texts = ["a b c", ["a", "b"]]
    by_default = ids("asking", texts=texts)
    assert by_default == ids(TEXT_MODEL, texts=["the text, a b c", ["a", "b"]])
    assert ids("asking", texts=["a b c"], prompt_name="none") == ids(TEXT_MODEL, texts=["a b c"])
    entries = {entry["id"]: entry for entry in prompted.get("/v1/models").json()["data"]}
    assert {name: entry["default_prompt_name"] for name, entry in entries.items()} == {
        "asking": "query", TEXT_MODEL: None,
    }  # fmt: skip
    assert entries["asking"]["prompts"] == PROMPTS
