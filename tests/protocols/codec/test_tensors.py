"""Safetensors over HTTP: the bits of the JSON answer; bodies that lie are refused."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save
from starlette.datastructures import Headers

from addnorm.service.errors import InvalidInput, NotAcceptable
from addnorm.service.inference.outputs.values import Dense
from addnorm.service.protocols.codec.negotiation import JSON, negotiate, wanted_coding
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS
from addnorm.service.runtime.batch import Batch, Rows
from tests.conftest import Ask, inference_of, serving
from tests.support import web

IDS = np.array([[1, 3, 4, 0], [0, 5, 0, 2]])
MASK = np.array([[1, 1, 1, 0], [0, 1, 0, 1]])
ALL = ["activations", "logits", "pooled", "norm_stats"]


def post(
    client: httpx.Client, arrays: dict[str, Any], request: dict[str, Any] | None = None
) -> httpx.Response:
    body = save(
        {name: np.asarray(array) for name, array in arrays.items()},
        {"request": json.dumps(request or {})},
    )
    return client.post(
        "/v1/infer", content=body, headers={"content-type": SAFETENSORS, "accept": SAFETENSORS}
    )


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_, np.float32])
def test_tensors_hold_the_bits_of_the_json_answer(
    client: httpx.Client, ask: Ask, dtype: Any
) -> None:
    plain = ask("gpt", IDS.tolist(), MASK.tolist(), outputs=ALL)
    answer = post(
        client,
        {"input_ids": IDS, "attention_mask": MASK.astype(dtype)},
        {"model": "gpt", "outputs": ALL},
    )
    assert answer.headers["content-type"] == SAFETENSORS
    tensors = load(answer.content)
    expected = {
        **plain,
        **{f"norm_stats.{part}": values for part, values in plain["norm_stats"].items()},
    }
    assert sorted(tensors) == [
        "activations",
        "logits",
        "norm_stats.mean",
        "norm_stats.rstd",
        "pooled",
    ]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, np.array(expected[name], np.float32))


def test_ragged_rows_go_in_and_out_end_to_end(client: httpx.Client, ask: Ask) -> None:
    plain = ask("gpt", [[1, 3, 4], [5, 2]], outputs=["activations"])["activations"]
    answer = post(
        client, {"input_ids": np.array([1, 3, 4, 5, 2]), "lengths": np.array([3, 2])},
        {"model": "gpt", "outputs": ["activations"]},
    )  # fmt: skip
    tensors = load(answer.content)
    np.testing.assert_array_equal(tensors["activations"], np.array(plain[0] + plain[1], np.float32))
    assert tensors["lengths"].tolist() == [3, 2]


@pytest.mark.parametrize("positions", ["all", "last"])
def test_the_likeliest_tokens_have_no_id_at_pads(
    client: httpx.Client, ask: Ask, positions: str
) -> None:
    options = {"outputs": ["logits"], "logits": {"positions": positions, "top_k": 2}}
    ids, mask = [*IDS.tolist(), [0] * 4], [*MASK.tolist(), [0] * 4]
    plain = ask("gpt", ids, mask, **options)["logits"]
    tensors = load(
        post(
            client, {"input_ids": ids, "attention_mask": mask}, {"model": "gpt", **options}
        ).content
    )
    assert tensors["logits.token_ids"].dtype == np.int64
    for part, pad in (("token_ids", [-1, -1]), ("logprobs", [0, 0])):
        padding = (
            plain[part] if positions == "last" else [cell for row in plain[part] for cell in row]
        )
        filled = [pad if cell is None else cell for cell in padding]
        np.testing.assert_array_equal(
            tensors[f"logits.{part}"].reshape(-1, 2),
            np.array(filled, tensors[f"logits.{part}"].dtype),
        )


def test_float16_is_the_rounded_float32(client: httpx.Client, ask: Ask) -> None:
    arrays = {"input_ids": IDS, "attention_mask": MASK}
    options = {"model": "gpt", "outputs": ["pooled", "norm_stats"]}
    full = load(post(client, arrays, options).content)
    half = load(post(client, arrays, {**options, "dtype": "float16"}).content)
    assert half["pooled"].dtype == np.float16
    np.testing.assert_array_equal(half["pooled"], full["pooled"].astype(np.float16))
    np.testing.assert_array_equal(half["norm_stats.rstd"], full["norm_stats.rstd"])
    as_json = ask("gpt", IDS.tolist(), MASK.tolist(), outputs=["pooled"], dtype="float16")["pooled"]
    np.testing.assert_array_equal(half["pooled"], np.array(as_json, np.float16))


@pytest.fixture(scope="module")
def huge(small: Path) -> Iterator[httpx.Client]:
    """A server whose activations are far above what a trained model's are."""
    inference = inference_of(small)
    line = inference.models.find("gpt").target("fp32")

    def enlarged(batch: Batch, run: Any = line.run) -> Rows:
        rows: Rows = run(batch)
        return rows._replace(activations=rows.activations * np.float32(1e6))

    line.run = line.run_on_all_cores = enlarged
    with serving(inference) as url, web.client(base_url=url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("accept", [JSON, SAFETENSORS])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    "wanted",
    [
        {"outputs": ["activations"]},
        {"outputs": ["pooled"]},
        {"outputs": ["logits"]},
        {"outputs": ["logits"], "logits": {"positions": "last"}},
    ],
)
def test_what_float16_cannot_hold_is_rejected_by_name(
    huge: httpx.Client, wanted: dict[str, Any], ragged: bool, accept: str
) -> None:
    rows = (
        {"input_ids": [[1, 3, 4], [5, 2]]}
        if ragged
        else {"input_ids": IDS.tolist(), "attention_mask": MASK.tolist()}
    )
    body = {"model": "gpt", **rows, **wanted}
    (output,) = wanted["outputs"]
    answer = huge.post("/v1/infer", json={**body, "dtype": "float16"}, headers={"accept": accept})
    assert answer.status_code == 400, answer.content[:200]
    error = answer.json()["error"]
    assert error["param"] == "dtype"
    found = re.fullmatch(
        rf'{output} has the value (\S+), float16 holds at most 65504: ask for "dtype": "float32"',
        error["message"],
    )
    assert found, error["message"]
    assert abs(float(found[1])) > 65504
    assert huge.post("/v1/infer", json=body, headers={"accept": accept}).status_code == 200


