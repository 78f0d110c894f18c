"""Unmodified packages with nothing but a URL, a key and a model set.

client_packages.py URL NAME: makes one call, and prints whether its vectors have the bits, or its
results the order, that the server's plain route gives.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np

QUERY, TEXTS = "the same text", ["pads are dropped", "padding costs nothing.", "a b c"]
MODEL, RANKER, KEY = "embedder", "reranker", "any-key-will-do"


def openai_sdk(url: str) -> Any:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY)
    return [each.embedding for each in client.embeddings.create(model=MODEL, input=TEXTS).data]


def openai_azure(url: str) -> Any:
    import openai

    client = openai.AzureOpenAI(azure_endpoint=url, api_key=KEY, api_version="2024-02-01")
    return [each.embedding for each in client.embeddings.create(model=MODEL, input=TEXTS).data]


def ollama_embed(url: str) -> Any:
    import ollama

    client = ollama.Client(url)
    assert f"{MODEL}:latest" in [each.model for each in client.list().models]
    assert "embedding" in client.show(MODEL).capabilities
    return client.embed(f"{MODEL}:latest", TEXTS).embeddings


def ollama_embeddings(url: str) -> Any:
    import ollama

    return [ollama.Client(url).embeddings(MODEL, text).embedding for text in TEXTS]


def voyage_embed(url: str) -> Any:
    import voyageai

    return voyageai.Client(KEY, base_url=f"{url}/v1").embed(TEXTS, model=MODEL).embeddings


def voyage_rerank(url: str) -> Any:
    import voyageai

    client = voyageai.Client(KEY, base_url=f"{url}/v1")
    return [each.index for each in client.rerank(QUERY, TEXTS, model=RANKER, top_k=2).results]


def cohere_embed(url: str) -> Any:
    import cohere

    client = cohere.ClientV2(KEY, base_url=url)
    asked: dict[str, Any] = {"input_type": "clustering", "embedding_types": ["float"]}
    return client.embed(model=MODEL, texts=TEXTS, **asked).embeddings.float_


def langchain_ollama(url: str) -> Any:
    from langchain_ollama import OllamaEmbeddings

    return OllamaEmbeddings(model=MODEL, base_url=url).embed_documents(TEXTS)


def langchain_nvidia_rerank(url: str) -> Any:
    from langchain_core.documents import Document
    from langchain_nvidia_ai_endpoints import NVIDIARerank

    client = NVIDIARerank(model=RANKER, base_url=f"{url}/v1", api_key=KEY, top_n=2)
    documents = [Document(page_content=text) for text in TEXTS]
    ranked = client.compress_documents(query=QUERY, documents=documents)
    return [TEXTS.index(each.page_content) for each in ranked]


def litellm_embedding(provider: str, path: str, **fields: Any) -> Callable[[str], Any]:
    def call(url: str) -> Any:
        import litellm

        answer = litellm.embedding(
            model=f"{provider}/{MODEL}", input=TEXTS, api_base=url + path, api_key=KEY, **fields
        )
        return [each["embedding"] for each in answer.data]

    return call


def litellm_rerank(provider: str, path: str) -> Callable[[str], Any]:
    def call(url: str) -> Any:
        import litellm

        answer = litellm.rerank(
            model=f"{provider}/{RANKER}",
            query=QUERY,
            documents=TEXTS,
            top_n=2,
            api_base=url + path,
            api_key=KEY,
        )
        return [each["index"] for each in answer.results]

    return call


EMBEDDERS: dict[str, Callable[[str], Any]] = {
    "openai": openai_sdk,
    "openai AzureOpenAI": openai_azure,
    "ollama embed": ollama_embed,
    "ollama embeddings": ollama_embeddings,
    "voyageai embed": voyage_embed,
    "cohere embed": cohere_embed,
    "langchain-ollama": langchain_ollama,
    "litellm ollama": litellm_embedding("ollama", ""),
    "litellm azure": litellm_embedding("azure", "", api_version="2024-02-01"),
    "litellm infinity": litellm_embedding("infinity", ""),
    "litellm jina_ai, task": litellm_embedding("jina_ai", "/v1", task="text-matching"),
}
RANKERS: dict[str, Callable[[str], Any]] = {
    "voyageai rerank": voyage_rerank,
    "langchain-nvidia rerank": langchain_nvidia_rerank,
    "litellm huggingface rerank": litellm_rerank("huggingface", ""),
    "litellm voyage rerank": litellm_rerank("voyage", "/v1/rerank"),
    "litellm nvidia_nim rerank": litellm_rerank("nvidia_nim", ""),
}
PACKAGES = (*EMBEDDERS, *RANKERS)


def posted(url: str, **body: Any) -> Any:
    return httpx.post(url, json=body, timeout=60).raise_for_status().json()


def check(url: str, name: str) -> str:
    """AssertionError if the package got something else than the plain route gives."""
    if name in EMBEDDERS:
        plain = posted(f"{url}/v1/embeddings", model=MODEL, input=TEXTS)["data"]
        expected = np.array([entry["embedding"] for entry in plain], np.float32)
        assert np.array_equal(np.array(EMBEDDERS[name](url), np.float32), expected)
        return "worked, bits equal to /v1/embeddings"
    ranked: Sequence[int] = RANKERS[name](url)
    plain = posted(f"{url}/v1/rerank", model=RANKER, query=QUERY, documents=TEXTS, top_n=2)
    assert list(ranked) == [result["index"] for result in plain["results"]]
    return "worked, ranked as by /v1/rerank"


if __name__ == "__main__":
    print(check(sys.argv[1], sys.argv[2]))
