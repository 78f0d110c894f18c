"""litellm: each provider whose URL can be set, for embeddings and for rerank."""

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.clients.documents import NUMBER, SAMPLE, made_documents, sample_vectors
from benchmarks.clients.rows import (
    INDEXED,
    KEY,
    MODEL,
    PLAIN,
    QUERY,
    RANKER,
    TEXTS,
    TOP,
    Row,
    Site,
    absent,
    bits,
    order,
    refusal,
    run,
)

MOST_TEXTS = 2048  # of a request, at OpenAI and here


def embed_call(
    provider: str, path: str, input: list[str] = TEXTS, model: str = MODEL, **fields: Any
) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        import litellm

        address = {"api_base": site.url + path, "api_key": KEY}
        answer = litellm.embedding(model=f"{provider}/{model}", input=input, **address, **fields)
        return [entry["embedding"] for entry in answer.data]

    return call


def embedding(provider: str, path: str, **fields: Any) -> Row:
    options = "".join(f", {name}={value}" for name, value in fields.items())
    name = f"embedding {provider}/ at {path or 'the root'}{options}"
    return bits("litellm", name, embed_call(provider, path, **fields))


def rerank_call(provider: str, path: str, **fields: Any) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        import litellm

        address = {"api_base": site.url + path, "api_key": KEY}
        body = {"query": QUERY, "documents": TEXTS, "top_n": TOP, **fields}
        answer = litellm.rerank(model=f"{provider}/{RANKER}", **body, **address)
        return [entry["index"] for entry in answer.results]

    return call


def rerank(provider: str, path: str) -> Row:
    return order(
        "litellm", f"rerank {provider}/ at {path or 'the root'}", rerank_call(provider, path)
    )


def triton(site: Site) -> Any:
    """It sends no key."""
    return embed_call("triton", f"/v2/models/{MODEL}/infer")(site._replace(url=site.open))


def aembedding(site: Site) -> Any:
    import litellm

    address = {"api_base": f"{site.url}/v1", "api_key": KEY}
    answer = asyncio.run(litellm.aembedding(model=f"openai/{MODEL}", input=TEXTS, **address))
    return [entry["embedding"] for entry in answer.data]


def documents(site: Site) -> Any:
    texts, vectors = made_documents(), []
    for first in range(0, NUMBER, MOST_TEXTS):
        part = texts[first : first + MOST_TEXTS]
        vectors += embed_call("openai", "/v1", input=part)(site)
    assert len(vectors) == NUMBER
    return [vectors[index] for index in SAMPLE]


AT_V1 = ("openai", "hosted_vllm", "xinference", "lm_studio", "openai_like", "litellm_proxy",
         "llamafile", "together_ai", "fireworks_ai", "mistral", "jina_ai", "nvidia_nim", "infinity",
         "azure_ai", "databricks")  # fmt: skip
ROWS = (
    *(embedding(provider, "/v1") for provider in AT_V1),
    bits("litellm", "aembedding openai/ at /v1", aembedding),
    embedding("infinity", ""),
    embedding("azure_ai", ""),
    embedding("databricks", ""),
    embedding("nvidia_nim", "/v1", input_type="passage"),
    embedding("jina_ai", "/v1", task="text-matching"),
    embedding("voyage", "/v1"),
    embedding("cohere", "/v2/embed"),
    embedding("huggingface", "", input_type="feature-extraction"),
    embedding("huggingface", "/embed", input_type="feature-extraction"),
    embedding("huggingface", "/hf/" + MODEL, input_type="feature-extraction"),
    absent("litellm", "embedding huggingface/ without input_type", "it asks the hub for the task"),
    bits("litellm", "embedding triton/ at /v2/models/NAME/infer", triton),
    embedding("ollama", ""),
    embedding("azure", "", api_version="2024-02-01"),
    refusal("litellm", "embedding openai/, 2,049 texts at once", "the limit is 2048",
            embed_call("openai", "/v1", input=["a"] * (MOST_TEXTS + 1))),
    absent("litellm", "embedding bedrock/, gemini/, vertex_ai/", "it needs a login of theirs"),
    Row("litellm", "10,000 documents, 2,048 a call, as openai/NAME", INDEXED, documents),
    *(rerank(provider, "")
      for provider in ("cohere", "hosted_vllm", "jina_ai", "azure_ai", "together_ai",
                       "litellm_proxy", "huggingface", "nvidia_nim")),
    order("litellm", "rerank infinity/ at the root, return_documents=False",
          rerank_call("infinity", "", return_documents=False)),
    refusal("litellm", "rerank infinity/ with documents, which it wants as Infinity's texts",
            "Input should be a valid string", rerank_call("infinity", "")),
    rerank("hosted_vllm", "/v1"),
    rerank("jina_ai", "/v1/rerank"),
    rerank("cohere", "/v1/rerank"),
    rerank("voyage", "/v1/rerank"),
)  # fmt: skip

if __name__ == "__main__":
    run(ROWS, {**PLAIN, INDEXED: sample_vectors})
