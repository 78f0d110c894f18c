"""What callers may call a model: aliases, bundles, prompts and tags, by one rule everywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from addnorm.service.engine.bundle import Bundle
from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.settings import Settings
from tests.conftest import client_of, inference_of, linked
from tests.support import web
from tests.support.task_models import PROMPTS

SLASHED = "BAAI/bge-small-en-v1.5"
ALIASES = {
    "text-embedding-3-small": "embedder",
    SLASHED: "embedder/1",
    "nomic-embed-text:v1.5": "embedder?prompt=document",
    "narrow": "embedder?prompt=query&precision=fp32&dimensions=5",
    "judge": "reranker",
}
PLAIN = ("embedder", "embedder/1", "embedder:latest", "text-embedding-3-small", SLASHED)
PLAIN += ("embedder/1:latest", f"{SLASHED}:latest")
QUERY = (
    "embedder:query:latest",
    "embedder:query",
    "embedder/1:query",
    "text-embedding-3-small:query",
    f"{SLASHED}:query",
)
TEXT = "pads are dropped"


@pytest.fixture(scope="module")
def root(task_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folders = [task_bundles / name for name in ("embedder", "reranker")]
    return linked(tmp_path_factory.mktemp("named"), folders)


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(root, aliases=ALIASES)) as client:
        yield client


def vector(client: httpx.Client, model: str, text: str = TEXT) -> list[float]:
    answer = client.post("/v1/embeddings", json={"model": model, "input": text})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][0]["embedding"]  # type: ignore[no-any-return]


def test_every_name_of_a_model_gives_its_bits(client: httpx.Client) -> None:
    expected = vector(client, "embedder")
    assert all(vector(client, name) == expected for name in PLAIN)
    prompted = vector(client, "embedder", PROMPTS["query"] + TEXT)
    assert prompted != expected
    assert all(vector(client, name) == prompted for name in QUERY)
    passage = vector(client, "embedder", PROMPTS["document"] + TEXT)
    assert vector(client, "nomic-embed-text:v1.5") == passage
    assert vector(client, "nomic-embed-text:v1.5:latest") == passage


@pytest.mark.parametrize("path", ["/v1/infer", "/v1/tokenize"])
def test_a_prompt_may_stand_in_the_name_of_a_model(client: httpx.Client, path: str) -> None:
    def ask(model: str, text: str) -> Any:
        answer = client.post(path, json={"model": model, "texts": [text]})
        return web.answered(answer)

    for name in ("embedder:document", "embedder/1:document"):
        assert ask(name, TEXT) == ask("embedder", PROMPTS["document"] + TEXT)


def test_an_alias_brings_its_prompt_and_its_dimensions(client: httpx.Client) -> None:
    narrow = np.array(vector(client, "narrow"))
    assert narrow.shape == (5,)
    body = {"model": "embedder", "input": TEXT, "prompt_name": "query", "dimensions": 5}
    (expected,) = client.post("/v1/embeddings", json=body).json()["data"]
    assert narrow.tolist() == expected["embedding"]
    wider = client.post("/v1/embeddings", json={"model": "narrow", "input": TEXT, "dimensions": 7})
    assert len(wider.json()["data"][0]["embedding"]) == 7
    cohere = client.post("/v2/embed", json={"model": "narrow", "texts": [TEXT]}).json()
    assert cohere["embeddings"]["float"] == [expected["embedding"]]


@pytest.mark.parametrize("name", [*PLAIN[:1], *PLAIN[2:5], quote(SLASHED, safe="")])
def test_paths_take_the_names_that_bodies_take(client: httpx.Client, name: str) -> None:
    expected = vector(client, "embedder")
    hub = client.post(f"/hf/{name}", json={"inputs": TEXT, "normalize": False})
    assert hub.json() == [expected]
    assert client.get(f"/hf/{name}/health").json() == {"status": "ok"}
    shown = client.get(f"/v1/models/{name}").json()
    assert (shown["id"], shown["precisions"]) == (name.replace("%2F", "/"), ["fp32"])
    assert client.get(f"/v2/models/{name}/ready").json()["ready"]
    tensor = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [2, 3]}
    body = {"inputs": [tensor], "outputs": [{"name": "pooled"}]}
    assert client.post(f"/v2/models/{name}/infer", json=body).json()["model_name"] == "embedder"
    assert client.get(f"/v2/models/{name}").json()["versions"] == ["1"]
    for suffix in ("config", "stats", "versions/1", "versions/1/config", "versions/1/stats"):
        assert client.get(f"/v2/models/{name}/{suffix}").status_code == 200, suffix


def test_aliases_are_listed_as_models(client: httpx.Client) -> None:
    listed = {entry["id"]: entry for entry in client.get("/v1/models").json()["data"]}
    assert listed.keys() == {"embedder", "reranker", *ALIASES}
    assert set(listed["embedder"]["aliases"]) >= {"embedder:query", SLASHED, "narrow"}
    assert listed["narrow"]["default_prompt_name"] == "query"
    for name in ("embedder:latest", "embedder:query"):
        shown = client.get(f"/v1/models/{name}").json()
        assert (shown["id"], shown["aliases"]) == (name, listed["embedder"]["aliases"])
    assert "judge" in listed["reranker"]["aliases"]
    of_version = client.get("/v1/models/embedder/1:query").json()
    assert of_version["id"] == "embedder/1:query"
    assert {"embedder/1:query", "embedder/1:document"} <= {*of_version["aliases"]}


@pytest.mark.parametrize(
    "name", ["sentence-transformers/all-MiniLM-L6-v2", "embed", "BAAI/bge", "BAAI/bge:query"]
)
def test_a_wrong_name_is_told_whole(client: httpx.Client, name: str) -> None:
    for answer in (
        client.post("/v1/embeddings", json={"model": name, "input": TEXT}),
        client.get(f"/v1/models/{name}"),
        client.post(f"/hf/{name}", json={"inputs": TEXT}),
        client.get(f"/v2/models/{name}"),
    ):
        assert answer.status_code == 404, answer.text
        assert f"model '{name}' is not served here; served are: embedder, reranker" in answer.text


@pytest.fixture(scope="module")
def lenient(root: Path) -> Iterator[httpx.Client]:
    """Takes every name of a model."""
    with client_of(inference_of(root, any_model_name=True)) as client:
        yield client


def test_the_placeholder_of_tei_names_no_model(client: httpx.Client) -> None:
    body = {"model": "text-embeddings-inference", "input": TEXT}
    answer = client.post("/v1/embeddings", json=body)
    assert answer.json()["data"][0]["embedding"] == vector(client, "embedder")
    assert "x-addnorm-model" not in answer.headers
    assert client.get(f"/v1/models/{body['model']}").status_code == 404


def test_an_unknown_name_is_told_the_way_on(client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"model": "gpt", "input": TEXT})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "model 'gpt' is not served here; served are: embedder, reranker, "
        + ", ".join(ALIASES)
        + "; for clients whose name cannot be changed, set ADDNORM_ALIASES, or"
        " ADDNORM_ANY_MODEL_NAME=true",
    )


@pytest.mark.parametrize(
    ("path", "body", "ref"),
    [
        ("/v1/embeddings", {"input": TEXT}, "embedder/1"),
        ("/openai/deployments/gpt/embeddings", {"input": TEXT}, "embedder/1"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "reranker/1"),
    ],
)
def test_a_setting_takes_every_name_and_a_header_tells_the_model(
    lenient: httpx.Client, path: str, body: dict[str, Any], ref: str
) -> None:
    named, other = (
        lenient.post(path, json={**body, "model": name}) for name in (ref, "BAAI/gpt:4")
    )
    assert (other.status_code, other.headers["x-addnorm-model"]) == (200, ref)
    assert {**other.json(), "created": 0, "id": ""} == {**named.json(), "created": 0, "id": ""}
    if "deployments" not in path:  # there the name stands in the path
        assert "x-addnorm-model" not in named.headers


def test_a_setting_that_takes_every_name_guesses_no_version_prompt_or_task(
    lenient: httpx.Client,
) -> None:
    for name in ("embedder/7", "embedder:nobody"):
        answer = lenient.post("/v1/embeddings", json={"model": name, "input": TEXT})
        assert answer.status_code == 404, answer.text
    assert lenient.get("/v1/models/gpt").status_code == 404
    several = lenient.post("/v1/infer", json={"model": "gpt", "texts": [TEXT]})
    assert several.status_code == 400
    assert "embedder, reranker" in several.text
    told = lenient.post("/v1/tokenize", json={"model": "reranker", "texts": [TEXT]})
    assert "x-addnorm-model" not in told.headers


def test_a_prompt_has_no_meaning_where_pairs_are_scored(client: httpx.Client) -> None:
    body = {"query": "a", "documents": ["b"]}
    assert client.post("/v1/rerank", json={**body, "model": "judge:latest"}).status_code == 200
    twice = client.post("/v1/embeddings", json={"model": "narrow:query", "input": TEXT})
    assert twice.status_code == 400
    assert "already has the prompt 'query'" in twice.text


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"embedder": "reranker"}, "embedder is also a name of the bundle embedder/1"),
        ({"embedder/2": "reranker"}, "is also a name of the bundle"),
        ({"embedder:query": "reranker"}, "is also a name of the bundle"),
        ({"reranker:latest": "embedder"}, "is also a name of the bundle"),
        ({"a": "nobody"}, "a: model 'nobody' is not served here"),
        ({"a": "embedder/2"}, "a: model 'embedder' has no version '2'"),
        ({"a": "embedder?prompt=none"}, "prompt=none, embedder/1 has query, document"),
        ({"a": "embedder?precision=int8"}, "precision=int8, embedder/1 has fp32"),
        ({"a": "embedder?dimensions=999"}, "dimensions=999, embedder/1 has 1 to 36"),
        ({"a": "embedder?dimensions=x"}, "write NAME=MODEL"),
        ({"a": "embedder?other=1"}, "write NAME=MODEL"),
        ({"a": "embedder?max_time_ms=9"}, "first or max_time_ms, but embedder/1 cannot rerank"),
        ({"a": "embedder?first=embedder&keep=9"}, "embedder/1 cannot rerank"),
        ({"a": "reranker?first=embedder"}, "first=EMBEDDER&keep=50"),
        ({"a": "reranker?first=embedder&keep=0"}, "first=EMBEDDER&keep=50"),
        ({"a": "reranker?max_time_ms=0"}, "write NAME=MODEL"),
        ({"a": "reranker?first=nobody&keep=9"}, "a: model 'nobody' is not served here"),
        ({"a": "b", "b": "embedder"}, "an alias of an alias"),
    ],
)
def test_what_would_be_in_doubt_ends_the_start(root: Path, aliases: Any, words: str) -> None:
    with pytest.raises(StartupError, match=words.replace("?", r"\?")):
        load_all(root, Settings(aliases=aliases))


def test_the_setting_is_written_with_commas() -> None:
    settings = Settings.model_validate({"aliases": "a/b=c?prompt=d&precision=int8, e=f"})
    assert settings.aliases == {"a/b": "c?prompt=d&precision=int8", "e": "f"}


def test_the_default_precision_is_a_setting(notebook_in_fp16: Bundle) -> None:
    root = notebook_in_fp16.path.parent.parent
    of_this = "int8,notebook=fp16"
    for default, expected in (("fp16", "fp16"), ("int8", "fp32"), ("", "fp32"), (of_this, "fp16")):
        settings = Settings.model_validate({"default_precision": default, "worker_threads": 1})
        models = load_all(root, settings)
        model, precision = models.find(None), models.find(None).default_precision
        assert (precision, model.engine(None)) == (expected, model.engines[expected])
