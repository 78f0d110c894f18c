"""Embedding functions and rerankers that vector databases bring, and what the databases keep."""

import os
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.clients.rows import (
    KEY,
    MODEL,
    OPENAI_NAME,
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

WIDTH = 384


def cohere_url(site: Site) -> None:
    """The SDK's own variables, where a package has no field for the URL."""
    os.environ.update(CO_API_URL=site.url, COHERE_API_KEY=KEY)


def chroma(name: str, fields: Fields, suffix: str = "") -> Row:
    """The function's vectors, and that the database finds with them. It scales what it keeps."""

    def call(site: Site) -> Any:
        import chromadb
        from chromadb.utils import embedding_functions

        cohere_url(site)
        function = getattr(embedding_functions, f"{name}EmbeddingFunction", None)
        embedding_function = (function or getattr(embedding_functions, name))(**fields(site))
        client, title = chromadb.Client(), f"of-{name}-{len(suffix)}"
        collection = client.create_collection(title, embedding_function=embedding_function)
        collection.add(list(map(str, range(len(TEXTS)))), documents=TEXTS)
        nearest = collection.query(query_texts=TEXTS, n_results=1)
        assert nearest["documents"] == [[text] for text in TEXTS]
        return embedding_function(TEXTS)

    return bits("chromadb", f"{name}{suffix}, add and query", call)


def qdrant(site: Site) -> Any:
    import openai
    from qdrant_client import QdrantClient
    from qdrant_client.models import Distance, PointStruct, VectorParams

    embeddings = openai.OpenAI(base_url=f"{site.url}/v1", api_key=KEY).embeddings
    entries = embeddings.create(model=MODEL, input=TEXTS).data
    client = QdrantClient(":memory:")
    client.create_collection("c", vectors_config=VectorParams(size=WIDTH, distance=Distance.DOT))
    client.upsert("c", [PointStruct(id=entry.index, vector=entry.embedding) for entry in entries])
    assert client.query_points("c", query=entries[1].embedding).points[0].id == 1
    return [point.vector for point in client.retrieve("c", range(len(TEXTS)), with_vectors=True)]


def lancedb(name: str, fields: Fields, suffix: str = "") -> Row:
    """The vectors that a table keeps, whose embedding function makes them."""

    def call(site: Site) -> Any:
        import lancedb
        from lancedb.embeddings import get_registry
        from lancedb.pydantic import LanceModel, Vector

        cohere_url(site)
        function = get_registry().get(name).create(max_retries=0, **fields(site))
        kind = type("Kind", (LanceModel,), {
            "__annotations__": {"text": str, "vector": Vector(function.ndims())},
            "text": function.SourceField(), "vector": function.VectorField(),
        })  # fmt: skip
        with TemporaryDirectory() as folder:
            table = lancedb.connect(folder).create_table("t", schema=kind)
            table.add([{"text": text} for text in TEXTS])
            return table.to_arrow()["vector"].to_pylist()

    return bits("lancedb", f"{name} in a table{suffix}", call)


def lancedb_openai(site: Site) -> dict[str, Any]:
    # an environment variable's name keeps the key out of the table's metadata
    os.environ["OPENAI_API_KEY"] = KEY
    return {"name": OPENAI_NAME, "dim": WIDTH, "base_url": f"{site.url}/v1"}


def lancedb_cohere(site: Site) -> Any:
    from lancedb.embeddings import get_registry

    cohere_url(site)
    function = get_registry().get("cohere").create(max_retries=0, name=MODEL)
    return function.generate_embeddings(TEXTS)


def lancedb_rerank(site: Site) -> Any:
    import pyarrow as pa
    from lancedb.rerankers import CohereReranker

    cohere_url(site)
    table = pa.table({"text": TEXTS, "_distance": [0.0] * len(TEXTS)})
    ranked = CohereReranker(model_name=RANKER, top_n=TOP).rerank_vector(QUERY, table)
    return texts_of(ranked["text"].to_pylist())


def milvus(path: str, fields: Fields) -> Row:
    def call(site: Site) -> Any:
        module, _, name = path.rpartition(".")
        cohere_url(site)
        function = getattr(import_module(f"pymilvus.model.{module}"), name)(**fields(site))
        return function.encode_documents(TEXTS)

    return bits("pymilvus-model", path.rpartition(".")[2], call)


def milvus_rerank(site: Site) -> Any:
    """The client asks for all of them, whatever its top_k."""
    from pymilvus.model.reranker import TEIRerankFunction

    return [hit.index for hit in TEIRerankFunction(site.open)(QUERY, TEXTS, TOP)][:TOP]


def redis(name: str, fields: Fields, **options: Any) -> Row:
    def call(site: Site) -> Any:
        from redisvl.utils import vectorize

        return getattr(vectorize, name)(**fields(site)).embed_many(TEXTS, **options)

    return bits("redisvl", name, call)


def redis_rerank(name: str, fields: Fields) -> Row:
    def call(site: Site) -> Any:
        from redisvl.utils import rerank

        ranker = getattr(rerank, name)(model=RANKER, limit=TOP, **fields(site))
        return texts_of(ranker.rank(QUERY, TEXTS)[0])

    return order("redisvl", name, call)


def config(**fields: Fields) -> Fields:
    """redisvl's: fields within a field."""
    return lambda site: {"model": MODEL} | {name: make(site) for name, make in fields.items()}


def redis_keyed(path: str = "", /, **fields: Any) -> Fields:
    """For the SDKs that it hands a URL apart from the key."""
    return lambda site: {"api_config": {"api_key": KEY}, "base_url": site.url + path, **fields}


HEADERS = {"authorization": f"Bearer {KEY}"}
TEI = "HuggingFaceEmbeddingServer"
ROWS = (
    chroma("OpenAI", at_site("api_base", "/v1", model_name=MODEL)),
    chroma(TEI, at_site("url", "/embed"), " at /embed"),
    chroma(TEI, at_site("url"), " at the root"),
    chroma("Cohere", lambda site: {"model_name": MODEL, "api_key": KEY}),
    chroma("Ollama", lambda site: {"model_name": MODEL, "url": site.open}),
    absent("chromadb", "Jina, VoyageAI, Mistral, TogetherAI", "the URL is hard-coded"),
    bits("qdrant-client", "in memory, vectors of openai", qdrant),
    absent("qdrant-client", "Document, with fastembed", "its models are on a hub"),
    lancedb("openai", lancedb_openai, f" as {OPENAI_NAME}, an alias, dim=384"),
    bits("lancedb", "cohere, generate_embeddings", lancedb_cohere),
    absent("lancedb", "cohere in a table", "it knows the widths of Cohere's own models only"),
    lancedb("ollama", lambda site: {"name": MODEL, "host": site.open}),
    order("lancedb", "CohereReranker", lancedb_rerank),
    absent("lancedb", "voyageai", "its tokenizer is on a hub"),
    absent("lancedb", "jina", "the URL is hard-coded"),
    milvus("dense.OpenAIEmbeddingFunction", at_site("base_url", "/v1", model_name=MODEL)),
    milvus("dense.CohereEmbeddingFunction", lambda site: {"model_name": MODEL, "api_key": KEY}),
    milvus("dense.TEIEmbeddingFunction", lambda site: {"api_url": site.open}),
    order("pymilvus-model", "TEIRerankFunction", milvus_rerank),
    absent("pymilvus-model", "CohereRerankFunction", "it sends a field that cohere has no more"),
    absent("pymilvus-model", "JinaAI, Voyage", "the URL is hard-coded"),
    redis("OpenAITextVectorizer", config(api_config=at_site("base_url", "/v1"))),
    redis("AzureOpenAITextVectorizer",
          config(api_config=at_site("azure_endpoint", api_version="2024-02-01"))),
    redis("CohereTextVectorizer", redis_keyed(model=MODEL), input_type="clustering"),
    redis("OllamaTextVectorizer",
          lambda site: {"model": MODEL, "host": site.url, "headers": HEADERS}),
    redis("VoyageAIVectorizer", redis_keyed("/v1", model=MODEL)),
    redis_rerank("CohereReranker", redis_keyed()),
    redis_rerank("VoyageAIReranker", redis_keyed("/v1")),
)  # fmt: skip

if __name__ == "__main__":
    run(ROWS)
