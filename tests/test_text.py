"""Texts: the library's own token ids, the bits of these ids, and words for what does not fit."""

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library
from transformers import BertModel

from service import bundle as bundles
from service.errors import StartupError
from service.routes.text import CHUNK_CHARACTERS
from service.text import Tokenizer
from tests.conftest import inference_of, serving
from tests.texts import MAX_POSITIONS, TEXT_MODEL, tokenizer

ROOT = Path(__file__).parent.parent
TEXTS = ["Pads are dropped.", "a", "Padding costs nothing, tokenize the same text", "", "unheard of"]
LONG = "a " * 40  # 42 tokens


def library(max_length: int | None = None) -> Library:
    made = tokenizer()
    made.no_padding()
    made.no_truncation()
    if max_length:
        made.enable_truncation(max_length)
    return made


def ids_of(texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
    return [encoding.ids for encoding in library(max_length).encode_batch(list(texts))]


def post(client: httpx.Client, path: str = "/v1/infer", **body: Any) -> httpx.Response:
    content = json.dumps({"model": TEXT_MODEL, **body})  # httpx refuses to send what is no text
    return client.post(path, content=content, headers={"content-type": "application/json"})


def test_texts_are_answered_like_their_ids_in_ragged_layout_to_the_last_bit(text_client: httpx.Client) -> None:
    options = {"outputs": ["activations", "pooled", "norm_stats"]}
    answer = post(text_client, texts=TEXTS, **options).json()
    ids = ids_of(TEXTS)
    assert answer == post(text_client, input_ids=ids, **options).json()
    assert [len(row) for row in answer["activations"]] == list(map(len, ids))
    assert answer["usage"] == {"real_tokens": sum(map(len, ids)), "padded_tokens": 0}


def test_tokenize_shows_ids_tokens_and_offsets_and_what_the_limit_is(text_client: httpx.Client) -> None:
    answer = post(text_client, "/v1/tokenize", texts=[*TEXTS, LONG]).json()
    expected = library().encode_batch([*TEXTS, LONG])
    assert answer["input_ids"] == [encoding.ids for encoding in expected]
    assert answer["tokens"] == [encoding.tokens for encoding in expected]
    assert answer["offsets"] == [[list(pair) for pair in encoding.offsets] for encoding in expected]
    assert answer["num_tokens"] == list(map(len, expected))
    assert (answer["model"], answer["version"], answer["limit"]) == (TEXT_MODEL, "1", MAX_POSITIONS)


def test_truncate_cuts_like_the_library_and_keeps_the_special_tokens(text_client: httpx.Client) -> None:
    texts = [LONG, "a", " the same text" * 1000]
    cut = post(text_client, "/v1/tokenize", texts=texts, truncate=True).json()["input_ids"]
    assert cut == ids_of(texts, MAX_POSITIONS)
    assert cut[0][0], cut[0][-1] == (2, 3)
    assert len(cut[0]) == MAX_POSITIONS
    answer = post(text_client, texts=texts, truncate=True, outputs=["pooled"])
    assert answer.json() == post(text_client, input_ids=cut, outputs=["pooled"]).json()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too long": ({"texts": ["a", LONG]}, f"texts[1] has 42 tokens, 26 more than {TEXT_MODEL}/1 takes (16): shorten it, or send"),
    "far too long": ({"texts": ["a" * 600]}, f"texts[0] has 600 characters, 88 more than {TEXT_MODEL}/1 takes (512)"),
    "none": ({"texts": []}, "texts is empty: send at least one text"),
    "too many": ({"texts": ["a"] * 1025}, "texts has 1025 texts, the limit is 1024"),
    "one text": ({"texts": "a"}, 'texts: Input should be a valid list, got "a"'),
    "a number": ({"texts": ["a", 1]}, "texts[1]: Input should be a valid string, got 1"),
    "bytes that are no text": ({"texts": ["\ud800"]}, "the body is not a JSON object"),
    "a mask": ({"texts": ["a"], "attention_mask": [[1]]}, "texts stand alone"),
    "too many tokens": ({"texts": ["a " * 14] * 1024, "truncate": False}, "texts has more than 500 tokens, the limit"),
}  # fmt: skip


