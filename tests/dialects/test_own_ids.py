"""Token ids on routes for texts: whether they can be the model's own is told by their ends."""

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tiktoken

from addnorm.service.engine.registry import Models
from tests.conftest import client_of, service_of
from tests.support import web
from tests.support.texts import TEXT_MODEL, ids_of

TEXTS = ["pads are dropped", "the same text"]
CLS, SEP = 2, 3
FOREIGN = {
    "neither end": [4, 5, 14],
    "no end": [CLS, 4, 5],
    "no beginning": [4, 5, SEP],
    "one token that is both": [CLS],
    "the wrong way round": [SEP, 4, CLS],
}
ROUTES = {"/v1/embeddings": "input", "/embed": "inputs", "/embed_all": "inputs"}
ROUTES |= {"/embed_sparse": "inputs"}


def posted(client: httpx.Client, path: str, ids: Any, model: str = "embedder") -> httpx.Response:
    body = {ROUTES[path]: ids}
    return client.post(path, json=body | ({"model": model} if path == "/v1/embeddings" else {}))


@pytest.mark.parametrize("ids", FOREIGN.values(), ids=list(FOREIGN))
@pytest.mark.parametrize("path", ROUTES)
def test_ids_without_the_special_tokens_of_a_text_are_rejected(
    task_client: httpx.Client, path: str, ids: list[int]
) -> None:
    answer = posted(task_client, path, [[CLS, 4, SEP], ids])
    assert answer.status_code == 400, answer.text
    place = f"{ROUTES[path]}[1] begins with {ids[0]} and ends with {ids[-1]}: "
    assert place in answer.text
    assert "begin with 2 and end with 3, its special tokens. Ids of another" in answer.text
    assert ("check_embedding_ctx_length=False" in answer.text) is (path == "/v1/embeddings")


@pytest.mark.parametrize("path", ROUTES)
def test_ids_with_them_are_computed(task_client: httpx.Client, path: str) -> None:
    pair = [CLS, 4, SEP, 5, SEP]
    for ids in ([CLS, 4, SEP], [[CLS, SEP], pair]):
        answer = posted(task_client, path, ids)
        assert answer.status_code == 200, answer.text


def test_ids_are_rejected_where_the_tokenizer_marks_no_ends(task_client: httpx.Client) -> None:
    answer = posted(task_client, "/v1/embeddings", [[4, 5]], model="gpt")
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("input has token ids, which cannot be recognized as ids of gpt/1")
    assert "ADDNORM_TRUST_TOKEN_IDS" in message
    assert "check_embedding_ctx_length=False" in message


@pytest.fixture(scope="module")
def trusting(tasks: Models) -> Iterator[httpx.Client]:
    with client_of(service_of(tasks, trust_token_ids=True)) as client:
        yield client


@pytest.mark.parametrize("model", ["embedder", "gpt"])
def test_a_server_that_trusts_its_callers_takes_all_ids(trusting: httpx.Client, model: str) -> None:
    answer = posted(trusting, "/v1/embeddings", [[4, 5]], model=model).json()
    body = {"model": model, "input_ids": [[4, 5]], "outputs": ["pooled"]}
    assert [entry["embedding"] for entry in answer["data"]] == trusting.post(
        "/v1/infer", json=body
    ).json()["pooled"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/infer", {"model": "embedder", "input_ids": [[4, 5]]}),
        ("/v2/models/embedder/infer",
         {"inputs": [{"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [4, 5]}]}),
        ("/v1/completions",
         {"model": "gpt", "prompt": [4, 5], "max_tokens": 1, "temperature": 0}),
    ],
)  # fmt: skip
def test_routes_whose_callers_know_the_vocabulary_take_all_ids(
    task_client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    assert task_client.post(path, json=body).status_code == 200


def test_langchain_with_its_defaults_is_told_what_to_set_and_has_then_the_vectors(
    text_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its defaults are OpenAI's vocabulary, here one of bytes whose ids the model has too."""
    from langchain_openai import OpenAIEmbeddings  # takes each process that collects a second

    first = b"pads reohmtx"
    ranks = {
        bytes([byte]): rank for rank, byte in enumerate(dict.fromkeys(first + bytes(range(256))))
    }
    encoding = tiktoken.Encoding(
        "cl100k_base", pat_str=r".", mergeable_ranks=ranks, special_tokens={}
    )
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "cl100k_base", encoding)
    assert max(map(max, map(encoding.encode, TEXTS))) <= max(
        map(max, ids_of(TEXTS))
    )  # all in range
    about: Any = {"base_url": f"{text_url}/v1", "api_key": "none"}
    with web.client() as client:  # its own would stay open
        defaults = OpenAIEmbeddings(model=TEXT_MODEL, http_client=client, **about)
        for ask in (defaults.embed_query, lambda text: defaults.embed_documents([text])):
            for text in TEXTS:
                with pytest.raises(
                    openai.BadRequestError, match="check_embedding_ctx_length=False"
                ):
                    ask(text)
        told = OpenAIEmbeddings(
            model=TEXT_MODEL, http_client=client, check_embedding_ctx_length=False, **about
        )
        answer = client.post(f"{text_url}/v1/embeddings", json={"input": TEXTS}).json()
        expected = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
        np.testing.assert_array_equal(np.float32(told.embed_documents(TEXTS)), expected)


# whose callers know the model's vocabulary
TAKE_IDS = {
    ("/v1/infer", "input_ids"), ("/v1/completions", "prompt"), ("/decode", "ids"),
    ("/detokenize", "tokens"), ("/v1/tokenize", "input_ids"),
}  # fmt: skip


def test_no_field_of_any_dialect_takes_ids_of_another_vocabulary(task_client: httpx.Client) -> None:
    """Fields of every documented body, so that a new dialect is here by itself."""
    document = task_client.get("/openapi.json").json()
    paths = set()
    for path, methods in document["paths"].items():
        if "requestBody" not in methods.get("post", {}) or "/repository/" in path:
            continue
        content = methods["post"]["requestBody"]["content"]["application/json"]
        for example in content.get("examples", {}).values():
            place = path.replace("{model}", "embedder").replace("{version}", "1")
            for field, ids in itertools.product(example["value"], ([4, 5], [[4, 5]])):
                body = example["value"] | {"model": "embedder", field: ids}
                answer = task_client.post(place, json=body)
                if answer.status_code == 200:
                    paths.add((path, field))
    assert paths <= TAKE_IDS
