"""Models named with a prompt, for clients that can only name a model."""

from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from tests.support import web
from tests.support.task_models import PROMPTS

TEXTS = ["a b c", "", "the text"]
FIELDS = {"/v1/embeddings": "input", "/v1/infer": "texts", "/v1/tokenize": "texts"}


def post(client: httpx.Client, path: str, model: str, **body: Any) -> httpx.Response:
    return client.post(path, json={"model": model, **body})


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_an_alias_is_the_model_with_its_prompt(
    task_client: httpx.Client, path: str, prompt: str
) -> None:
    body = {FIELDS[path]: TEXTS}
    expected = web.answered(post(task_client, path, "embedder", **body, prompt_name=prompt))
    for alias in (f"embedder:{prompt}", f"embedder/1:{prompt}"):
        assert web.answered(post(task_client, path, alias, **body)) == expected
    assert web.answered(post(task_client, path, "embedder", **body)) != expected


def test_aliases_are_listed_and_shown(task_client: httpx.Client) -> None:
    entry = task_client.get("/v1/models/embedder").json()
    assert entry["aliases"] == ["embedder:query", "embedder:document"]
    assert task_client.get("/v1/models/embedder:query").json() == entry | {"id": "embedder:query"}
    of_version = task_client.get("/v1/models/embedder/1").json()
    names = {"id": "embedder/1", "aliases": ["embedder/1:query", "embedder/1:document"]}
    assert of_version == entry | names
    assert task_client.get("/v1/models/embedder/1:query").json()["id"] == "embedder/1:query"
    missing = task_client.get("/v1/models/embedder:nobody")
    assert missing.status_code == 404
    assert "the prompts of embedder/1 are query, document" in missing.json()["error"]["message"]


def test_openais_sdk_names_an_alias(task_client: httpx.Client, task_url: str) -> None:
    with OpenAI(base_url=f"{task_url}/v1", api_key="none", max_retries=0) as sdk:
        answer = sdk.embeddings.create(model="embedder:query", input=TEXTS, encoding_format="float")
        body = {"input": [PROMPTS["query"] + text for text in TEXTS]}
        expected = post(task_client, "/v1/embeddings", "embedder", **body).json()["data"]
        assert [entry.embedding for entry in answer.data] == [
            entry["embedding"] for entry in expected
        ]
        assert sdk.models.retrieve("embedder:query").id == "embedder:query"
        with pytest.raises(NotFoundError, match="the prompts of embedder/1 are query, document"):
            sdk.embeddings.create(model="embedder:nobody", input="a")
        with pytest.raises(NotFoundError, match="'nobody:query' is not served here"):
            sdk.embeddings.create(model="nobody:query", input="a")
