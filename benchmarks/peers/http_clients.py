"""Unmodified clients in an environment of their own, where neither Addnorm nor torch is.

http_clients.py URL NAME: uses the client as its documentation says, compares what comes back with
the server's answer to the plain request, and prints a line.
"""

import sys
from typing import Any

import httpx
import numpy as np

QUERY, TEXTS = "the same text", ["pads are dropped", "padding costs nothing.", "a b c"]


def plain_answer(url: str, json: dict[str, Any]) -> Any:
    return httpx.post(url, json=json, timeout=60).json()


def tei_embedder(url: str) -> str:
    from haystack_integrations.components.embedders.huggingface_api import (
        HuggingFaceAPIDocumentEmbedder,
        HuggingFaceAPITextEmbedder,
    )

    # it posts to the URL as it is: to text-embeddings-inference's root, which is /embed here
    options = {
        "api_type": "text_embeddings_inference",
        "api_params": {"url": f"{url}/embed"},
        "token": None,
        "normalize": True,
    }
    plain = plain_answer(f"{url}/embed", json={"inputs": TEXTS})
    vectors = np.array(plain, np.float32).tolist()  # as the component reads them
    assert HuggingFaceAPITextEmbedder(**options).run(TEXTS[0])["embedding"] == vectors[0]
    documents = HuggingFaceAPIDocumentEmbedder(**options).run(_documents())["documents"]
    assert [document.embedding for document in documents] == vectors
    return f"{len(documents)} documents of {len(vectors[0])}"


def tei_ranker(url: str) -> str:
    from haystack_integrations.components.rankers.huggingface_api import (
        HuggingFaceTEIRanker,
        TruncationDirection,
    )

    ranker = HuggingFaceTEIRanker(url=url, top_k=2, token=None)
    ranked = ranker.run(QUERY, _documents(), truncation_direction=TruncationDirection.LEFT)
    _check_ranking(url, ranked["documents"])
    long, refused = "the text " * 1000, ""
    try:
        ranker.run(long, _documents(), truncation_direction=TruncationDirection.LEFT)
    except RuntimeError as error:
        refused = str(error)
    assert "texts[0] has 9016 characters" in refused
    return f"{_shown(ranked['documents'])}; what is too long raises RuntimeError"


def tei_sparse_embedder(url: str) -> str:
    from haystack_integrations.components.embedders.huggingface_api import (
        HuggingFaceTEISparseTextEmbedder,
    )

    embedder = HuggingFaceTEISparseTextEmbedder(api_base_url=url, token=None)
    found = embedder.run(TEXTS[0])["sparse_embedding"]
    (plain,) = plain_answer(f"{url}/embed_sparse", json={"inputs": TEXTS[0]})
    assert found.indices == [entry["index"] for entry in plain]
    assert found.values == [entry["value"] for entry in plain]
    return f"{len(plain)} entries"


def vllm_ranker(url: str) -> str:
    from haystack_integrations.components.rankers.vllm import VLLMRanker

    ranker = VLLMRanker(model="reranker", api_base_url=f"{url}/v1", api_key=None, top_k=2)
    ranked = ranker.run(QUERY, _documents())["documents"]
    _check_ranking(url, ranked)
    return _shown(ranked)


def _documents() -> list[Any]:
    from haystack import Document

    return [Document(content=text) for text in TEXTS]


def _check_ranking(url: str, documents: list[Any]) -> None:
    plain = plain_answer(f"{url}/rerank", json={"query": QUERY, "texts": TEXTS})
    assert [(document.content, document.score) for document in documents] == [
        (TEXTS[rank["index"]], rank["score"]) for rank in plain[:2]
    ]


def _shown(documents: list[Any]) -> str:
    return ", ".join(f"{document.score:.4f} {document.content!r}" for document in documents)


def llama_index_embedding(url: str) -> str:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="embedder", base_url=url)
    vectors = client.get_text_embedding_batch(TEXTS)
    assert vectors == plain_answer(f"{url}/embed", json={"inputs": TEXTS})
    assert client.get_query_embedding(TEXTS[0]) == vectors[0]
    return f"{len(vectors)} vectors of {len(vectors[0])}"


def llama_index_rerank(url: str) -> str:
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    client = TextEmbeddingInference(base_url=url, top_n=2)
    ranked = client.postprocess_nodes(nodes, QueryBundle(QUERY))
    plain = plain_answer(f"{url}/rerank", json={"query": QUERY, "texts": TEXTS})
    assert [(node.text, node.score) for node in ranked] == [
        (TEXTS[rank["index"]], rank["score"]) for rank in plain[:2]
    ]
    return ", ".join(f"{node.score:.4f} {node.text!r}" for node in ranked)


CLIENTS = {
    "llama-index-TEI-embedding": llama_index_embedding,
    "llama-index-TEI-rerank": llama_index_rerank,
    "haystack-TEI-embedder": tei_embedder,
    "haystack-TEI-sparse-embedder": tei_sparse_embedder,
    "haystack-TEI-ranker": tei_ranker,
    "haystack-vLLM-ranker": vllm_ranker,
}

if __name__ == "__main__":
    print(CLIENTS[sys.argv[2]](sys.argv[1]))
