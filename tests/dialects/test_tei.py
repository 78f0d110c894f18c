"""text-embeddings-inference's routes, those it shares with Cohere and vLLM, and its errors."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from addnorm.service.engine.registry import Models
from addnorm.service.settings import Settings
from tests.conftest import client_of, service_of
from tests.support.language_model import END
from tests.support.task_models import MAX_TEXT_TOKENS, NLI
from tests.support.texts import WORDS, library

TEXTS = ["pads are dropped", "a b c", "the same text"]
QUERY = "padding costs nothing."
HEADERS = (
    "x-compute-type", "x-compute-time", "x-compute-characters", "x-compute-tokens",
    "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time",
)  # fmt: skip
# a body that each route answers
GOOD: dict[str, dict[str, Any]] = {
    "/embed": {"inputs": TEXTS},
    "/embed_all": {"inputs": TEXTS},
    "/embed_sparse": {"inputs": TEXTS},
    "/similarity": {"inputs": {"source_sentence": QUERY, "sentences": TEXTS}},
    "/predict": {"inputs": [[text] for text in TEXTS]},
    "/rerank": {"query": QUERY, "texts": TEXTS},
}
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(task_client: httpx.Client) -> Ask:
    """POST; the answer must be a success."""

    def ask(path: str, **body: Any) -> Any:
        answer = task_client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def infer(ask: Ask, model: str, **body: Any) -> dict[str, Any]:
    return ask("/v1/infer", model=model, **body)  # type: ignore[no-any-return]


def test_vectors_are_the_native_routes_scaled_by_default(ask: Ask) -> None:
    for options in ({"normalize": True}, {"normalize": False}):
        native = infer(ask, "embedder", texts=TEXTS, outputs=["pooled"], **options)["pooled"]
        assert ask("/embed", inputs=TEXTS, **options) == native
    assert (
        ask("/embed", inputs=TEXTS)
        == infer(ask, "embedder", texts=TEXTS, outputs=["pooled"], normalize=True)["pooled"]
    )
    assert ask("/embed", inputs=TEXTS[0]) == ask("/embed", inputs=TEXTS)[:1]
    ids = [library().encode(text).ids for text in TEXTS]
    assert ask("/embed", inputs=ids) == ask("/embed", inputs=TEXTS)
    assert ask("/embed", inputs=ids[1]) == ask("/embed", inputs=TEXTS)[1:2]
    short = np.array(ask("/embed", inputs=TEXTS, dimensions=5))
    assert short.shape == (3, 5)
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    prompted = ask("/embed", inputs=TEXTS, prompt_name="query")
    assert prompted == ask("/embed", inputs=[f"the text {text}" for text in TEXTS])


def test_every_token_has_a_vector_and_no_pad_has(ask: Ask) -> None:
    rows = [
        infer(ask, "embedder", texts=[text], outputs=["activations"])["activations"][0]
        for text in TEXTS
    ]
    assert ask("/embed_all", inputs=TEXTS) == rows
    assert len({len(row) for row in rows}) > 1


def test_sparse_vectors_are_the_native_routes(ask: Ask) -> None:
    native = infer(ask, "masked-lm", texts=TEXTS, outputs=["sparse"])["sparse"]
    expected = [
        [
            {"index": index, "value": value}
            for index, value in zip(row["indices"], row["values"], strict=True)
        ]
        for row in native
    ]
    assert ask("/embed_sparse", inputs=TEXTS) == expected
    assert any(len(row) < len(WORDS) for row in expected)


def test_similarities_are_cosines_of_the_vectors(ask: Ask) -> None:
    source, *vectors = np.array(ask("/embed", inputs=[QUERY, *TEXTS]))
    got = ask("/similarity", inputs={"source_sentence": QUERY, "sentences": TEXTS})
    np.testing.assert_allclose(got, vectors @ source, atol=1e-6)
    prompted = ask("/similarity", parameters={"prompt_name": "query"}, **GOOD["/similarity"])
    assert prompted != got


def test_two_texts_in_a_list_are_one_pair_and_a_batch_is_a_list_of_lists(ask: Ask) -> None:
    pair, single = ["a b", "c"], ["a b"]
    batch = ask("/predict", inputs=[pair, single, single])
    assert batch[0] == ask("/predict", inputs=pair)
    assert batch[1] == batch[2] == ask("/predict", inputs="a b") == ask("/predict", inputs=single)
    native = ask("/v1/classify", texts=[pair, "a b"])["results"]
    assert batch[:2] == native
    assert {entry["label"] for entry in batch[0]} == set(NLI)
    raw = ask("/predict", inputs=pair, raw_scores=True)
    logits = infer(ask, "classifier", texts=[pair])["logits"][0]
    assert [entry["score"] for entry in raw] == sorted(logits, reverse=True)


def test_rerank_is_told_apart_by_its_field_and_has_equal_bits(ask: Ask) -> None:
    texts = TEXTS * 20
    ranks = ask("/rerank", query=QUERY, texts=texts)
    scores = {rank["index"]: rank["score"] for rank in ranks}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        results = ask(path, query=QUERY, documents=texts)["results"]
        assert {result["index"]: result["relevance_score"] for result in results} == scores
        assert [result["index"] for result in results] == [rank["index"] for rank in ranks]
    assert [rank["score"] for rank in ranks] == sorted(scores.values(), reverse=True)
    for index, text in enumerate(TEXTS):
        assert ask("/rerank", query=QUERY, texts=[text]) == [{"index": 0, "score": scores[index]}]
    raw = ask("/rerank", query=QUERY, texts=TEXTS, raw_scores=True, return_text=True)
    assert [rank["text"] for rank in raw] == [TEXTS[rank["index"]] for rank in raw]
    for rank in raw:
        expected = scores[rank["index"]]
        assert 1 / (1 + np.exp(-rank["score"])) == pytest.approx(expected, abs=1e-6)


def test_texts_are_cut_at_the_end_asked_for(ask: Ask) -> None:
    words = [*("a " * 30).split(), *("b " * 30).split()]
    text, room = " ".join(words), MAX_TEXT_TOKENS - 2
    for options, kept in (
        ({}, words[:room]),
        ({"truncate": True, "truncation_direction": "Right"}, words[:room]),
        ({"truncation_direction": "Left"}, words[-room:]),
        ({"truncate": True, "truncation_direction": "left"}, words[-room:]),
    ):
        for path in ("/embed", "/embed_all"):
            assert ask(path, inputs=text, **options) == ask(path, inputs=" ".join(kept)), options
    # of a pair its longer text is cut
    room -= 1 + len(QUERY.split()) + 1  # [SEP], and the full stop is a token
    left = ask("/rerank", query=QUERY, texts=[text], truncation_direction="Left")
    assert left == ask("/rerank", query=QUERY, texts=[" ".join(words[-room:])])
    assert left != ask("/rerank", query=QUERY, texts=[text])


def test_tokens_are_the_librarys_with_bytes_as_places(ask: Ask) -> None:
    texts = ["pads dropped", "é pads", ""]
    for special in (True, False):
        shown = ask("/tokenize", inputs=texts, add_special_tokens=special)
        expected = library().encode_batch(texts, add_special_tokens=special)
        assert [[token["id"] for token in tokens] for tokens in shown] == [
            encoding.ids for encoding in expected
        ]
        for text, tokens in zip(texts, shown, strict=True):
            for token in tokens:
                if token["special"]:
                    assert token["start"] is token["stop"] is None
                    assert token["text"] in ("[CLS]", "[SEP]")
                else:
                    part = text.encode()[token["start"] : token["stop"]].decode()
                    assert token["text"] == part != ""
    ids = [[token["id"] for token in tokens] for tokens in ask("/tokenize", inputs=texts)]
    assert ids[0] == [2, 4, 6, 7, 3]
    assert ask("/decode", ids=ids) == ["pads dropped", "pads", ""]
    assert ask("/decode", ids=ids[0], skip_special_tokens=False)[0].startswith("[CLS] pads")
    assert ask("/tokenize", inputs="pads") == ask("/tokenize", inputs=["pads"])
    (prompted,) = ask("/tokenize", inputs="pads", prompt_name="document")
    assert [token["text"] for token in prompted] == ["[CLS]", "a", "pads", "[SEP]"]


def test_a_prompt_is_tokenized_as_lm_eval_asks_for_it(ask: Ask, task_client: httpx.Client) -> None:
    info = task_client.get("/tokenizer_info").json()
    assert info == {
        "eos_token": END, "bos_token": None, "pad_token": None, "chat_template": None,
    }  # fmt: skip
    tokens = ask("/tokenize", prompt=END, add_special_tokens=False)["tokens"]
    assert tokens == [0]
    text = f"caf\u00e9{END} the same text"
    tokens = ask("/tokenize", prompt=text)["tokens"]
    assert ask("/detokenize", tokens=tokens) == {"prompt": text}
    assert ask("/tokenize", prompt=text, model="gpt") == {
        "tokens": tokens, "count": len(tokens), "max_model_len": MAX_TEXT_TOKENS,
    }  # fmt: skip


@pytest.mark.parametrize("path", GOOD)
def test_the_headers_tell_the_times_in_milliseconds(task_client: httpx.Client, path: str) -> None:
    answer = task_client.post(path, json=GOOD[path])
    assert all(answer.headers[name].isdigit() for name in HEADERS[1:])
    assert answer.headers["x-compute-type"] == "cpu"
    num_texts, characters = len(TEXTS), sum(map(len, TEXTS))
    more = {"/rerank": num_texts * len(QUERY), "/similarity": len(QUERY)}.get(path, 0)
    assert int(answer.headers["x-compute-characters"]) == characters + more
    assert int(answer.headers["x-compute-tokens"]) > num_texts


def test_a_prompt_is_none_of_the_callers_characters(task_client: httpx.Client) -> None:
    body = {**GOOD["/similarity"], "parameters": {"prompt_name": "query"}}
    plain, prompted = (
        task_client.post("/similarity", json=sent).headers for sent in (GOOD["/similarity"], body)
    )
    assert prompted["x-compute-characters"] == plain["x-compute-characters"]
    assert int(prompted["x-compute-tokens"]) > int(plain["x-compute-tokens"])


def test_info_describes_the_model_that_embeds(task_client: httpx.Client) -> None:
    info = task_client.get("/info").json()
    assert info["model_id"] == "embedder/1"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == MAX_TEXT_TOKENS
    assert info["max_client_batch_size"] == Settings().max_sequences


@pytest.mark.parametrize(
    ("path", "body", "envelope"),
    [
        ("/rerank", {"query": "a", "documents": []}, {"message"}),
        ("/rerank", {"query": "a", "texts": [1]}, {"error", "error_type"}),
        ("/tokenize", {"prompt": 1}, {"error"}),
        ("/rerank", {"query": "a"}, {"error", "error_type", "message"}),
        ("/tokenize", {}, {"error", "error_type", "message"}),
        ("/tokenizer_info", {}, {"error"}),
    ],
)
def test_a_shared_path_has_the_envelope_of_the_dialect_once_it_is_known(
    task_client: httpx.Client, path: str, body: dict[str, Any], envelope: set[str]
) -> None:
    answer = task_client.post(path, json=body)
    assert answer.status_code in (400, 405)
    assert answer.json().keys() == envelope


@pytest.mark.parametrize(
    ("path", "fields"), [("/rerank", "texts or documents"), ("/tokenize", "inputs or prompt")]
)
def test_a_body_in_no_dialect_is_told_the_fields_of_both(
    task_client: httpx.Client, path: str, fields: str
) -> None:
    error = task_client.post(path, json={"model": "x"}).json()
    assert error["error"] == error["message"]
    assert error["message"].startswith(f"{fields} is missing")


def test_what_is_rejected_unread_fits_the_clients_of_both_dialects(tasks: Models) -> None:
    key = "0123456789abcdef"
    service = service_of(tasks, api_keys=SecretStr(f"a infer {key}"), max_body_bytes=100)
    with client_of(service) as client:
        health = client.get("/health")
        assert (health.status_code, health.content) == (200, b"")
        for path in ("/rerank", "/tokenize"):
            for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 413)):
                refused = client.post(path, json={"texts": "a" * 100}, headers=headers)
                assert refused.status_code == status
                assert refused.json().keys() == {"error", "error_type", "message"}
        assert client.post("/embed").json().keys() == {"error", "error_type"}
        refused = client.get("/info")
        assert (refused.status_code, refused.json().keys()) == (401, {"error", "error_type"})
