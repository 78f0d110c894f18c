"""Texts as a tensor of BYTES: the bits of `/v1/embeddings`, and words for what does not fit."""

import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.service.loading.loader import load_all
from addnorm.service.settings import Settings
from tests.support.grpc_client import calling
from tests.support.grpc_client import tensors as over_grpc
from tests.support.texts import LONG, MAX_TEXT_TOKENS, TEXT_MODEL
from tests.support.v2_bodies import LENGTH, body, tensors

TEXTS = ["Pads are dropped.", "", "padding costs nothing ü"]
PATH = f"/v2/models/{TEXT_MODEL}/infer"


def tensor(texts: Any, name: str = "input_text", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts, **more}


def serialized(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def infer(client: httpx.Client, *inputs: Any, **more: Any) -> Any:
    return client.post(PATH, json={"inputs": inputs, **more}).json()


@pytest.fixture(scope="module")
def vectors(text_client: httpx.Client) -> list[list[float]]:
    answer = text_client.post("/v1/embeddings", json={"input": TEXTS, "model": TEXT_MODEL}).json()
    return [each["embedding"] for each in answer["data"]]


@pytest.mark.parametrize(
    "sent",
    [
        tensor(TEXTS),
        tensor(TEXTS, "text", shape=[3, 1]),
        tensor([[text] for text in TEXTS], shape=[3, 1]),
    ],
)
def test_texts_in_json_have_the_bits_of_embeddings(
    text_client: httpx.Client, vectors: list[list[float]], sent: Any
) -> None:
    (output,) = infer(text_client, sent)["outputs"]
    assert (output["name"], output["shape"][0]) == ("pooled", len(TEXTS))
    assert np.array_equal(np.reshape(output["data"], output["shape"]), vectors)


def test_texts_as_bytes_have_the_bits_of_embeddings(
    text_client: httpx.Client, vectors: list[list[float]]
) -> None:
    raw = serialized(*(text.encode() for text in TEXTS))
    sent = tensor(TEXTS, parameters={"binary_data_size": len(raw)})
    del sent["data"]
    parts = body([sent], raw, parameters={"binary_data_output": True})
    answer = text_client.post(
        PATH, content=parts[0] + parts[1],
        headers={LENGTH: str(len(parts[0]))},
    )  # fmt: skip
    assert np.array_equal(tensors(answer)["pooled"], np.float32(vectors))


def test_a_grid_for_texts_is_as_wide_as_the_longest(text_client: httpx.Client) -> None:
    outputs = [{"name": "activations"}, {"name": "pooled"}]
    found = infer(text_client, tensor(TEXTS), outputs=outputs)["outputs"]
    shown = text_client.post(
        "/v1/tokenize", json={"texts": TEXTS, "model": TEXT_MODEL}
    ).json()["input_ids"]  # fmt: skip
    assert found[0]["shape"][:2] == [3, max(map(len, shown))]
    rows = np.reshape(found[0]["data"], found[0]["shape"])
    assert not rows[1, len(shown[1]) :].any()
    assert rows[1, : len(shown[1])].any()


def test_pairs_are_rows_of_two(text_client: httpx.Client) -> None:
    pairs = [["a", "b c"], ["", "a"]]
    outputs = [{"name": "pooled"}]
    (output,) = infer(
        text_client, tensor(pairs, shape=[2, 2]), outputs=outputs, parameters={"normalize": False}
    )["outputs"]
    native = {"texts": pairs, "model": TEXT_MODEL, "outputs": ["pooled"]}
    answer = text_client.post("/v1/infer", json=native).json()["pooled"]
    assert np.array_equal(np.reshape(output["data"], output["shape"]), answer)


def test_truncate_cuts_and_is_refused_for_ids(text_client: httpx.Client) -> None:
    long = tensor([LONG])
    assert f"({MAX_TEXT_TOKENS})" in infer(text_client, long)["error"]
    assert infer(text_client, long, parameters={"truncate": True})["outputs"]
    ids = {"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [1]}
    words = infer(text_client, ids, parameters={"truncate": True})["error"]
    assert words.startswith("parameters.truncate is set, but it is for texts")


IDS = {"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [1]}
BAD: dict[str, tuple[list[Any], str]] = {
    "beside ids": ([tensor(["a"]), IDS], "inputs has 2 tensors: 'input_text' has texts"),
    "of a name for ids": (
        [tensor(["a"], "input_ids")],
        "input_ids has datatype 'BYTES': send INT64, INT32",
    ),
    "of another datatype": ([{**IDS, "name": "text"}], "and texts of datatype BYTES"),
    "a number": ([tensor(["a", 1])], "input_text.data[1] is 1, no text"),
    "too few": ([tensor(["a"], shape=[2])], "input_text has 1 texts, its shape [2] 2"),
    "triples": ([tensor(["a"] * 3, shape=[1, 3])], "input_text.shape is [1, 3]: send [texts]"),
    "too many": ([tensor([], shape=[2**31])], "2147483648 texts"),
    "no data": ([{**tensor(["a"]), "data": None}], "input_text has 0 texts"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_said(text_client: httpx.Client, case: str) -> None:
    inputs, words = BAD[case]
    assert words in infer(text_client, *inputs)["error"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x01", "input_text[0] ends at byte 5 of 1"),
        (serialized(b"a") + struct.pack("<I", 9) + b"b", "input_text[1] ends at byte 18 of 10"),
        (serialized(b"a", b"\xff"), "input_text[1] is no UTF-8: invalid start byte at its byte 0"),
    ],
)
def test_bytes_that_lie_are_said(text_client: httpx.Client, raw: bytes, words: str) -> None:
    sent = tensor(["a", "b"], parameters={"binary_data_size": len(raw)})
    del sent["data"]
    parts = body([sent], raw)
    answer = text_client.post(
        PATH, content=parts[0] + parts[1],
        headers={LENGTH: str(len(parts[0]))},
    )  # fmt: skip
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize("raw", [True, False])
def test_texts_over_grpc_have_the_bits_of_embeddings(
    text_bundles: Path, vectors: list[list[float]], raw: bool
) -> None:
    pytest.importorskip("grpc")
    encoded = [text.encode() for text in TEXTS]
    about: dict[str, Any] = {"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES"}
    if not raw:
        about["contents"] = {"bytes_contents": encoded}
    sent = {"raw_input_contents": [serialized(*encoded)]} if raw else {}
    with calling(load_all(text_bundles, Settings(worker_threads=1))) as (call, _, _):
        answer = call("ModelInfer", model_name=TEXT_MODEL, inputs=[about], **sent)
    assert np.array_equal(over_grpc(answer)["pooled"], np.float32(vectors))
