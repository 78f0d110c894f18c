"""Cohere's own SDK of versions 1 and 2, as it comes from the registry, and others that speak its
rerank."""

import base64
from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import numpy as np
import pytest
from cohere.core.api_error import ApiError

from addnorm.service.asking.tasks.classification import probabilities
from tests.support.task_models import MAX_TEXT_TOKENS, PROMPTS

QUERY = "the same text"
DOCUMENTS = ["a b c", "padding costs nothing.", "the text, the text", "a b c", "pads " * 90]
TEXTS = ["Pads are dropped.", "a b c", ""]
LONG = "a " * 60 + "the text"


@pytest.fixture(scope="module")
def v1(task_url: str) -> Iterator[cohere.Client]:
    with cohere.Client("none", base_url=task_url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def v2(task_url: str) -> Iterator[cohere.ClientV2]:
    with cohere.ClientV2("none", base_url=task_url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def logits(task_client: httpx.Client) -> Any:
    """Logits of each document with the query, by the native route `[n, 1]`."""
    pairs = [[QUERY, document] for document in DOCUMENTS]
    body = {"model": "reranker", "texts": pairs, "outputs": ["logits"], "truncate": True}
    return np.array(task_client.post("/v1/infer", json=body).json()["logits"], np.float32)


def ranked(scores: Any) -> list[tuple[int, float]]:
    """Index and score, highest first, equal ones as sent."""
    order = np.argsort(-scores[:, 0], kind="stable")
    return [(int(index), float(scores[index, 0])) for index in order]


def found(answer: Any) -> list[tuple[int, float]]:
    assert answer.id
    return [(result.index, np.float32(result.relevance_score)) for result in answer.results]


def test_both_versions_rank_by_the_models_own_logits(
    v1: cohere.Client, v2: cohere.ClientV2, logits: Any
) -> None:
    expected = ranked(probabilities(logits))
    assert [score for _, score in expected if not 0 < score < 1] == []
    body: dict[str, Any] = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS}
    for answer in (v1.rerank(**body), v2.rerank(**body)):
        assert found(answer) == expected
        assert answer.meta
        assert answer.meta.tokens
        assert answer.meta.tokens.input_tokens
    assert found(v2.rerank(**body, top_n=2)) == expected[:2]
    assert found(v2.rerank(**body, top_n=99)) == expected
    with_texts = v1.rerank(
        model="reranker",
        query=QUERY,
        documents=[DOCUMENTS[0], {"text": DOCUMENTS[1]}],
        return_documents=True,
    )
    assert {result.document.text for result in with_texts.results if result.document} == {
        *DOCUMENTS[:2]
    }


def test_what_a_document_has_beside_its_text_is_sent_back(task_client: httpx.Client) -> None:
    documents = [{"text": text, "title": f"{index}"} for index, text in enumerate(DOCUMENTS)]
    body = {"query": QUERY, "documents": documents, "return_documents": True}
    results = task_client.post("/v1/rerank", json=body).json()["results"]
    assert [entry["document"] for entry in results] == [
        documents[entry["index"]] for entry in results
    ]
    body["documents"] = DOCUMENTS
    plain = task_client.post("/v1/rerank", json=body).json()["results"]
    scores, of_texts = (
        [each["relevance_score"] for each in result_list] for result_list in (results, plain)
    )
    assert scores == of_texts


def test_a_limit_of_documents_counts_only_where_one_is_longer(task_client: httpx.Client) -> None:
    """Haystack's client always sends one, which may be below what a model takes."""
    body = {"model": "reranker", "query": QUERY, "documents": DOCUMENTS[:3]}
    plain = task_client.post("/v2/rerank", json=body).json()["results"]
    most = MAX_TEXT_TOKENS // 2
    kept = task_client.post("/v2/rerank", json={**body, "max_tokens_per_doc": most}).json()
    assert kept["results"] == plain


def test_raw_scores_are_logits_and_no_model_need_be_named(
    task_client: httpx.Client, logits: Any
) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, "raw_scores": True, "top_n": 0}
    answer = task_client.post("/v2/rerank", json=body).json()
    got = [(result["index"], result["relevance_score"]) for result in answer["results"]]
    assert [(index, np.float32(score)) for index, score in got] == ranked(logits)
    assert answer["model"] == "reranker"
    assert answer["usage"]["total_tokens"] > 0


def embeddings(client: httpx.Client, texts: list[str], **options: Any) -> list[Any]:
    """Embeddings by OpenAI's route."""
    body = {"model": "embedder", "input": texts, "truncate": True, **options}
    return [entry["embedding"] for entry in client.post("/v1/embeddings", json=body).json()["data"]]


def test_embeddings_of_all_types_have_the_bits_of_openais_route(
    v2: cohere.ClientV2, task_client: httpx.Client
) -> None:
    dtypes = ["int8", "uint8", "binary", "ubinary"]
    answer = v2.embed(
        model="embedder",
        texts=TEXTS,
        input_type="clustering",
        embedding_types=[*dtypes, "base64", "float"],
    )
    floats = embeddings(task_client, TEXTS)
    assert answer.embeddings.float_ == floats
    for dtype in dtypes:
        assert getattr(answer.embeddings, dtype) == embeddings(task_client, TEXTS, dtype=dtype)
    coded = answer.embeddings.base64
    assert coded
    vectors = [np.frombuffer(base64.b64decode(text), "<f4") for text in coded]
    np.testing.assert_array_equal(vectors, np.array(floats, np.float32))
    assert answer.texts == TEXTS
    assert answer.meta
    assert answer.meta.billed_units
    assert answer.meta.billed_units.input_tokens


