"""Haystack's embedders and rankers, and pydantic-ai, which needs the newest SDKs too."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.clients.rows import (
    KEY,
    MODEL,
    QUERY,
    RANKER,
    SPARSE,
    TEXTS,
    TOP,
    Fields,
    Row,
    Site,
    at_site,
    bits,
    order,
    refusal,
    run,
    texts_of,
)

COMPONENTS = "haystack_integrations.components"


def secret() -> Any:
    from haystack.utils import Secret

    return Secret.from_token(KEY)


def build(module: str, name: str, fields: dict[str, Any]) -> Any:
    component = getattr(import_module(module), name)(**fields)
    if hasattr(component, "warm_up"):  # as a pipeline does
        component.warm_up()
    return component


def documents() -> list[Any]:
    from haystack import Document

    return [Document(content=text) for text in TEXTS]


def embedder(package: str, module: str, name: str, fields: Fields, suffix: str = "") -> Row:
    """name: of the classes, which end with TextEmbedder and DocumentEmbedder."""

    def call(site: Site) -> Any:
        text_embedder, document_embedder = (
            build(module, f"{name}{kind}Embedder", fields(site)) for kind in ("Text", "Document")
        )
        vectors = [
            document.embedding for document in document_embedder.run(documents())["documents"]
        ]
        assert len(text_embedder.run(QUERY)["embedding"]) == len(vectors[0])
        return vectors

    return bits(package, f"{name}DocumentEmbedder{suffix}", call)


def ranker(package: str, module: str, name: str, fields: Fields) -> Row:
    def call(site: Site) -> Any:
        component = build(f"{COMPONENTS}.rankers.{module}", name, fields(site) | {"top_k": TOP})
        return texts_of(
            [document.content for document in component.run(QUERY, documents())["documents"]]
        )

    return order(package, name, call)


def openai(site: Site) -> dict[str, Any]:
    return {"model": MODEL, "api_base_url": f"{site.url}/v1", "api_key": secret()}


def azure(site: Site) -> dict[str, Any]:
    return {"azure_endpoint": site.url, "azure_deployment": MODEL, "api_key": secret()}


def cohere(model: str) -> Fields:
    return lambda site: {"model": model, "api_base_url": site.url, "api_key": secret()}


def nvidia(model: str) -> Fields:
    return lambda site: {"model": model, "api_url": f"{site.url}/v1", "api_key": secret()}


def jina(model: str, path: str) -> Fields:
    return lambda site: {"model": model, "base_url": f"{site.url}/v1{path}", "api_key": secret()}


def tei(site: Site) -> dict[str, Any]:
    return {
        "api_type": "text_embeddings_inference",
        "api_params": {"url": site.url},
        "token": secret(),
        "normalize": True,
    }


def tei_long_query(site: Site) -> Any:
    from haystack_integrations.components.rankers.huggingface_api import (
        HuggingFaceTEIRanker,
        TruncationDirection,
    )

    client = HuggingFaceTEIRanker(url=site.url, top_k=TOP, token=secret())
    direction = TruncationDirection.LEFT  # the end of a text so long is not read
    return client.run("the text " * 4000, documents(), truncation_direction=direction)


def tei_sparse(site: Site) -> Any:
    from haystack_integrations.components.embedders.huggingface_api import (
        HuggingFaceTEISparseTextEmbedder,
    )

    client = HuggingFaceTEISparseTextEmbedder(api_base_url=site.url, token=secret())
    sparse = client.run(TEXTS[0])["sparse_embedding"]
    return list(zip(sparse.indices, sparse.values, strict=True))


def pydantic_ai(provider: str, name: str, model: str, fields: Fields) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        from pydantic_ai import Embedder

        provider_class = getattr(
            import_module(f"pydantic_ai.providers.{provider}"), f"{name}Provider"
        )
        kind = getattr(
            import_module(f"pydantic_ai.embeddings.{model.lower()}"), f"{model}EmbeddingModel"
        )
        embedder = Embedder(kind(MODEL, provider=provider_class(**fields(site))))
        return asyncio.run(embedder.embed_documents(TEXTS)).embeddings

    return call


def cohere_provider(site: Site) -> dict[str, Any]:
    import cohere

    return {"cohere_client": cohere.AsyncClientV2(KEY, base_url=site.url)}


def voyage_provider(site: Site) -> dict[str, Any]:
    import voyageai

    return {"voyageai_client": voyageai.AsyncClient(KEY, base_url=f"{site.url}/v1")}


EMBEDDERS, OWN = f"{COMPONENTS}.embedders", "haystack.components.embedders"
HUB = "huggingface-api-haystack"
ROWS = (
    embedder("haystack-ai", OWN, "OpenAI", openai),
    embedder("haystack-ai", OWN, "AzureOpenAI", azure),
    embedder("cohere-haystack", f"{EMBEDDERS}.cohere", "Cohere", cohere(MODEL)),
    embedder("nvidia-haystack", f"{EMBEDDERS}.nvidia", "Nvidia", nvidia(MODEL)),
    embedder("jina-haystack", f"{EMBEDDERS}.jina", "Jina", jina(MODEL, "/embeddings")),
    embedder("ollama-haystack", f"{EMBEDDERS}.ollama", "Ollama",
             lambda site: {"model": MODEL, "url": site.open}),
    embedder(HUB, f"{EMBEDDERS}.huggingface_api", "HuggingFaceAPI", tei,
             " at TEI's root, normalize=True"),
    embedder("vllm-haystack", f"{EMBEDDERS}.vllm", "VLLM", openai),
    Row(HUB, "HuggingFaceTEISparseTextEmbedder", SPARSE, tei_sparse),
    ranker("cohere-haystack", "cohere", "CohereRanker", cohere(RANKER)),
    ranker("nvidia-haystack", "nvidia", "NvidiaRanker", nvidia(RANKER)),
    ranker("jina-haystack", "jina", "JinaRanker", jina(RANKER, "/rerank")),
    ranker(HUB, "huggingface_api", "HuggingFaceTEIRanker",
           lambda site: {"url": site.url, "token": secret()}),
    refusal(HUB, "HuggingFaceTEIRanker, a query of 36,000 characters cut at its left",
            "texts[0] has 36016 characters", tei_long_query),
    ranker("vllm-haystack", "vllm", "VLLMRanker", lambda site: openai(site) | {"model": RANKER}),
    bits("pydantic-ai-slim", "Embedder, OpenAIProvider",
         pydantic_ai("openai", "OpenAI", "OpenAI",
                     at_site("base_url", "/v1"))),
    bits("pydantic-ai-slim", "Embedder, OllamaProvider",
         pydantic_ai("ollama", "Ollama", "OpenAI",
                     at_site("base_url", "/v1"))),
    bits("pydantic-ai-slim", "Embedder, CohereProvider",
         pydantic_ai("cohere", "Cohere", "Cohere", cohere_provider)),
    bits("pydantic-ai-slim", "Embedder, VoyageAIProvider",
         pydantic_ai("voyageai", "VoyageAI", "VoyageAI", voyage_provider)),
)  # fmt: skip

if __name__ == "__main__":
    run(ROWS)