def test_float16_keeps_what_rounds_to_its_largest_value() -> None:
    vectors = Dense(np.array([[65504, -65519.9]], np.float32)).halved("pooled")
    assert vectors.joined.tolist() == [[65504, -65504]]
    with pytest.raises(InvalidInput, match=r"the value -65520\.0"):
        Dense(np.array([[1, -65520]], np.float32)).halved("pooled")


def test_metadata_says_what_a_json_answer_says_beside_the_numbers(client: httpx.Client) -> None:
    content = post(client, {"input_ids": IDS, "attention_mask": MASK}, {"model": "gpt"}).content
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"] == {
        "model": "gpt",
        "version": "1",
        "real_tokens": "5",
        "pad_tokens": "3",
    }
    assert int.from_bytes(content[:8], "little") % 8 == 0


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no ids": ({"attention_mask": MASK}, {}, "lacks the tensor input_ids"),
    "ids as floats": ({"input_ids": IDS.astype(np.float32)}, {}, "input_ids is F32: send I64, I32"),
    "unknown tensor": (
        {"input_ids": IDS, "position_ids": IDS},
        {},
        "tensor 'position_ids' is unknown; known are input_ids, attention_mask, token_type_ids,",
    ),
    "types of another shape": (
        {"input_ids": IDS, "token_type_ids": IDS[:1]},
        {},
        "token_type_ids has shape [1, 4], input_ids has [2, 4]",
    ),
    "types of another shape, ragged": (
        {"input_ids": IDS[0], "lengths": [4], "token_type_ids": IDS[:1]},
        {},
        "token_type_ids has shape [1, 4], input_ids has [4]",
    ),
    "types as floats": (
        {"input_ids": IDS, "token_type_ids": IDS.astype(np.float32)},
        {},
        "token_type_ids is F32: send I64, I32, U8",
    ),
    "one axis": ({"input_ids": IDS[0]}, {}, "input_ids has shape [4]: 2 axes"),
    "mask of another shape": (
        {"input_ids": IDS, "attention_mask": MASK[:1]},
        {},
        "attention_mask has shape [1, 4]",
    ),
    "mask of two": (
        {"input_ids": IDS, "attention_mask": 2 * MASK},
        {},
        "attention_mask[0][0] is 2",
    ),
    "lengths and mask": (
        {"input_ids": IDS, "attention_mask": MASK, "lengths": [4]},
        {},
        "exclude each other",
    ),
    "lengths too long": (
        {"input_ids": IDS[0], "lengths": [5]},
        {},
        "lengths sum to 5, input_ids has 4",
    ),
    "lengths past 64 bits": (
        {"input_ids": IDS[0], "lengths": [2**62] * 4},
        {},
        "lengths sum to 18446744073709551616",
    ),
    "an empty sequence": (
        {"input_ids": IDS[0], "lengths": [4, 0]},
        {},
        "lengths has an empty sequence",
    ),
    "no sequence": ({"input_ids": IDS[:0]}, {}, "input_ids has shape [0, 4]"),
    "no cells": ({"input_ids": IDS[:, :0]}, {}, "input_ids has shape [2, 0]"),
    "id out of range": ({"input_ids": IDS + 10**6}, {}, "input_ids[0][0] is 1000001"),
    "unknown option": ({"input_ids": IDS}, {"pool": "mean"}, "pool is unknown"),
    "ids among the options": ({"input_ids": IDS}, {"input_ids": [[1]]}, "input_ids is unknown"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tensors_are_rejected_in_words(client: httpx.Client, case: str) -> None:
    arrays, options, words = BAD[case]
    answer = post(client, arrays, {"model": "gpt", **options})
    assert answer.status_code == 400, answer.text[:200]
    assert words in answer.json()["error"]["message"]


HEADER = b'{"input_ids":{"dtype":"I64","shape":[1,%s],"data_offsets":[0,8]}}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 8,
        (2**40).to_bytes(8, "little") + b"{}",
        len(HEADER).to_bytes(8, "little") + HEADER + b"\0" * 8,
        len(HEADER % b"2").to_bytes(8, "little") + HEADER % b"2" + b"\0" * 8,
        len(HEADER % b"1").to_bytes(8, "little") + HEADER % b"1" + b"\0" * 9,
        len(HEADER % b"1").to_bytes(8, "little") + HEADER % b"1" + b"\0" * 7,
        len(HEADER % str(2**62).encode()).to_bytes(8, "little")
        + HEADER % str(2**62).encode()
        + b"\0" * 8,
    ],
)
def test_bodies_that_lie_are_rejected(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/v1/infer", content=body, headers={"content-type": SAFETENSORS})
    assert answer.status_code == 400
    assert "not safetensors" in answer.json()["error"]["message"]


TENSOR = '{"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]}'
OTHER = TENSOR.replace("[1, 1]", "[1, 1, 1]")


def with_header(header: str) -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode() + (3).to_bytes(8, "little")


def test_no_metadata_is_no_request(client: httpx.Client) -> None:
    headers = {"content-type": SAFETENSORS}
    for header in (
        f'{{"__metadata__": null, "input_ids": {TENSOR}}}',
        f'{{"input_ids": {TENSOR}}}',
    ):
        answer = client.post("/v1/infer", content=with_header(header), headers=headers)
        assert "model is missing" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (f'{{"input_ids": {OTHER}, "input_ids": {TENSOR}}}', "its header has 'input_ids' twice"),
        (
            f'{{"input_ids": {OTHER}, "\\u0069nput_ids": {TENSOR}}}',
            "its header has 'input_ids' twice",
        ),
        (
            f'{{"__metadata__": {{"request": "1", "request": "{{}}"}}, "input_ids": {TENSOR}}}',
            "has 'request' twice",
        ),
        (
            f'{{"__metadata__": {{}}, "__metadata__": {{}}, "input_ids": {TENSOR}}}',
            "duplicate field `__metadata__`",
        ),
        (f'{{"__metadata__": [], "input_ids": {TENSOR}}}', "expected a map"),
        (f'{{"__metadata__": {{"request": null}}, "input_ids": {TENSOR}}}', "expected a string"),
        (f'{{"__metadata__": {{"request": {{}}}}, "input_ids": {TENSOR}}}', "expected a string"),
        (
            f'{{"__metadata__": {{"request": "no json"}}, "input_ids": {TENSOR}}}',
            "the body is not a JSON object",
        ),
        (
            f'{{"__metadata__": {{"request": "[]"}}, "input_ids": {TENSOR}}}',
            "the body is not a JSON object",
        ),
        (
            f'{{"__metadata__": {{"request": "null"}}, "input_ids": {TENSOR}}}',
            "the body is not a JSON object",
        ),
        (
            f'{{"__metadata__": {{"request": ""}}, "input_ids": {TENSOR}}}',
            "the body is not a JSON object",
        ),
        ('{"input_ids": 5}', "the body is not safetensors"),
        ("[]", "the body is not safetensors"),
        ("null", "the body is not safetensors"),
    ],
)
def test_odd_headers_are_rejected_in_words(client: httpx.Client, header: str, words: str) -> None:
    answer = client.post(
        "/v1/infer", content=with_header(header), headers={"content-type": SAFETENSORS}
    )
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "shape", [[2**60, 0], [0, 2**60], [2**63, 0], [2**60, 0, 0], [2**31, 2**31, 0], [2**31, 0], [0]]
)
@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "lengths"])
def test_an_axis_beside_one_of_none_may_not_be_endless(
    client: httpx.Client, name: str, shape: list[int]
) -> None:
    tensors = {"input_ids": {"dtype": "I64", "shape": [1, 0], "data_offsets": [0, 0]}}
    tensors[name] = {"dtype": "I64", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"__metadata__": {"request": '{"model": "notebook"}'}, **tensors}).encode()
    body = len(header).to_bytes(8, "little") + header
    assert (
        client.post("/v1/infer", content=body, headers={"content-type": SAFETENSORS}).status_code
        == 400
    )


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (SAFETENSORS, SAFETENSORS),
        (f"{SAFETENSORS}, */*", SAFETENSORS),
        (f"{JSON};q=0.5, {SAFETENSORS};q=0.4", JSON),
        (f"{JSON};q=0.5, {SAFETENSORS}", SAFETENSORS),
        (f"{JSON};q=0, */*;q=0.1", SAFETENSORS),
        (f"text/html, {SAFETENSORS.upper()};Q=0.9", SAFETENSORS),
        (f"{SAFETENSORS};q=high", SAFETENSORS),
        # a server may disregard what it cannot fulfil
        ("text/event-stream", JSON),
        ("application/vnd.elasticsearch+json;compatible-with=8", JSON),
        ("*", JSON),
        (f"{JSON};q=high", JSON),
        (f"text/html, {JSON};q=0, {SAFETENSORS};q=0", JSON),
    ],
)
def test_accept_is_weighed(accept: str, chosen: str) -> None:
    assert negotiate(Headers({"accept": accept} if accept else {}), (JSON, SAFETENSORS)) == chosen


