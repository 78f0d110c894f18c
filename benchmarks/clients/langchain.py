"""LangChain's classes: its own standard tests for embeddings, and its rerankers."""

import asyncio
import importlib
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
    Fields,
    Row,
    Site,
    absent,
    at_site,
    bits,
    order,
    refusal,
    run,
    tables_of_tiktoken,
    texts_of,
)


def build(path: str, fields: Fields, site: Site) -> Any:
    """path: module.Class"""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(**fields(site))


def suite(package: str, path: str, fields: Fields, suffix: str = "") -> Row:
    """All tests of EmbeddingsIntegrationTests, and then the bits."""
    name = path.rpartition(".")[2]

    def call(site: Site) -> Any:
        from langchain_tests.integration_tests import EmbeddingsIntegrationTests as Standard

        model = build(path, fields, site)
        tests = type(name, (Standard,), {"embeddings_class": type(model)})()
        tests.test_embed_query(model)
        tests.test_embed_documents(model)
        asyncio.run(_asynchronous(tests, model))
        return model.embed_documents(TEXTS)

    return bits(package, f"standard tests of {name}{suffix}", call)


async def _asynchronous(tests: Any, model: Any) -> None:
    """Both tests run in one loop: clients keep their connections."""
    await tests.test_aembed_query(model)
    await tests.test_aembed_documents(model)


def documents() -> Any:
    from langchain_core.documents import Document

    return [Document(page_content=text) for text in TEXTS]


def compressor(package: str, path: str, fields: Fields) -> Row:
    def call(site: Site) -> Any:
        ranked = build(path, fields, site).compress_documents(documents(), QUERY)
        return texts_of([document.page_content for document in ranked])

    return order(package, f"{path.rpartition('.')[2]}.compress_documents", call)


OPENAI = at_site("base_url", "/v1", model=MODEL)
TEXTS_TO_OPENAI = at_site("base_url", "/v1", model=MODEL, check_embedding_ctx_length=False)


def openai_ids(site: Site) -> Any:
    tables_of_tiktoken()
    return build("langchain_openai.OpenAIEmbeddings", OPENAI, site).embed_query(QUERY)


def chroma(site: Site) -> Any:
    from langchain_chroma import Chroma
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(**TEXTS_TO_OPENAI(site))
    names, texts = list(map(str, range(NUMBER))), made_documents()
    store = Chroma.from_texts(texts, embeddings, ids=names)
    entries = store.get(ids=[names[index] for index in SAMPLE], include=["embeddings"])
    assert store._collection.count() == NUMBER
    vectors = dict(zip(entries["ids"], entries["embeddings"], strict=True))
    return [vectors[names[index]] for index in SAMPLE]


COMMUNITY, NVIDIA = "langchain_community.embeddings", "langchain_nvidia_ai_endpoints"
HUB = f"{COMMUNITY}.HuggingFaceInferenceAPIEmbeddings"
UNCHECKED = ", check_embedding_ctx_length=False"
HEADERS = {"headers": {"authorization": f"Bearer {KEY}"}}
ROWS = (
    suite("langchain-openai", "langchain_openai.OpenAIEmbeddings", TEXTS_TO_OPENAI, UNCHECKED),
    refusal("langchain-openai", "OpenAIEmbeddings with ids of tiktoken's vocabulary, its default",
            "check_embedding_ctx_length=False", openai_ids),
    suite("langchain-openai", "langchain_openai.AzureOpenAIEmbeddings",
          at_site("azure_endpoint", model=MODEL, api_version="2024-02-01",
                check_embedding_ctx_length=False), UNCHECKED),
    suite("langchain-cohere", "langchain_cohere.CohereEmbeddings",
          at_site("base_url", "", "cohere_api_key", model=MODEL)),
    suite("langchain-nvidia-ai-endpoints", f"{NVIDIA}.NVIDIAEmbeddings",
          at_site("base_url", "/v1", model=MODEL)),
    suite("langchain-ollama", "langchain_ollama.OllamaEmbeddings",
          lambda site: {"model": MODEL, "base_url": site.url, "client_kwargs": HEADERS}),
    suite("langchain-community", f"{COMMUNITY}.InfinityEmbeddings",
          lambda site: {"model": MODEL, "infinity_api_url": site.open}, " at the root"),
    suite("langchain-community", f"{COMMUNITY}.InfinityEmbeddings",
          lambda site: {"model": MODEL, "infinity_api_url": f"{site.open}/v1"}, " at /v1"),
    suite("langchain-community", HUB, at_site("api_url", "/embed"), " at /embed"),
    suite("langchain-community", HUB, at_site("api_url", f"/hf/{MODEL}"), " at /hf/NAME"),
    suite("langchain-community", f"{COMMUNITY}.OllamaEmbeddings",
          lambda site: {"model": MODEL, "base_url": site.open, "embed_instruction": "",
                        "query_instruction": ""}),
    absent("langchain-community", "LocalAIEmbeddings", "it needs a version of openai below 1"),
    absent("langchain-voyageai", "VoyageAIEmbeddings", "its tokenizer is on a hub"),
    absent("langchain-huggingface", "HuggingFaceEndpointEmbeddings",
           "it takes no URL, only names that it looks up on the hub"),
    absent("langchain-community", "JinaEmbeddings, JinaRerank", "the URL is hard-coded"),
    Row("langchain-chroma", "10,000 documents through OpenAIEmbeddings", INDEXED,
        chroma),
    compressor("langchain-cohere", "langchain_cohere.CohereRerank",
               at_site("base_url", "", "cohere_api_key", model=RANKER, top_n=TOP)),
    compressor("langchain-nvidia-ai-endpoints", f"{NVIDIA}.NVIDIARerank",
               at_site("base_url", "/v1", model=RANKER, top_n=TOP)),
    compressor("langchain-voyageai", "langchain_voyageai.VoyageAIRerank",
               at_site("base_url", "/v1", model=RANKER, top_k=TOP)),
)  # fmt: skip

if __name__ == "__main__":
    run(ROWS, {**PLAIN, INDEXED: sample_vectors})
