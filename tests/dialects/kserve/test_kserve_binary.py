"""V2's binary tensors: the bits of the JSON answer; bodies that lie are refused."""

import gzip
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import client_of, inference_of
from tests.support.v2_bodies import LENGTH, body, parted, tensors

IDS = np.array([[1, 3, 4, 0, 0], [0, 5, 0, 2, 1]])
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
DTYPES = {"INT64": "<i8", "INT32": "<i4", "UINT8": "u1", "BOOL": "?", "FP32": "<f4"}


def described(name: str, array: np.ndarray, datatype: str = "INT64", **more: Any) -> dict[str, Any]:
    size = {"binary_data_size": array.astype(DTYPES[datatype]).nbytes}
    about = {"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": size}
    return {**about, **more}


def post(client: httpx.Client, parts: tuple[bytes, bytes], **headers: Any) -> httpx.Response:
    """Without a content type, as the Python client sends it."""
    sent = {LENGTH: str(len(parts[0])), **headers}
    return client.post("/v2/models/notebook/infer", content=b"".join(parts), headers=sent)


def good(datatype: str = "INT64", mask: str = "INT64", **more: Any) -> tuple[bytes, bytes]:
    inputs = [described("input_ids", IDS, datatype), described("attention_mask", MASK, mask)]
    return body(
        inputs, IDS.astype(DTYPES[datatype]).tobytes() + MASK.astype(DTYPES[mask]).tobytes(), **more
    )


@pytest.fixture(scope="module")
def expected(client: httpx.Client) -> dict[str, np.ndarray]:
    """The tensors that a request in JSON alone gets."""
    inputs = [
        {"name": name, "shape": [2, 5], "datatype": "INT64", "data": data.tolist()}
        for name, data in (("input_ids", IDS), ("attention_mask", MASK))
    ]
    return tensors(client.post("/v2/models/notebook/infer", json={"inputs": inputs}))


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor, expected[name])


@pytest.mark.parametrize("datatype", ["INT64", "INT32"])
@pytest.mark.parametrize("mask", DTYPES)
def test_inputs_of_every_datatype_may_come_as_bytes(
    client: httpx.Client, expected: dict[str, np.ndarray], datatype: str, mask: str
) -> None:
    assert_equal(tensors(post(client, good(datatype, mask))), expected)


def test_outputs_go_out_as_bytes_in_the_order_asked(
    client: httpx.Client, expected: dict[str, np.ndarray]
) -> None:
    answer = post(client, good(parameters={"binary_data_output": True}, id="7"))
    assert_equal(tensors(answer), expected)
    about, raw = parted(answer)
    assert list(about) == ["id", "model_name", "model_version", "outputs"]
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert [set(output) for output in about["outputs"]] == [
        {"name", "datatype", "shape", "parameters"}
    ] * 5
    assert sum(output["parameters"]["binary_data_size"] for output in about["outputs"]) == len(raw)
    names = ("norm_rstd", "pooled")
    outputs = [{"name": name} for name in names]
    asked = post(client, good(outputs=outputs, parameters={"binary_data_output": True}))
    assert_equal(tensors(asked), {name: expected[name] for name in names})


def test_each_output_may_say_for_itself(
    client: httpx.Client, expected: dict[str, np.ndarray]
) -> None:
    as_json, as_bytes = {"binary_data": False}, {"binary_data": True}
    outputs = [
        {"name": "logits", "parameters": as_bytes},
        {"name": "pooled", "parameters": as_json},
        {"name": "activations"},
    ]
    for default in (False, True):
        answer = post(client, good(outputs=outputs, parameters={"binary_data_output": default}))
        names = [output["name"] for output in outputs]
        assert_equal(tensors(answer), {name: expected[name] for name in names})
        kinds = ["data" in output for output in parted(answer)[0]["outputs"]]
        assert kinds == [False, True, not default]


def test_no_byte_output_means_plain_json(client: httpx.Client) -> None:
    outputs = [{"name": "pooled", "parameters": {"binary_data": False}}]
    answer = post(client, good(outputs=outputs, parameters={"binary_data_output": True}))
    assert answer.headers["content-type"] == "application/json"
    assert LENGTH not in answer.headers