def test_who_asks_for_safetensors_gets_no_json() -> None:
    with pytest.raises(NotAcceptable, match=r"offered are application/json$"):
        negotiate(Headers({"accept": f"text/html, {SAFETENSORS}"}), (JSON,))
    assert negotiate(Headers({"accept": f"{SAFETENSORS};q=0"}), (JSON,)) == JSON


@pytest.mark.parametrize(
    ("sent", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0", None),
        ("gzip, deflate", None),
        ("br", None),
        ("", None),
    ],
)
def test_one_coding_named_alone_is_a_wish(sent: str, coding: str | None) -> None:
    assert wanted_coding(Headers({"accept-encoding": sent} if sent else {})) == coding


def test_a_header_of_very_many_tensors_is_rejected_unread(client: httpx.Client) -> None:
    header = json.dumps(
        {f"t{n}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(2000)}
    ).encode()
    body = len(header).to_bytes(8, "little") + header
    answer = client.post("/v1/infer", content=body, headers={"content-type": SAFETENSORS})
    assert answer.status_code == 400
    assert (
        f"its header has {len(header)} bytes, the limit is 65536"
        in answer.json()["error"]["message"]
    )


OF_IDS = '"input_ids":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]}'
EMPTY = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
PARTS = {
    "tensors": (",".join(f'"{number}":{EMPTY}' for number in range(8)), "6 objects"),
    "axes": (OF_IDS.replace("1,1", "1," * 100 + "1"), "100 values"),
    "strings": (
        f'{OF_IDS},"__metadata__":{{"request":"{{}}"' + ',"a":""' * 50 + "}",
        "100 strings",
    ),
}


@pytest.mark.parametrize("what", PARTS)
def test_parts_of_a_header_are_counted_before_they_are_objects(
    client: httpx.Client, what: str
) -> None:
    parts, limit = PARTS[what]
    header = f"{{{parts}}}".encode()
    body = len(header).to_bytes(8, "little") + header + bytes(8)
    answer = client.post("/v1/infer", content=body, headers={"content-type": SAFETENSORS})
    assert answer.status_code == 400
    assert f"has more than {limit}, the limit" in answer.json()["error"]["message"]


def test_a_request_beside_tensors_may_have_any_characters(client: httpx.Client) -> None:
    answer = post(client, {"input_ids": IDS}, {"model": '{"[,' * 200})
    assert answer.json()["error"]["code"] == "model_not_found"
