"""llama-index's embeddings and rerankers, and clients of Infinity."""

import asyncio
from importlib import import_module
from typing import Any

from benchmarks.clients.documents import NUMBER, SAMPLE, made_documents, sample_vectors
from benchmarks.clients.rows import (
    COHERE_NAME,
    INDEXED,
    KEY,
    MODEL,
    OPENAI_NAME,
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
    run,
    texts_of,
)

HUB = "llama-index-embeddings-huggingface-api"
HEADERS = {"headers": {"authorization": f"Bearer {KEY}"}}


def embedding(module: str, name: str, fields: Fields, suffix: str = "") -> Row:
    def call(site: Site) -> Any:
        embedder = getattr(import_module(f"llama_index.embeddings.{module}"), name)(**fields(site))
        vectors = embedder.get_text_embedding_batch(TEXTS)
        assert embedder.get_text_embedding(TEXTS[0]) == vectors[0]
        assert len(embedder.get_query_embedding(QUERY)) == len(vectors[0])
        return vectors

    return bits(f"llama-index-embeddings-{module.replace('_', '-')}", f"{name}{suffix}", call)


def hub(path: str, suffix: str) -> Row:
    def call(site: Site) -> Any:
        from llama_index.embeddings.huggingface_api import HuggingFaceInferenceAPIEmbedding

        client = HuggingFaceInferenceAPIEmbedding(model_name=site.url + path, token=KEY)
        return asyncio.run(client.aget_text_embedding_batch(TEXTS))

    return bits(HUB, f"HuggingFaceInferenceAPIEmbedding {suffix}", call)


def reranker(module: str, name: str, fields: Fields) -> Row:
    def call(site: Site) -> Any:
        from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

        kind = getattr(import_module(f"llama_index.postprocessor.{module}"), name)
        nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
        ranked = kind(**fields(site)).postprocess_nodes(nodes, QueryBundle(QUERY))
        return texts_of([hit.node.text for hit in ranked])

    return order(f"llama-index-postprocessor-{module.replace('_', '-')}", name, call)


def index(site: Site) -> Any:
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embedding = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{site.url}/v1", api_key=KEY)
    documents = [Document(text=text, id_=str(n)) for n, text in enumerate(made_documents())]
    vector_index = VectorStoreIndex.from_documents(documents, embed_model=embedding)
    assert len(vector_index.ref_doc_info) == NUMBER
    nodes = [vector_index.ref_doc_info[str(index)].node_ids for index in SAMPLE]
    assert all(len(node_ids) == 1 for node_ids in nodes)  # no document is longer than a chunk
    return [vector_index.vector_store.get(node) for (node,) in nodes]


def infinity_embeddings(site: Site) -> Any:
    from infinity_client import Client
    from infinity_client.api.default import embeddings
    from infinity_client.models import OpenAIEmbeddingInputText

    body = OpenAIEmbeddingInputText(input_=TEXTS, model=MODEL)
    return [entry.embedding for entry in embeddings.sync(client=Client(site.open), body=body).data]


def infinity_rerank(site: Site) -> Any:
    from infinity_client import Client
    from langchain_community.document_compressors import InfinityRerank

    ranked = InfinityRerank(client=Client(site.open), model=RANKER, top_n=TOP).rerank(TEXTS, QUERY)
    return [entry["index"] for entry in ranked]


AZURE = {"model": OPENAI_NAME, "deployment_name": MODEL, "api_version": "2024-02-01"}
ROWS = (
    embedding("openai", "OpenAIEmbedding", at_site("api_base", "/v1", model_name=MODEL)),
    embedding("openai_like", "OpenAILikeEmbedding", at_site("api_base", "/v1", model_name=MODEL)),
    embedding("azure_openai", "AzureOpenAIEmbedding", at_site("azure_endpoint", **AZURE)),
    embedding("text_embeddings_inference", "TextEmbeddingsInference",
              at_site("base_url", "", "auth_token", model_name=MODEL)),
    hub("", "at the root"),
    hub(f"/hf/{MODEL}", "at /hf/NAME"),
    absent(HUB, "a second call without async", "it keeps connections of a loop that it closed"),
    embedding("cohere", "CohereEmbedding", at_site("base_url", model_name=COHERE_NAME),
              f" as {COHERE_NAME}, an alias"),
    embedding("nvidia", "NVIDIAEmbedding", at_site("base_url", "/v1", model=MODEL)),
    embedding("ollama", "OllamaEmbedding",
              lambda site: {"model_name": MODEL, "base_url": site.url, "client_kwargs": HEADERS}),
    absent("llama-index-embeddings-voyageai", "VoyageEmbedding", "its tokenizer is on a hub"),
    Row("llama-index-core", "10,000 documents into VectorStoreIndex through OpenAILikeEmbedding",
        INDEXED, index),
    reranker("cohere_rerank", "CohereRerank", at_site("base_url", model=RANKER, top_n=TOP)),
    reranker("jinaai_rerank", "JinaRerank", at_site("base_url", "/v1", model=RANKER, top_n=TOP)),
    reranker("nvidia_rerank", "NVIDIARerank", at_site("base_url", "/v1", model=RANKER, top_n=TOP)),
    reranker("tei_rerank", "TextEmbeddingInference",
             lambda site: {"base_url": site.url, "auth_token": f"Bearer {KEY}", "top_n": TOP}),
    absent("llama-index-postprocessor-voyageai-rerank", "VoyageAIRerank", "the URL is hard-coded"),
    bits("infinity-client", "embeddings", infinity_embeddings),
    order("langchain-community", "InfinityRerank", infinity_rerank),
)  # fmt: skip

if __name__ == "__main__":
    run(ROWS, {**PLAIN, INDEXED: sample_vectors})
