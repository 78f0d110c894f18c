"""bge-m3's dense, sparse and token vectors, beside FlagEmbedding's formulas on the same rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.conftest import client_of, inference_of
from tests.support.multi_vector import flag_layers

TEXTS = ["pads, the same text.", "padding costs nothing, nothing."]


@pytest.fixture(scope="module")
def client(three_kinds_bundles: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(three_kinds_bundles)) as client:
        yield client


def infer(client: httpx.Client, *outputs: str, **fields: Any) -> dict[str, Any]:
    body = {"texts": TEXTS, "outputs": outputs, "input_type": "document", **fields}
    answer = client.post("/v1/infer", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_one_request_has_all_three_kinds(client: httpx.Client) -> None:
    answer = infer(client, "activations", "pooled", "sparse", "token_vectors", normalize=True)
    ids = client.post("/v1/tokenize", json={"texts": TEXTS}).json()["input_ids"]
    layers, normalize = flag_layers(), torch.nn.functional.normalize
    for index, (rows, row_ids) in enumerate(zip(answer["activations"], ids, strict=True)):
        states = torch.tensor(rows)
        with torch.no_grad():
            vectors = normalize(layers["colbert_linear.pt"](states[1:]), dim=1)
            weights = layers["sparse_linear.pt"](states)[:, 0].relu().tolist()
        np.testing.assert_allclose(answer["token_vectors"][index], vectors, atol=1e-5)
        np.testing.assert_allclose(answer["pooled"][index], normalize(states[0], dim=0), atol=1e-5)
        largest = dict[int, float]()
        for token, weight in zip(row_ids[1:-1], weights[1:-1], strict=True):
            largest[token] = max(weight, largest.get(token, 0.0))
        sparse = answer["sparse"][index]
        expected = {token: weight for token, weight in sorted(largest.items()) if weight}
        assert sparse["indices"] == list(expected)
        np.testing.assert_allclose(sparse["values"], list(expected.values()), atol=1e-5)


def test_other_routes_have_the_same_numbers(client: httpx.Client) -> None:
    answer = infer(client, "pooled", "sparse", "token_vectors", normalize=True)
    data = client.post("/v1/embeddings", json={"input": TEXTS}).json()["data"]
    assert [entry["embedding"] for entry in data] == answer["pooled"]
    for entries, sparse in zip(
        client.post("/embed_sparse", json={"inputs": TEXTS}).json(), answer["sparse"], strict=True
    ):
        assert [entry["index"] for entry in entries] == sparse["indices"]
        assert [entry["value"] for entry in entries] == sparse["values"]
    query, document = map(np.array, answer["token_vectors"])
    body = {"query": TEXTS[0], "documents": TEXTS[1:]}
    (result,) = client.post("/v1/rerank", json=body).json()["results"]
    expected = (query @ document.T).max(1).mean()
    assert result["relevance_score"] == pytest.approx(expected, abs=1e-5)


def test_chunks_have_means_where_the_model_takes_the_first_row(client: httpx.Client) -> None:
    body = {"input": ["pads, ", "the same text."], "late_chunking": True, "normalized": False}
    data = client.post("/v1/embeddings", json=body).json()["data"]
    spans = {"spans": [[[0, 6], [6, 20]], []], "pooling": "mean"}
    expected = infer(client, "pooled", **spans)["pooled"][0]
    assert [entry["embedding"] for entry in data] == expected
    answer = client.post("/v1/embeddings", json={**body, "dtype": "int8"})
    assert "are pooled by 'first', not 'mean'" in answer.json()["error"]["message"]