def test_inputs_may_mix_bytes_and_json_in_any_order(
    client: httpx.Client, expected: dict[str, np.ndarray]
) -> None:
    mask = {"name": "attention_mask", "shape": [2, 5], "datatype": "BOOL"}
    mask["data"] = MASK.astype(bool).tolist()
    for inputs in ([mask, described("input_ids", IDS)], [described("input_ids", IDS), mask]):
        assert_equal(tensors(post(client, body(inputs, IDS.tobytes()))), expected)
    swapped = [described("attention_mask", MASK, "UINT8"), described("input_ids", IDS)]
    # ten bytes, so that the ids are not aligned
    raw = MASK.astype(np.uint8).tobytes() + IDS.tobytes()
    assert_equal(tensors(post(client, body(swapped, raw))), expected)


@pytest.mark.parametrize(
    "media_type", ["application/octet-stream", "application/json", "text/plain"]
)
def test_the_header_decides_and_no_content_type(
    client: httpx.Client, expected: dict[str, np.ndarray], media_type: str
) -> None:
    assert_equal(tensors(post(client, good(), **{"content-type": media_type})), expected)
    whole = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
    assert post(client, body([whole], b""), **{"content-type": media_type}).status_code == 200


def in_members(content: bytes) -> bytes:
    size = 1 + len(content) // 20
    return b"".join(gzip.compress(content[at : at + size]) for at in range(0, len(content), size))


def raw_deflate(content: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(content) + stream.flush()


@pytest.mark.parametrize("pad", [0, 200_000], ids=["", "large"])
@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", in_members), ("X-Gzip", gzip.compress), ("deflate", raw_deflate)],
    ids=["of several members", "by its old name", "without zlib's head"],
)
def test_codings_as_other_clients_write_them(
    client: httpx.Client, expected: dict[str, np.ndarray], coding: str, compress: Any, pad: int
) -> None:
    head, raw = good()
    head += pad * b" "  # so long that it is not decompressed at once
    wish = "deflate" if coding == "deflate" else "gzip"
    headers = {LENGTH: str(len(head)), "content-encoding": coding, "accept-encoding": wish}
    path = "/v2/models/notebook/infer"
    answer = client.post(path, content=compress(head + raw), headers=headers)
    assert answer.headers["content-encoding"] == wish
    assert_equal(tensors(answer), expected)
    for wrong, words in (
        (compress(head + raw)[:-5], "is cut short"),
        (compress(head + raw) + b"more", "has bytes after its end"),
        (1025 * gzip.compress(b"") if coding == "gzip" else b"no", "the body"),
    ):
        answer = client.post(path, content=wrong, headers=headers)
        assert answer.status_code == 400
        assert words in answer.text


def ids(raw: bytes = bytes(16), **changes: Any) -> tuple[bytes, bytes]:
    return body([described("input_ids", np.zeros((1, 2), np.int64), **changes)], raw)


LIMIT = 2**20


def test_a_bomb_is_rejected_and_memory_stays_flat(notebook: Path) -> None:
    bombs = {
        coding: make(bytes(64 * LIMIT))
        for coding, make in (("gzip", gzip.compress), ("deflate", zlib.compress))
    }
    with client_of(inference_of(notebook.parent.parent, max_body_bytes=LIMIT)) as client:
        post(client, good())
        tracemalloc.start()
        for coding, bomb in bombs.items():
            assert len(bomb) < LIMIT
            answer = client.post(
                "/v2/models/notebook/infer", content=bomb, headers={"content-encoding": coding}
            )
            assert (answer.status_code, list(answer.json())) == (413, ["error"])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 6 * LIMIT


def test_shapes_that_lie_cost_no_memory(client: httpx.Client) -> None:
    tracemalloc.start()
    for shape in ([2**31, 2**31], [2**31, 1], [1, 2**31]):
        assert post(client, ids(shape=shape)).status_code == 400
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < LIMIT
