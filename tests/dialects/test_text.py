"""Texts: the library's own token ids, the bits of these ids, and words for what does not fit."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.registry import Models
from addnorm.service.engine.tokenizer import Tokenizer
from addnorm.service.errors import StartupError
from addnorm.service.wire.codec.decoding import parsed_bytes
from addnorm.service.wire.texts.texts import PIECE_CHARACTERS
from tests.conftest import client_of, service_of
from tests.support.metrics import samples
from tests.support.texts import (
    LONG,
    MAX_POSITIONS,
    MAX_TEXT_TOKENS,
    TEXT_MODEL,
    ids_of,
    library,
    tokenizer,
)
from tests.support.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]
TEXTS = [
    "Pads are dropped.",
    "a",
    "Padding costs nothing, tokenize the same text",
    "",
    "unheard of",
]
MANY_LENGTHS = [
    "",
    "a b c",
    "a " * 9,
    "a " * 10,
    "the same " * 6,
    LONG,
    "padding costs nothing, " * 400,
]


def post(client: httpx.Client, path: str = "/v1/infer", **body: Any) -> httpx.Response:
    content = json.dumps({"model": TEXT_MODEL, **body})  # httpx refuses to send what is no text
    return client.post(path, content=content, headers={"content-type": "application/json"})


def test_texts_are_answered_like_their_ids_in_ragged_layout_to_the_last_bit(
    text_client: httpx.Client,
) -> None:
    options = {"outputs": ["activations", "pooled", "norm_stats"]}
    answer = post(text_client, texts=TEXTS, **options).json()
    ids = ids_of(TEXTS)
    assert answer == post(text_client, input_ids=ids, **options).json()
    assert [len(row) for row in answer["activations"]] == list(map(len, ids))
    assert answer["usage"] == {
        "real_tokens": sum(map(len, ids)),
        "pad_tokens": 0,
        "truncated_texts": 0,
    }


def test_tokenize_names_the_tokens_of_ids(text_client: httpx.Client) -> None:
    ids = [[2, 4, 7], []]
    answer = post(text_client, "/v1/tokenize", input_ids=ids).json()
    assert answer["tokens"] == [["[CLS]", "pads", "##ped"], []]
    assert (answer["input_ids"], answer["num_tokens"]) == (ids, [3, 0])


def test_tokenize_shows_ids_tokens_and_offsets_and_what_the_limit_is(
    text_client: httpx.Client,
) -> None:
    answer = post(text_client, "/v1/tokenize", texts=[*TEXTS, LONG]).json()
    expected = library().encode_batch([*TEXTS, LONG])
    assert answer["input_ids"] == [encoding.ids for encoding in expected]
    assert answer["tokens"] == [encoding.tokens for encoding in expected]
    assert answer["offsets"] == [[list(pair) for pair in encoding.offsets] for encoding in expected]
    assert answer["token_type_ids"] == [encoding.type_ids for encoding in expected]
    assert answer["sequence_ids"] == [encoding.sequence_ids for encoding in expected]
    assert answer["num_tokens"] == list(map(len, expected))
    identity = (answer["model"], answer["version"], answer["limit"])
    assert identity == (TEXT_MODEL, "1", MAX_TEXT_TOKENS)


def test_truncate_cuts_like_the_library_and_keeps_the_special_tokens(
    text_client: httpx.Client,
) -> None:
    texts = [LONG, "a", " the same text" * 1000]
    cut = post(text_client, "/v1/tokenize", texts=texts, truncate=True).json()["input_ids"]
    assert cut == ids_of(texts, MAX_TEXT_TOKENS)
    assert (cut[0][0], cut[0][-1]) == (2, 3)
    assert len(cut[0]) == MAX_TEXT_TOKENS
    answer = post(text_client, texts=texts, truncate=True, outputs=["pooled"])
    of_ids = post(text_client, input_ids=cut, outputs=["pooled"])
    assert answer.json()["pooled"] == of_ids.json()["pooled"]


def authors(folder: Path, texts: Sequence[str], max_length: int = MAX_TEXT_TOKENS) -> Any:
    """Vectors as sentence-transformers makes them of this folder: transformers' model, mean, length
    1."""
    tokenize, model = (
        AutoTokenizer.from_pretrained(folder),
        BertModel.from_pretrained(folder).eval(),
    )
    ids = [tokenize(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
    with torch.no_grad():
        means = [
            model(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0).numpy() for row in ids
        ]
    return np.array([mean / np.linalg.norm(mean) for mean in means])


@pytest.mark.parametrize("route", ["/v1/infer", "/v1/embeddings"])
def test_texts_give_the_authors_vectors_also_where_they_are_cut(
    text_client: httpx.Client, text_checkpoint: Path, route: str
) -> None:
    if route == "/v1/infer":
        options = {"texts": MANY_LENGTHS, "truncate": True, "normalize": True}
        got = post(text_client, route, **options, outputs=["pooled"]).json()["pooled"]
    else:
        answer = post(text_client, route, input=MANY_LENGTHS, truncate=True)
        got = [entry["embedding"] for entry in answer.json()["data"]]
    np.testing.assert_allclose(got, authors(text_checkpoint, MANY_LENGTHS), atol=1e-5)


def test_token_ids_may_be_as_many_as_the_model_takes(text_client: httpx.Client) -> None:
    answer = post(text_client, input_ids=[[4] * MAX_POSITIONS], outputs=["pooled"])
    assert answer.json()["usage"]["real_tokens"] == MAX_POSITIONS
    limits = text_client.get(f"/v1/models/{TEXT_MODEL}").json()["limits"]
    assert (limits["max_positions"], limits["max_text_tokens"]) == (MAX_POSITIONS, MAX_TEXT_TOKENS)


def test_texts_give_pooled_vectors_unless_other_outputs_are_asked_for(
    text_client: httpx.Client,
) -> None:
    answer = post(text_client, texts=["a", ""]).json()
    assert list(answer) == ["model", "version", "pooled", "usage"]
    assert answer == post(text_client, input_ids=ids_of(["a", ""]), outputs=["pooled"]).json()
    assert "pooled" not in post(text_client, texts=["a"], outputs=["activations"]).json()
    assert "activations" in post(text_client, input_ids=ids_of(["a"])).json()


def test_the_models_say_whether_they_take_texts(text_client: httpx.Client) -> None:
    inputs = {
        entry["id"]: entry["inputs"] for entry in text_client.get("/v1/models").json()["data"]
    }
    assert inputs == {
        "notebook": ["input_ids", "attention_mask"],
        TEXT_MODEL: ["input_ids", "attention_mask", "token_type_ids", "texts"],
    }


class Watched:
    """A tokenizer that records its callers and their texts, and takes `pause_s` a call."""

    def __init__(self, real: Tokenizer, pause_s: float = 0.0) -> None:
        self.real, self.pause_s, self.go = real, pause_s, threading.Event()
        self.go.set()  # calls wait for it
        self.num_in_flight = lambda: 0  # requests of the server
        self.calls: list[tuple[str, list[str]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def tokens(self, texts: Sequence[str], *rest: Any, **options: Any) -> Any:
        return self._watched(self.real.tokens, texts, *rest, **options)

    def encode(self, texts: Sequence[str], *rest: Any, **options: Any) -> Any:
        return self._watched(self.real.encode, texts, *rest, **options)

    def _watched(
        self, method: Callable[..., Any], texts: Sequence[str], *rest: Any, **options: Any
    ) -> Any:
        self.calls.append((threading.current_thread().name, list(texts)))
        self.go.wait(PATIENCE_S)
        time.sleep(self.pause_s)
        return method(texts, *rest, **options)


@contextmanager
def watched(
    models: Models, pause_s: float = 0.0, **settings: Any
) -> Iterator[tuple[httpx.Client, Watched]]:
    """A server whose tokenizer is watched."""
    model, service = models.find(TEXT_MODEL), service_of(models, **settings)
    real = model.tokenizer
    assert real
    watch = model.tokenizer = Watched(real, pause_s)  # type: ignore[assignment]
    watch.num_in_flight = lambda: service.app.in_flight  # type: ignore[union-attr]
    try:
        with client_of(service) as client:
            yield client, watch  # type: ignore[misc]
    finally:
        model.tokenizer = real


MANY_PIECES = ["the same text " * 35] * 480  # 30 pieces of 16 texts


def test_long_work_is_done_in_pieces_off_the_event_loop_and_no_further_than_the_limit(
    text_models: Models,
) -> None:
    with watched(text_models, max_tokens=2000) as (client, watch):
        assert post(client, texts=["a"], outputs=["pooled"]).status_code == 200
        assert not watch.calls.pop()[0].startswith("tokenize")  # quicker than a change of threads
        assert post(client, texts=["a " * 250] * 1000, truncate=True).status_code == 400
    each = PIECE_CHARACTERS // 500
    assert {len(texts) for _, texts in watch.calls} == {each}
    assert len(watch.calls) == -(
        -2001 // (each * MAX_TEXT_TOKENS)
    )  # then there are too many: the rest is left
    assert all(name.startswith("tokenize") for name, _ in watch.calls)


def test_the_first_text_that_is_too_long_ends_the_work(text_models: Models) -> None:
    with watched(text_models) as (client, watch):
        assert post(client, texts=["a " * 100] * 1000).status_code == 400
    assert len(watch.calls) == 1


@pytest.mark.parametrize("how", ["deadline", "leaves"])
@pytest.mark.parametrize(
    ("route", "field"),
    [("/v1/infer", "texts"), ("/v1/embeddings", "input"), ("/v1/tokenize", "texts")],
)
def test_tokenizing_stops_at_the_deadline_and_when_the_caller_leaves(
    text_models: Models, route: str, field: str, how: str
) -> None:
    """Its caller is answered meanwhile, and what is left of the work is not done."""
    body = {"model": TEXT_MODEL, "truncate": True, field: MANY_PIECES}
    with watched(text_models) as (client, watch):
        watch.go.clear()
        if how == "deadline":
            answer = client.post(route, json=body, headers={"x-request-timeout-ms": "450"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                504,
                "deadline_exceeded",
            )
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(route, json=body, timeout=httpx.Timeout(PATIENCE_S, read=0.5))
            assert eventually(lambda: 'status="499"' in client.get("/metrics").text)
        watch.go.set()
        assert post(client, texts=["a b c " * 100], truncate=True).status_code == 200  # behind it
    assert len(watch.calls) <= 2  # of 30: the piece that was under way, and this text


def test_texts_count_as_bodies_while_they_are_tokenized(text_models: Models) -> None:
    body = {"model": TEXT_MODEL, "texts": MANY_PIECES, "truncate": True}
    sent = json.dumps(body).encode()
    num_bytes = sum(map(sys.getsizeof, MANY_PIECES)) + len(sent) + parsed_bytes(sent)
    with watched(text_models, max_pending_body_bytes=2 * num_bytes - 1) as (client, watch):
        with ThreadPoolExecutor(1) as other:
            watch.go.clear()
            first = other.submit(post, client, **body)
            assert eventually(lambda: bool(watch.calls))
            reserved = samples(client.get("/metrics").text)
            second = post(client, **body)
            watch.go.set()
            assert first.result().status_code == 200
        assert reserved["addnorm_pending_bytes", (("what", "bodies"),)] == num_bytes
        assert (second.status_code, second.json()["error"]["code"]) == (429, "bodies_full")
        assert post(client, **body).status_code == 200


def test_others_have_their_turn_between_the_pieces_of_one_caller(text_models: Models) -> None:
    """One thread for all: four callers of 8 pieces each delay a small one by one piece each."""
    with (
        watched(text_models, pause_s=0.02, worker_threads=1) as (client, watch),
        ThreadPoolExecutor(5) as others,
    ):
        watch.go.clear()
        slow = [
            others.submit(post, client, texts=MANY_PIECES[:128], truncate=True) for _ in range(4)
        ]
        assert eventually(lambda: watch.num_in_flight() == 4)
        before = len(watch.calls)
        small = others.submit(post, client, texts=["a b c " * 100], truncate=True)
        assert eventually(lambda: watch.num_in_flight() == 5)
        assert client.get("/livez").status_code == 200  # after a round of the event loop
        watch.go.set()
        assert small.result().status_code == 200
        behind = [texts[0][:5] for _, texts in watch.calls[before:]].index("a b c")
        assert behind <= 3  # the first pieces of those that came before: they have 32 in all
        assert [answer.result().status_code for answer in slow] == [200] * 4


def test_a_tokenizer_that_is_broken_or_of_another_model_stops_the_start(
    text_bundles: Path, tmp_path: Path
) -> None:
    bundle = replace(bundles.read(text_bundles / TEXT_MODEL / "1"), path=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StartupError, match=r"tokenizer\.json is broken"):
        Tokenizer(bundle)
    other = tokenizer()
    other.add_tokens(["another"])
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(StartupError, match="has ids up to 23, the model's are below 23"):
        Tokenizer(bundle)
