"""A folder as MultiVectorEncoder writes it: queries, documents, and the vectors of their tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from torch import nn

from tests.conftest import client_of, inference_of
from tests.support import multi_vector
from tests.support.multi_vector import QUERY_LENGTH, TYPES

TEXT = "pads, the same text."


@pytest.fixture(scope="module")
def layers() -> dict[str, nn.Linear]:
    return multi_vector.layers()


@pytest.fixture(scope="module")
def client(multi_vector_bundles: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(multi_vector_bundles)) as client:
        yield client


def infer(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/infer", json={"outputs": ["token_vectors"], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("input_type", TYPES)
def test_a_type_has_its_prompt_and_leaves_its_tokens_out(
    client: httpx.Client, layers: dict[str, nn.Linear], input_type: str
) -> None:
    prompt, skipped = TYPES[input_type]
    text = "same" if input_type == "query" else TEXT  # queries are short
    options = {"input_type": input_type, "normalize": True}
    (vectors,) = infer(client, texts=[text], **options)["token_vectors"]
    plain = {"texts": [prompt + text]}
    (tokens,) = client.post("/v1/tokenize", json=plain).json()["tokens"]
    kept = [index for index, token in enumerate(tokens) if token not in skipped]
    assert (len(kept) < len(tokens)) == bool(skipped)
    (rows,) = infer(client, outputs=["activations"], **plain)["activations"]
    with torch.no_grad():
        expected = nn.functional.normalize(layers["tokens"](torch.tensor(rows)[kept]), dim=1)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize("input_type", TYPES)
def test_tokenize_shows_the_tokens_of_a_type(client: httpx.Client, input_type: str) -> None:
    body = {"texts": [TEXT], "input_type": input_type, "truncate": True}
    answer = client.post("/v1/tokenize", json=body).json()
    prompt = TYPES[input_type][0].split()
    assert answer["tokens"][0][: 1 + len(prompt)] == ["[CLS]", *prompt]
    assert answer["num_tokens"][0] <= {"query": QUERY_LENGTH}.get(input_type, 30)


def test_company_changes_no_bit(client: httpx.Client) -> None:
    texts = [TEXT, "a", "padding costs nothing, nothing."]
    together = infer(client, texts=texts, input_type="document")["token_vectors"]
    alone = [infer(client, texts=[text], input_type="document") for text in texts]
    assert [answer["token_vectors"][0] for answer in alone] == together


def test_a_long_query_is_cut_to_the_limit_of_queries(client: httpx.Client) -> None:
    body = {"texts": [TEXT], "input_type": "query", "outputs": ["token_vectors"]}
    refused = client.post("/v1/infer", json=body).json()["error"]["message"]
    assert refused.startswith("texts[0] has 10 tokens, 4 more than colbert/1 takes of a query (6)")
    (vectors,) = infer(client, **body, truncate=True)["token_vectors"]
    assert len(vectors) == QUERY_LENGTH
    assert len(infer(client, texts=[TEXT])["token_vectors"][0]) == 8, "all tokens without a type"


def test_tensors_have_lengths_of_their_own(client: httpx.Client) -> None:
    body = {"texts": [TEXT, "a"], "input_type": "document", "outputs": ["token_vectors"]}
    plain = infer(client, **body)["token_vectors"]
    headers = {"accept": "application/vnd.safetensors"}
    arrays = load(client.post("/v1/infer", json=body, headers=headers).content)
    assert arrays["token_vectors.lengths"].tolist() == [len(rows) for rows in plain]
    assert arrays["token_vectors.lengths"].tolist() != arrays["lengths"].tolist()
    np.testing.assert_array_equal(arrays["token_vectors"], np.concatenate(plain).astype(np.float32))


def test_spans_go_through_the_pooled_head(
    client: httpx.Client, layers: dict[str, nn.Linear]
) -> None:
    options = {"texts": [TEXT], "spans": [[[0, 5], [6, 20]]]}
    (vectors,) = infer(client, outputs=["pooled"], **options)["pooled"]
    (rows,) = infer(client, outputs=["activations"], texts=[TEXT])["activations"]
    means = torch.stack([torch.tensor(rows)[start:end].mean(0) for start, end in ((1, 3), (3, 7))])
    with torch.no_grad():
        np.testing.assert_allclose(vectors, layers["pooled"](means), atol=1e-5)
