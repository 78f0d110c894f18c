"""Dialects over tasks that others have too: the same bits, their own fields, their own errors."""

from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from addnorm.service.engine.registry import Models
from tests.conftest import client_of, inference_of, service_of, serving
from tests.support import web
from tests.support.task_models import MAX_TEXT_TOKENS, PROMPTS

TEXTS = ["pads are dropped", "a b c"]
QUERY = "padding costs nothing."
LONG = "a " * 2 * MAX_TEXT_TOKENS
MODEL = "embedder"


def posted(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, f"{path}: {answer.text}"
    return answer.json()


def vectors(client: httpx.Client, texts: list[str] | str = TEXTS, **fields: Any) -> Any:
    body = {"model": MODEL, "input": texts, **fields}
    return [entry["embedding"] for entry in posted(client, "/v1/embeddings", **body)["data"]]


def test_ollamas_vectors_have_openais_bits(task_client: httpx.Client) -> None:
    expected = vectors(task_client)
    for model in (MODEL, f"{MODEL}:latest"):
        answer = posted(
            task_client, "/api/embed", model=model, input=TEXTS, options={}, keep_alive="5m"
        )
        assert (answer["embeddings"], answer["model"]) == (expected, model)
        one = posted(task_client, "/api/embeddings", model=model, prompt=TEXTS[0])
        assert one == {"embedding": expected[0]}
    assert (
        posted(task_client, "/api/embed", model=MODEL, input=TEXTS[0])["embeddings"] == expected[:1]
    )
    short = posted(task_client, "/api/embed", model=MODEL, input=TEXTS, dimensions=5)["embeddings"]
    assert np.shape(short) == (2, 5)
    # as Ollama's own examples with curl
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = orjson.dumps({"model": MODEL, "input": TEXTS})
    assert (
        task_client.post("/api/embed", content=body, headers=form).json()["embeddings"] == expected
    )


def test_ollamas_clients_load_a_model_before_they_send_a_text(
    small: Path, task_client: httpx.Client
) -> None:
    service = inference_of(small)
    with client_of(service) as client:
        for path, nothing, body in (
            *(("/api/embed", {"model": "notebook", "embeddings": []}, body)
              for body in ({}, {"input": ""}, {"input": []}, {"input": None})),
            *(("/api/embeddings", {"embedding": []}, body) for body in ({}, {"prompt": ""})),
        ):  # fmt: skip
            service.repository.unload_idle(0.0)
            assert not service.models.find("notebook").is_loaded
            answer = posted(client, path, model="notebook", keep_alive="5m", **body)
            assert answer == nothing
            assert service.models.find("notebook").is_loaded
        assert client.post("/api/embed", json={"model": "nobody"}).status_code == 404
        assert len(posted(task_client, "/api/embed", model=MODEL, input=[""])["embeddings"]) == 1


def test_ollama_cuts_unless_it_is_told_not_to(task_client: httpx.Client) -> None:
    cut = posted(task_client, "/api/embed", model=MODEL, input=LONG)["embeddings"]
    assert cut == vectors(task_client, LONG, truncate=True)


def test_ollama_lists_and_shows_what_is_served(task_client: httpx.Client) -> None:
    tags = task_client.get("/api/tags").json()["models"]
    listed = [entry["id"] for entry in task_client.get("/v1/models").json()["data"]]
    assert [tag["name"] for tag in tags] == [f"{name}:latest" for name in listed]
    assert all(tag["size"] > 1000 and len(tag["digest"]) == 64 for tag in tags)
    for named in ({"model": f"{MODEL}:latest"}, {"name": MODEL}):
        shown = posted(task_client, "/api/show", **named)
        assert shown["capabilities"] == ["embedding"]
        assert shown["model_info"]["addnorm.embedding_length"] == len(vectors(task_client)[0])
    assert task_client.get("/api/version").json()["version"]
    (loaded,) = (
        model
        for model in task_client.get("/api/ps").json()["models"]
        if model["model"] == f"{MODEL}:latest"
    )
    assert loaded["digest"] in [tag["digest"] for tag in tags]
    assert (loaded["size_vram"], loaded["context_length"]) == (0, MAX_TEXT_TOKENS)
    assert datetime.fromisoformat(loaded["expires_at"]).year > 2300
    missing = task_client.post("/api/generate", json={}).json()["error"]
    assert missing == "POST /api/generate: there is no such path; /docs lists all paths"


@pytest.mark.parametrize("field", ["model", "name"])
def test_ollamas_clients_fetch_what_is_served_and_nothing_else(
    task_client: httpx.Client, field: str
) -> None:
    lines = task_client.post("/api/pull", json={field: f"{MODEL}:latest"})
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    states = [orjson.loads(line)["status"] for line in lines.text.splitlines()]
    assert states == ["pulling manifest", "success"]
    whole = task_client.post("/api/pull", json={field: MODEL, "stream": False, "insecure": True})
    assert whole.json() == {"status": "success"}


def test_a_nims_health_needs_no_key_and_has_its_words(tasks: Models) -> None:
    with serving(service_of(tasks, api_keys="a infer 0123456789abcdef")) as url:
        for state in ("live", "ready"):
            answer = web.get(f"{url}/v1/health/{state}")
            assert answer.json() == {"object": "health.response", "message": state, state: True}
        assert web.get(f"{url}/version").status_code == 401


@pytest.mark.parametrize("path", ["/v1/ranking", "/v1/retrieval/reranker/reranking"])
def test_nvidias_logits_are_the_raw_scores(task_client: httpx.Client, path: str) -> None:
    texts = TEXTS * 3
    body: dict[str, Any] = {
        "query": {"text": QUERY},
        "passages": [{"text": text} for text in texts],
    }
    ranked = posted(task_client, path, model="reranker", truncate="END", **body)["rankings"]
    raw = posted(task_client, "/rerank", query=QUERY, texts=texts, raw_scores=True)
    assert ranked == [{"index": rank["index"], "logit": rank["score"]} for rank in raw]
    plain = {"query": QUERY, "passages": texts}
    assert posted(task_client, path, model="reranker", **plain)["rankings"] == ranked
    for limit in ({"top_k": 2}, {"top_n": 2}):  # RAGFlow sends top_n
        best = posted(task_client, path, model="reranker", **body, **limit)["rankings"]
        assert best == ranked[:2]


@pytest.mark.parametrize(
    "path", ["/openai/v1/embeddings", "/openai/deployments/embedder/embeddings?api-version=1"]
)
def test_azures_paths_are_openais(tasks: Models, task_client: httpx.Client, path: str) -> None:
    body = {"model": MODEL, "input": TEXTS}
    entries = posted(task_client, path, **body)["data"]
    assert [entry["embedding"] for entry in entries] == vectors(task_client)
    key = "0123456789abcdef"
    with serving(service_of(tasks, api_keys=f"a infer {key}")) as url:
        for headers, status in (({"api-key": key}, 200), ({"api-key": "x" * 16}, 401), ({}, 401)):
            assert web.post(f"{url}{path}", json=body, headers=headers).status_code == status


def test_fields_of_others_mean_what_openais_do(task_client: httpx.Client) -> None:
    query = vectors(task_client, [PROMPTS["query"] + text for text in TEXTS])
    passage = vectors(task_client, [PROMPTS["document"] + text for text in TEXTS])
    for fields, expected in (
        ({"input_type": "query", "truncate": "NONE"}, query),
        ({"input_type": "passage", "truncate": "END"}, passage),
        ({"input_type": "document", "truncation": True}, passage),
        ({"input_type": "text"}, vectors(task_client)),
        ({"task": "retrieval.query", "late_chunking": False}, query),
        ({"task": "retrieval.passage", "embedding_type": "float"}, passage),
        ({"task": "text-matching"}, vectors(task_client)),
        ({"output_dimension": 5}, vectors(task_client, dimensions=5)),
        ({"add_special_tokens": True, "priority": 3}, vectors(task_client)),
        ({"output_dtype": "ubinary"}, vectors(task_client, dtype="ubinary")),
        ({"embedding_type": ["binary"]}, vectors(task_client, dtype="binary")),
        ({"drop_params": True, "provider": {"order": ["x"]}}, vectors(task_client)),
        ({"extra_body": {}, "rid": "7", "encoding_format": {}}, vectors(task_client)),
        ({"embed_dtype": "float32", "endianness": "native", "priority": 0}, vectors(task_client)),
        ({"normalize": True, "rid": "7"}, posted(task_client, "/embed", inputs=TEXTS)),
        (
            {"user": "", "encoding_format": "", "dimensions": 0, "precision": ""},
            vectors(task_client),
        ),
        ({"return_multivector": False, "stream": False, "metadata": {}}, vectors(task_client)),
        ({"dimensions": 5.0}, vectors(task_client, dimensions=5)),
        ({"embedding_type": "binary"}, vectors(task_client, dtype="binary")),
        ({"embedding_type": "base64"}, vectors(task_client, encoding_format="base64")),
        ({"normalized": True, "input_type": None}, posted(task_client, "/embed", inputs=TEXTS)),
    ):
        assert vectors(task_client, **fields) == expected, fields
    objects: Any = [{"text": text} for text in TEXTS]
    assert vectors(task_client, objects) == vectors(task_client)


def test_texts_are_cut_as_others_ask_for_it(task_client: httpx.Client) -> None:
    cut = vectors(task_client, LONG, truncate=True)
    for fields in (
        {"truncate": "END"},
        {"truncation": True, "truncate": True},
        {"truncate_prompt_tokens": -1},
    ):
        assert vectors(task_client, LONG, **fields) == cut, fields
    ends = "b " + LONG
    assert vectors(task_client, ends, truncate="START") == cut
    assert vectors(task_client, ends, truncate="END") != cut


def test_rerank_has_the_fields_of_voyage_vllm_and_litellm(task_client: httpx.Client) -> None:
    body = {"query": QUERY, "documents": TEXTS * 3}
    results = posted(task_client, "/v1/rerank", **body)["results"]
    least = posted(task_client, "/v1/rerank", **body, truncate_prompt_tokens=-1)
    assert least["data"] == least["results"] == results  # Voyage's clients need send no field
    # Jina's query, and what vLLM's client sends by default
    jinas = {**body, "query": {"text": QUERY}, "use_activation": True, "softmax": True}
    assert posted(task_client, "/v1/rerank", **jinas)["results"] == results
    voyage = posted(
        task_client, "/v1/rerank", **body, top_k=2, truncation=True, return_documents=True
    )
    assert [{**entry, "document": None} for entry in voyage["data"]] == [
        {**entry, "document": None} for entry in results[:2]
    ]
    assert voyage["data"][0]["document"] == body["documents"][results[0]["index"]]
    assert len(posted(task_client, "/v1/rerank", **body, top_n=2, top_k=2)["results"]) == 2
    tei = {"query": QUERY, "texts": TEXTS * 3}
    ranks = posted(task_client, "/rerank", **tei)
    assert posted(task_client, "/rerank", **tei, top_n=2) == ranks[:2]
    assert posted(task_client, "/embed", inputs=TEXTS, options={"wait_for_model": True})


def test_vllms_scores_classes_and_vectors_are_those_of_other_routes(
    task_client: httpx.Client,
) -> None:
    raw = posted(task_client, "/rerank", query=QUERY, texts=TEXTS)
    scores = {rank["index"]: rank["score"] for rank in raw}
    for first, path in ((QUERY, "/score"), ([QUERY] * 2, "/v1/score")):
        data = posted(task_client, path, text_1=first, text_2=TEXTS)["data"]
        assert posted(task_client, "/score", queries=first, documents=TEXTS)["data"] == data
        assert {entry["index"]: entry["score"] for entry in data} == scores
    native = posted(task_client, "/v1/classify", texts=TEXTS)["results"]
    classes = posted(task_client, "/classify", input=TEXTS)["data"]
    for entry, labels in zip(classes, native, strict=True):
        assert (entry["label"], max(entry["probs"])) == (labels[0]["label"], labels[0]["score"])
        assert entry["num_classes"] == len(entry["probs"]) == len(labels)
    pooled = posted(task_client, "/pooling", model=MODEL, input=TEXTS)["data"]
    assert [entry["data"] for entry in pooled] == vectors(task_client)
    packed = posted(task_client, "/pooling", model=MODEL, input=TEXTS, encoding_format="base64")
    assert [entry["data"] for entry in packed["data"]] == vectors(
        task_client, encoding_format="base64"
    )
    cut = posted(task_client, "/pooling", input=LONG, truncate_prompt_tokens=-1)["data"]
    assert [entry["data"] for entry in cut] == vectors(task_client, LONG, truncate=True)


def test_hugging_faces_javascript_examples_run_as_they_are_printed(
    task_client: httpx.Client,
) -> None:
    """Without parameters, or with a list of one, as in the README of @huggingface/inference."""
    entities = posted(task_client, "/hf/tagger", inputs=QUERY)
    simple = {"aggregation_strategy": "simple"}
    assert entities == posted(task_client, "/hf/tagger", inputs=QUERY, parameters=simple)
    masked = posted(task_client, "/hf/masked-lm", inputs="a [MASK] b")
    assert masked == posted(task_client, "/hf/masked-lm", inputs="a [MASK] b", parameters={})
    labels = {"candidate_labels": ["a", "b"]}
    zero_shot = [
        posted(task_client, "/hf/classifier", inputs=inputs, parameters=labels)
        for inputs in (QUERY, [QUERY])
    ]
    assert zero_shot[0] == zero_shot[1]


def test_rerank_takes_what_applications_send_along(task_client: httpx.Client) -> None:
    body = {"model": "reranker", "query": QUERY, "documents": TEXTS}
    plain = posted(task_client, "/v1/rerank", **body)["results"]
    sent: tuple[dict[str, Any], ...] = (
        {"max_chunks_per_doc": 10},
        {"max_chunks_per_doc": 1024, "overlap_tokens": 80, "top_n": 2.0},
        {"return_len": "true", "return_documents": "false"},
        {"return_embeddings": False, "max_tokens_per_doc": 0, "rank_fields": ["text"]},
    )
    for more in sent:
        assert posted(task_client, "/v1/rerank", **body, **more)["results"] == plain, more
    body["documents"] = [LONG, "b"]
    cut = posted(task_client, "/v1/rerank", **body)["results"]
    for more in ({"max_chunks_per_doc": 1}, {"overlap_tokens": 0}):  # as documents are read here
        assert posted(task_client, "/v1/rerank", **body, **more)["results"] == cut, more
    best = posted(task_client, "/rerank", query=QUERY, texts=TEXTS, top_k=1)
    assert best == posted(task_client, "/rerank", query=QUERY, texts=TEXTS, top_n=1)


def test_texts_of_tei_name_a_model_and_have_parameters(task_client: httpx.Client) -> None:
    unit, plain = (
        posted(task_client, "/embed", inputs=TEXTS, normalize=normalize)
        for normalize in (True, False)
    )
    assert unit != plain
    for path in ("/embed", "/invocations", "/"):
        body = {"inputs": TEXTS, "parameters": {"normalize": False, "truncate": "true"}}
        assert posted(task_client, path, **body) == plain, path
        named = {"inputs": TEXTS, "model": MODEL, "options": {}}
        assert posted(task_client, path, **named) == unit
    asked = posted(task_client, "/embed", inputs=TEXTS, model=f"{MODEL}:query")
    assert asked == posted(task_client, "/embed", inputs=TEXTS, prompt_name="query")
    pairs = {"query": QUERY, "texts": TEXTS}
    ranks = posted(task_client, "/rerank", **pairs)
    for path in ("/rerank", "/"):
        assert posted(task_client, path, **pairs, model="reranker", parameters={}) == ranks


def test_a_model_is_named_in_all_bodies_of_tei(task_client: httpx.Client) -> None:
    instances = [{"inputs": text, "model": MODEL, "user": "me"} for text in TEXTS]
    predicted = posted(task_client, "/vertex", instances=instances)["predictions"]
    unit = posted(task_client, "/embed", inputs=TEXTS)
    assert [vector for (vector,) in predicted] == unit
    tokens = posted(task_client, "/tokenize", inputs=TEXTS, model="reranker")
    assert posted(task_client, "/hf/reranker/tokenize", inputs=TEXTS) == tokens
    ids = [[token["id"] for token in text] for text in tokens]
    assert posted(task_client, "/decode", ids=ids, model="reranker")
    sentences = {"source_sentence": QUERY, "sentences": TEXTS}
    alike = posted(task_client, "/similarity", inputs=sentences)
    assert posted(task_client, "/similarity", inputs=sentences, model=MODEL) == alike


def test_a_model_below_hf_is_as_a_server_of_it_alone(task_client: httpx.Client) -> None:
    """Dify adds these paths to the URL that it has, and reads from `/info` what the server is."""
    kinds = {}
    for name in ("embedder", "reranker", "classifier"):
        info = task_client.get(f"/hf/{name}/info").json()
        assert task_client.get("/info", params={"model": name}).json() == info
        kinds[name] = next(iter(info["model_type"]))
    assert kinds == {"embedder": "embedding", "reranker": "reranker", "classifier": "classifier"}
    assert task_client.get("/hf/nobody/info").status_code == 404
    pairs = {"query": QUERY, "texts": TEXTS, "return_text": True}
    assert posted(task_client, "/hf/reranker/rerank", **pairs) == posted(
        task_client, "/rerank", **pairs
    )
    entries = posted(task_client, "/hf/embedder/v1/embeddings", input=TEXTS)["data"]
    assert [entry["embedding"] for entry in entries] == vectors(task_client)
    cannot = task_client.post("/hf/embedder/rerank", json=pairs)
    assert (cannot.status_code, "cannot rerank" in cannot.text) == (400, True)
