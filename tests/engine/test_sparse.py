"""Sparse vectors: against plain numpy, their bits, their bounds."""

from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from addnorm.service.engine.batch import Batch, Floats, Padding, Rows, offsets_of
from addnorm.service.engine.heads import KeptRows
from addnorm.service.engine.outputs import OutputInputs, Sparse, SparseVectors
from addnorm.service.errors import InvalidInput, NotFinite

LENGTHS = (1, 300, 5, 200, 512, 2)  # heads run on 256 rows at a time
MODEL = "masked-lm"
SEQUENCES = [[2, 4, 5, 3], [2, 3], [2, 8, 9, 10, 14, 3], [2, 11, 12, 13, 3]]


def made(
    logits: Floats, lengths: tuple[int, ...], top_k: int | None = None, activation: str = "relu"
) -> SparseVectors:
    """Sparse vectors of an engine whose rows are the logits. A length of 0 is a row of pads
    only."""
    engine: Any = SimpleNamespace(head=lambda output, rows: rows, head_rows=lambda output: 256)
    heads = {"logits": SimpleNamespace(pick="every")}
    manifest = SimpleNamespace(heads=heads, sparse_activation=activation)
    bundle: Any = SimpleNamespace(manifest=manifest, width=lambda output: logits.shape[1])
    sizes = np.array(lengths)
    batch = Batch(np.zeros(len(logits), np.int64), offsets_of(sizes[sizes > 0]))
    rows, padding = Rows(logits, logits, logits), Padding(sizes, None)
    return Sparse(top_k).make(OutputInputs(bundle, engine, batch, padding, KeptRows(rows, {})))


def drawn(num_rows: int, width: int) -> Floats:
    return np.random.default_rng(0).normal(-1, 1, (num_rows, width)).astype(np.float32)


def test_entries_are_the_largest_log1p_relu_of_the_sequences_tokens() -> None:
    logits = drawn(sum(LENGTHS), 50)
    vectors = made(logits, LENGTHS)
    ends = np.cumsum(LENGTHS)
    for end, length, indices, values in zip(
        ends, LENGTHS, vectors.indices, vectors.values, strict=True
    ):
        expected = np.log1p(np.maximum(logits[end - length : end], 0)).max(0)
        assert indices.tolist() == np.flatnonzero(expected).tolist()
        np.testing.assert_allclose(values, expected[indices], rtol=1e-6)


def test_a_logarithm_may_be_taken_twice() -> None:
    logits = drawn(3, 50)
    vectors = made(logits, (3,), activation="log1p_relu")
    expected = np.log1p(np.log1p(np.maximum(logits, 0))).max(0)
    assert vectors.indices[0].tolist() == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(vectors.values[0], expected[vectors.indices[0]], rtol=1e-6)


def test_top_k_keeps_the_largest_and_of_equal_ones_the_first() -> None:
    logits = np.array([[3, -1, 2, 2, 0.5], [1, -1, 2, 2, 2]], np.float32)
    vectors = made(logits, (1, 0, 1), 2)
    assert [places.tolist() for places in vectors.indices] == [[0, 2], [], [2, 3]]
    np.testing.assert_allclose(vectors.values[0], np.log1p([3, 2]), rtol=1e-6)


def test_more_entries_than_expected_are_rejected_but_of_one_sequence_alone() -> None:
    """The answer's size was estimated by its tokens."""
    logits = np.ones((2, 100), np.float32)
    assert len(made(logits[:1], (1,)).indices[0]) == 100
    with pytest.raises(InvalidInput, match=r"more than 64 entries .* 2 sequences of 2 tokens"):
        made(logits, (1, 1))
    assert [len(found) for found in made(logits, (1, 1), 99).indices] == [99, 99]


def test_what_is_not_finite_is_named() -> None:
    logits = drawn(4, 8)
    logits[2, 3] = np.inf
    with pytest.raises(NotFinite) as raised:
        made(logits, (1, 2, 1))
    assert raised.value.sequence == 1


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/infer", json={"model": MODEL, "outputs": ["sparse"], **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_company_and_padding_change_no_bit(task_client: httpx.Client) -> None:
    together = ask(task_client, input_ids=SEQUENCES)["sparse"]
    assert [ask(task_client, input_ids=[ids])["sparse"][0] for ids in SEQUENCES] == together
    left = [[0] * (8 - len(ids)) + ids for ids in [*SEQUENCES, []]]
    mask = [[int(index >= 8 - len(ids)) for index in range(8)] for ids in [*SEQUENCES, []]]
    padded = ask(task_client, input_ids=left, attention_mask=mask)["sparse"]
    assert padded == [*together, {"indices": [], "values": []}]
    logits = ask(task_client, input_ids=SEQUENCES, outputs=["logits"])["logits"]
    for vector, rows in zip(together, logits, strict=True):
        expected = np.log1p(np.maximum(rows, 0)).max(0)
        assert vector["indices"] == np.flatnonzero(expected).tolist()
        np.testing.assert_allclose(vector["values"], expected[vector["indices"]], rtol=1e-6)


def test_tensors_are_the_same_entries_end_to_end(task_client: httpx.Client) -> None:
    plain = ask(task_client, input_ids=SEQUENCES, sparse={"top_k": 3})["sparse"]
    body = {"model": MODEL, "input_ids": SEQUENCES, "outputs": ["sparse"], "sparse": {"top_k": 3}}
    headers = {"accept": "application/vnd.safetensors"}
    arrays = load(task_client.post("/v1/infer", json=body, headers=headers).content)
    assert arrays["sparse.lengths"].tolist() == [len(vector["indices"]) for vector in plain]
    for part in ("indices", "values"):
        joined = np.concatenate([vector[part] for vector in plain])
        np.testing.assert_array_equal(
            arrays[f"sparse.{part}"], joined.astype(arrays[f"sparse.{part}"].dtype)
        )


def test_models_name_it_where_they_have_it(task_client: httpx.Client) -> None:
    models = task_client.get("/v1/models").json()["data"]
    assert [entry["id"] for entry in models if "sparse" in entry["outputs"]] == [MODEL]
    outputs = task_client.get(f"/v2/models/{MODEL}").json()["outputs"]
    assert "sparse" not in [output["name"] for output in outputs]
