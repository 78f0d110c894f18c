"""What the programs beside this file ask of Addnorm: a vector of the query, scores of texts."""

import argparse
import json
import sys

import httpx
import numpy as np
import pyarrow.parquet as pq

CANDIDATES = 30  # that an index finds, of which the reranker picks
parser = argparse.ArgumentParser()
parser.add_argument("vectors", help="what `addnorm embed` wrote")
parser.add_argument("query")
parser.add_argument("--index", required=True, help="file or folder; made if it is not there")
parser.add_argument("--model", required=True, help="that made the vectors")
parser.add_argument("--reranker", help="a model of the server; without, the order is the index's")
parser.add_argument("--top", type=int, default=5)
parser.add_argument("--url", default="http://localhost:8000")


def read(path):
    """Texts, their vectors `[n, width]` float32, and the fingerprint of what made them."""
    table = pq.read_table(path)
    vectors = table.column("vector").combine_chunks()
    stored = json.loads(table.schema.metadata[b"addnorm.fingerprint"])["fingerprint"]
    numbers = vectors.flatten().to_numpy().reshape(len(vectors), -1)
    return table.column("text").to_pylist(), numbers, stored


def embed(options, stored):
    """The query's vector. The program ends if the server is not what made the index."""
    body = {"model": options.model, "input": options.query}
    answer = httpx.post(f"{options.url}/v1/embeddings", json=body, timeout=60).raise_for_status()
    if (now := answer.headers["x-addnorm-fingerprint"]) != stored:
        sys.exit(f"the index was made by {stored}, the server is {now}: see `addnorm check`")
    return np.float32(answer.json()["data"][0]["embedding"])


def show(options, found):
    """found: (score, row, text), the best first."""
    if options.reranker:
        body = {"model": options.reranker, "query": options.query}
        body["documents"] = [text for _, _, text in found]
        answer = httpx.post(f"{options.url}/v1/rerank", json=body, timeout=60).raise_for_status()
        results = answer.json()["results"]  # the best first
        found = [(one["relevance_score"], *found[one["index"]][1:]) for one in results]
    for score, row, text in found[: options.top]:
        print(f"{score:.3f}  {row:4}  {text[:80]}")
