"""llama-index's embedding and reranker for text-embeddings-inference."""

import httpx

QUERY, TEXTS = "the same text", ["pads are dropped", "padding costs nothing.", "a b c"]


def embedding(url: str) -> str:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="embedder", base_url=url)
    vectors = client.get_text_embedding_batch(TEXTS)
    assert vectors == httpx.post(f"{url}/embed", json={"inputs": TEXTS}).json()
    assert client.get_query_embedding(TEXTS[0]) == vectors[0]
    return f"{len(vectors)} vectors of {len(vectors[0])}"


def rerank(url: str) -> str:
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    client = TextEmbeddingInference(base_url=url, top_n=2)
    ranked = client.postprocess_nodes(nodes, QueryBundle(QUERY))
    plain = httpx.post(f"{url}/rerank", json={"query": QUERY, "texts": TEXTS}).json()
    assert [(node.text, node.score) for node in ranked] == [
        (TEXTS[rank["index"]], rank["score"]) for rank in plain[:2]
    ]
    return ", ".join(f"{node.score:.4f} {node.text!r}" for node in ranked)


CLIENTS = {"llama-index TEI embedding": embedding, "llama-index TEI rerank": rerank}
