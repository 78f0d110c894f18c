"""Applications and frameworks that make embeddings for what they do."""

import asyncio
from importlib import import_module
from typing import Any

from benchmarks.clients.rows import (
    KEY,
    MODEL,
    OPENAI_NAME,
    TEXTS,
    Fields,
    Row,
    Site,
    absent,
    at_site,
    bits,
    run,
    tables_of_tiktoken,
)

AZURE = "2024-02-01"
azure = at_site("azure_endpoint", azure_deployment=MODEL, api_version=AZURE)
WIDTH = 384


def dspy_embedder(site: Site) -> Any:
    import dspy

    address = {"api_base": f"{site.url}/v1", "api_key": KEY}
    return dspy.Embedder(f"openai/{MODEL}", caching=False, **address)(TEXTS)


def dspy_retriever(site: Site) -> Any:
    """Its index finds each text by itself; the vectors are the embedder's."""
    import dspy

    address = {"api_base": f"{site.url}/v1", "api_key": KEY}
    embedder = dspy.Embedder(f"openai/{MODEL}", caching=False, **address)
    search = dspy.retrievers.Embeddings(corpus=TEXTS, embedder=embedder, k=1)
    assert [search(text).passages for text in TEXTS] == [[text] for text in TEXTS]
    return embedder(TEXTS)


def mem0(provider: str, config: Fields) -> Row:
    def call(site: Site) -> Any:
        from mem0.utils.factory import EmbedderFactory

        embedder = EmbedderFactory.create(provider, {"model": MODEL, **config(site)}, None)
        return [embedder.embed(text, "add") for text in TEXTS]

    return bits("mem0ai", f"embedder {provider}", call)


def crewai(provider: str, config: Fields) -> Row:
    def call(site: Site) -> Any:
        from crewai.rag.embeddings.factory import build_embedder

        return build_embedder({"provider": provider, "config": config(site)})(TEXTS)

    return bits("crewai", f"embedder {provider}", call)


def semantic_kernel(path: str, fields: Fields) -> Row:
    name = path.rpartition(".")[2]

    def call(site: Site) -> Any:
        module = "semantic_kernel.connectors.ai." + path.rpartition(".")[0]
        kind = getattr(import_module(module), name)
        return asyncio.run(kind(**fields(site)).generate_embeddings(TEXTS))

    return bits("semantic-kernel", name, call)


def openai_client(site: Site) -> dict[str, Any]:
    import openai

    client = openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=KEY)
    return {"ai_model_id": MODEL, "async_client": client}


def ragas_openai(site: Site) -> Any:
    import openai
    from ragas.embeddings import OpenAIEmbeddings

    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key=KEY)
    return OpenAIEmbeddings(client=client, model=MODEL).embed_texts(TEXTS)


def ragas_litellm(site: Site) -> Any:
    from ragas.embeddings import LiteLLMEmbeddings

    embeddings = LiteLLMEmbeddings(f"openai/{MODEL}", api_base=f"{site.url}/v1", api_key=KEY)
    return embeddings.embed_texts(TEXTS)


def cognee(kind: str, fields: Fields, suffix: str = "") -> Row:
    def call(site: Site) -> Any:
        tables_of_tiktoken()
        engines = "cognee.infrastructure.databases.vector.embeddings"
        engine = getattr(import_module(f"{engines}.{kind}"), kind)(**fields(site))
        return asyncio.run(engine.embed_text(TEXTS))

    return bits("cognee", f"{kind}{suffix}", call)


ROWS = (
    bits("dspy", "Embedder", dspy_embedder),
    bits("dspy", "retrievers.Embeddings", dspy_retriever),
    mem0("openai", at_site("openai_base_url", "/v1")),
    mem0("lmstudio", at_site("lmstudio_base_url", "/v1")),
    mem0("azure_openai", lambda site: {"azure_kwargs": azure(site)}),
    mem0("ollama", lambda site: {"ollama_base_url": site.open}),
    crewai("openai", at_site("api_base", "/v1", model_name=MODEL)),
    crewai("ollama", lambda site: {"url": site.open, "model_name": MODEL}),
    crewai("azure", at_site("api_base", model_name=MODEL, deployment_id=MODEL, api_type="azure",
                          api_version=AZURE)),
    semantic_kernel("open_ai.OpenAITextEmbedding", openai_client),
    absent("semantic-kernel", "AzureTextEmbedding", "it takes URLs of https only"),
    semantic_kernel("ollama.OllamaTextEmbedding",
                    lambda site: {"ai_model_id": MODEL, "host": site.open}),
    bits("ragas", "OpenAIEmbeddings", ragas_openai),
    bits("ragas", "LiteLLMEmbeddings", ragas_litellm),
    cognee("OpenAICompatibleEmbeddingEngine",
           at_site("endpoint", "/v1", model=MODEL, dimensions=WIDTH)),
    cognee("LiteLLMEmbeddingEngine",
           at_site("endpoint", "/v1", model=f"openai/{OPENAI_NAME}", dimensions=WIDTH),
           f" as {OPENAI_NAME}, an alias"),
)  # fmt: skip

if __name__ == "__main__":
    run(ROWS)