def test_types_that_are_not_asked_for_are_not_answered(v2: cohere.ClientV2) -> None:
    made = v2.embed(
        model="embedder", texts=TEXTS, input_type="clustering", embedding_types=["binary"]
    ).embeddings
    assert made.binary
    assert made.float_ is made.int8 is made.base64 is None


@pytest.mark.parametrize(
    ("input_type", "prompt"),
    [("search_query", "query"), ("search_document", "document"), ("classification", None)],
)
def test_an_input_type_chooses_the_prompt(
    v2: cohere.ClientV2, task_client: httpx.Client, input_type: str, prompt: str | None
) -> None:
    prompt_text = PROMPTS[prompt] if prompt else ""
    expected = embeddings(task_client, [prompt_text + text for text in TEXTS])
    got = v2.embed(model="embedder", texts=TEXTS, input_type=input_type)
    assert got.embeddings.float_ == expected
    assert got.texts == TEXTS
    if prompt:
        alias = v2.embed(model=f"embedder:{prompt}", texts=TEXTS, input_type=input_type)
        assert alias.embeddings == got.embeddings


# the SDK joins batches with parts of pydantic that will go
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
def test_version_1_answers_plain_vectors_and_types_in_batches(
    v1: cohere.Client, task_client: httpx.Client
) -> None:
    texts = TEXTS * 40  # the SDK sends 96 at once
    plain = v1.embed(texts=texts)
    assert plain.response_type == "embeddings_floats"
    assert plain.embeddings == embeddings(task_client, TEXTS) * 40
    assert plain.texts == texts
    typed = v1.embed(texts=texts, model="embedder", embedding_types=["int8", "float"])
    assert typed.response_type == "embeddings_by_type"
    assert typed.embeddings.float_ == plain.embeddings
    assert typed.embeddings.int8 == embeddings(task_client, TEXTS, dtype="int8") * 40


def test_long_texts_are_cut_at_the_end_that_is_named(
    v2: cohere.ClientV2, task_client: httpx.Client
) -> None:
    def embed(text: str, **options: Any) -> Any:
        response = v2.embed(model="embedder", texts=[text], input_type="classification", **options)
        return response.embeddings.float_

    num_words = MAX_TEXT_TOKENS - 2
    ends = " ".join(LONG.split()[:num_words]), " ".join(LONG.split()[-num_words:])
    assert embed(LONG) == embed(LONG, truncate="END") == embeddings(task_client, [ends[0]])
    assert embed(LONG, truncate="START") == embeddings(task_client, [ends[1]])
    cut = v2.embed(
        model="embedder", texts=["a b c"], input_type="classification", output_dimension=5
    )
    assert cut.embeddings.float_ == embeddings(task_client, ["a b c"], dimensions=5)


EMBED: dict[str, Any] = {"model": "embedder", "texts": ["a"], "input_type": "clustering"}
RERANK: dict[str, Any] = {"model": "reranker", "query": "a", "documents": ["b"]}


def of_text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def test_inputs_of_one_text_are_embedded_as_texts(v2: cohere.ClientV2) -> None:
    body: dict[str, Any] = {"model": "embedder", "input_type": "search_query"}
    texts, inputs = DOCUMENTS, [of_text(text) for text in DOCUMENTS]
    expected = v2.embed(**body, texts=texts, embedding_types=["float"]).embeddings.float_
    assert v2.embed(**body, inputs=inputs, embedding_types=["float"]).embeddings.float_ == expected


def test_every_status_is_the_sdks_own_class_in_its_envelope(
    v1: cohere.Client, v2: cohere.ClientV2, task_client: httpx.Client
) -> None:
    for call in (v1.embed, v2.embed, v1.rerank, v2.rerank):
        body = RERANK if "rerank" in call.__name__ else EMBED
        with pytest.raises(cohere.NotFoundError) as missing:
            call(**{**body, "model": "nobody"})
        assert missing.value.body.keys() == {"message"}
        wrong: dict[str, Any] = {"top_n": -1} if body is RERANK else {"truncate": "LEFT"}
        with pytest.raises(cohere.BadRequestError, match="Input should be"):
            call(**{**body, **wrong})
    late = {"additional_headers": {"x-request-timeout-ms": "0"}}
    with pytest.raises(ApiError):
        v2.embed(**EMBED, request_options=late)  # type: ignore[arg-type]
    for path in ("/v1/embed", "/v2/embed", "/v1/rerank", "/v2/rerank"):
        assert task_client.post(path, content=b"{").json().keys() == {"message"}
    assert task_client.post("/v1/embeddings", content=b"{").json().keys() == {"error"}


@pytest.mark.parametrize(
    ("endpoint", "names"), [("rerank", {"reranker"}), ("embed", {"embedder"}), ("chat", set())]
)
def test_models_are_listed_by_what_they_are_asked_for(
    v2: cohere.ClientV2, endpoint: Any, names: set[str]
) -> None:
    listed = v2.models.list(endpoint=endpoint).models
    assert {each.name for each in listed} >= names
    assert all(each.endpoints and endpoint in each.endpoints for each in listed)
    assert len(listed) < len(v2.models.list().models)