@pytest.fixture(scope="module")
def strict_client(text_bundles: Path) -> Any:
    with serving(inference_of(text_bundles, max_tokens=500)) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize("case", BAD)
def test_bad_texts_are_refused_with_field_limit_and_value(strict_client: httpx.Client, case: str) -> None:
    body, words = BAD[case]
    answer = post(strict_client, **body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_the_models_say_whether_they_take_texts(text_client: httpx.Client) -> None:
    inputs = {entry["id"]: entry["inputs"] for entry in text_client.get("/v1/models").json()["data"]}
    assert inputs == {
        "notebook": ["input_ids", "attention_mask"],
        TEXT_MODEL: ["input_ids", "attention_mask", "texts"],
    }


def test_many_callers_at_once_each_get_their_own_cut_or_uncut_ids(text_client: httpx.Client) -> None:
    cases = [([f"{LONG * (i % 3)}a b c", "the same text"], i % 2 == 0) for i in range(24)]

    def tokenized(case: tuple[list[str], bool]) -> Any:
        return post(text_client, "/v1/tokenize", texts=case[0], truncate=case[1]).json()["input_ids"]

    with ThreadPoolExecutor(8) as callers:
        for (texts, truncate), got in zip(cases, callers.map(tokenized, cases), strict=True):
            assert got == ids_of(texts, MAX_POSITIONS if truncate else None)


class Watched:
    """A tokenizer that remembers who called it with how much."""

    def __init__(self, real: Tokenizer) -> None:
        self.real, self.max_characters = real, real.max_characters
        self.calls: list[tuple[str, int]] = []

    def encode(self, texts: Sequence[str], truncate: bool) -> Any:
        self.calls.append((threading.current_thread().name, len(texts)))
        return self.real.encode(texts, truncate)


def test_long_work_is_done_in_chunks_off_the_event_loop_and_no_further_than_the_limit(text_bundles: Path) -> None:
    inference = inference_of(text_bundles, max_tokens=2000)
    model = inference.models.find(TEXT_MODEL)
    assert model.tokenizer
    model.tokenizer = watched = Watched(model.tokenizer)  # type: ignore[assignment]
    with serving(inference) as url, httpx.Client(base_url=url) as client:
        assert post(client, texts=["a"], outputs=["pooled"]).status_code == 200
        assert not watched.calls.pop()[0].startswith("encode")  # quicker than a change of threads
        assert post(client, texts=["a " * 300] * 1000, truncate=True).status_code == 400
    each = CHUNK_CHARACTERS // 512  # characters are cut first
    assert [size for _, size in watched.calls] == [each]  # 128 texts of 16 tokens are too many: the rest is left
    assert all(name.startswith("encode") for name, _ in watched.calls)


def test_a_tokenizer_that_is_broken_or_of_another_model_stops_the_start(text_bundles: Path, tmp_path: Path) -> None:
    bundle = replace(bundles.read(text_bundles / TEXT_MODEL / "1"), path=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StartupError, match=r"tokenizer\.json is broken"):
        Tokenizer(bundle)
    other = tokenizer()
    other.add_tokens(["another"])
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(StartupError, match="has ids up to 22, the model's are below 22"):
        Tokenizer(bundle)


@pytest.mark.skipif(not (ROOT / "bundles" / TEXT_MODEL).exists(), reason="`make minilm` makes the real one")
def test_the_real_minilm_gives_the_vectors_of_transformers(tmp_path: Path) -> None:
    (tmp_path / TEXT_MODEL).symlink_to(ROOT / "bundles" / TEXT_MODEL)
    folder = next((ROOT / "build" / "minilm").glob("*/model"))
    texts = ["LayerNorm normalizes each token.", "Pads are dropped at the door, and never computed. " * 20]
    with serving(inference_of(tmp_path)) as url:
        body = {"model": TEXT_MODEL, "texts": texts, "outputs": ["pooled"], "normalize": True}
        got = np.array(httpx.post(f"{url}/v1/infer", json=body, timeout=60).json()["pooled"])
    theirs = Library.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    model = BertModel.from_pretrained(folder).eval()
    for vector, encoding in zip(got, theirs.encode_batch(texts), strict=True):
        with torch.no_grad():
            mean = model(input_ids=torch.tensor([encoding.ids])).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
