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

from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.outputs.values import Dense
from addnorm.service.errors import InvalidInput, NotAcceptable
from addnorm.service.wire.codec.negotiation import JSON, negotiate, wanted_coding
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.conftest import Ask, client_of, inference_of

IDS = np.array([[1, 3, 4, 0], [0, 5, 0, 2]])
MASK = np.array([[1, 1, 1, 0], [0, 1, 0, 1]])
ALL = ["activations", "logits", "pooled", "norm_stats"]


def post(client: httpx.Client, arrays: dict[str, Any], request: dict[str, Any]) -> httpx.Response:
    parts = {name: np.asarray(array) for name, array in arrays.items()}
    headers = {"content-type": SAFETENSORS, "accept": SAFETENSORS}
    body = save(parts, {"request": json.dumps(request)})
    return client.post("/v1/infer", content=body, headers=headers)


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
    for part, values in plain.pop("norm_stats").items():
        plain[f"norm_stats.{part}"] = values
    parts = ["norm_stats.mean", "norm_stats.rstd"]
    assert sorted(tensors) == ["activations", "logits", *parts, "pooled"]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, np.array(plain[name], np.float32))


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
    with client_of(inference, timeout=30) as client:
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
    match = re.fullmatch(
        rf'{output} has the value (\S+), the limit of float16 is 65504: send "dtype": "float32"',
        error["message"],
    )
    assert match, error["message"]
    assert abs(float(match[1])) > 65504
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
        "truncated_texts": "0",
    }
    assert int.from_bytes(content[:8], "little") % 8 == 0


def tensors(_options: Any = None, **arrays: Any) -> bytes:
    request = {"model": "gpt", **(_options or {})}
    parts = {name: np.asarray(array) for name, array in arrays.items()}
    return save(parts, {"request": json.dumps(request)})


def headed(header: str, data: bytes = (3).to_bytes(8, "little")) -> bytes:
    return len(header.encode()).to_bytes(8, "little") + header.encode() + data


HEADER = '{"input_ids":{"dtype":"I64","shape":[1,%s],"data_offsets":[0,8]}}'
TENSOR = '"input_ids": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]}'
OTHER = TENSOR.replace("[1, 1]", "[1, 1, 1]")
EMPTY = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
MANY = json.dumps({f"t{n}": json.loads(EMPTY) for n in range(2000)})
NO, NO_JSON = "the body is not safetensors", "the body is not a JSON object"
REJECTED: list[tuple[bytes, str]] = [
    (tensors(attention_mask=MASK), "lacks the tensor input_ids"),
    (tensors(input_ids=IDS.astype(np.float32)), "input_ids is F32: send I64, I32"),
    (tensors(input_ids=IDS, position_ids=IDS),
     "tensor 'position_ids' is unknown; known are input_ids, attention_mask, token_type_ids,"),
    (tensors(input_ids=IDS, token_type_ids=IDS[:1]),
     "token_type_ids has shape [1, 4], input_ids has [2, 4]"),
    (tensors(input_ids=IDS[0], lengths=[4], token_type_ids=IDS[:1]),
     "token_type_ids has shape [1, 4], input_ids has [4]"),
    (tensors(input_ids=IDS, token_type_ids=IDS.astype(np.float32)),
     "token_type_ids is F32: send I64, I32, U8"),
    (tensors(input_ids=IDS[0]), "input_ids has shape [4]: send 2 axes"),
    (tensors(input_ids=IDS, attention_mask=MASK[:1]), "attention_mask has shape [1, 4]"),
    (tensors(input_ids=IDS, attention_mask=2 * MASK), "attention_mask[0][0] is 2"),
    (tensors(input_ids=IDS, attention_mask=MASK, lengths=[4]), "exclude each other"),
    (tensors(input_ids=IDS[0], lengths=[5]), "lengths sum to 5, input_ids has 4"),
    (tensors(input_ids=IDS[0], lengths=[3]), "lengths sum to 3, input_ids has 4"),
    (tensors(input_ids=IDS[0], lengths=[2**62] * 4), "lengths sum to 18446744073709551616"),
    (tensors(input_ids=IDS[0], lengths=[4, 0]), "lengths has an empty sequence"),
    (tensors(input_ids=IDS[:0]), "input_ids has shape [0, 4]"),
    (tensors(input_ids=IDS[:, :0]), "input_ids has shape [2, 0]"),
    (tensors(input_ids=IDS + 10**6), "input_ids[0][0] is 1000001"),
    (tensors({"pool": "mean"}, input_ids=IDS), "pool is unknown"),
    (tensors({"input_ids": [[1]]}, input_ids=IDS), "input_ids is unknown"),
    (b"", NO), (b"\xff" * 8, NO), ((2**40).to_bytes(8, "little") + b"{}", NO),
    (headed(HEADER), NO), (headed(HEADER % 2), NO), (headed(HEADER % 2**62), NO),
    (headed(HEADER % 1, bytes(9)), NO), (headed(HEADER % 1, bytes(7)), NO),
    (headed('{"input_ids": 5}'), NO), (headed("[]"), NO), (headed("null"), NO),
    (headed(f"{{{OTHER}, {TENSOR}}}"), "its header has 'input_ids' twice"),
    (headed(f"{{{OTHER}, {TENSOR}}}".replace("i", "\\u0069", 1)), "has 'input_ids' twice"),
    (headed(f'{{"__metadata__": {{"request": "1", "request": "{{}}"}}, {TENSOR}}}'),
     "has 'request' twice"),
    (headed(f'{{"__metadata__": {{}}, "__metadata__": {{}}, {TENSOR}}}'),
     "duplicate field `__metadata__`"),
    (headed(f'{{"__metadata__": [], {TENSOR}}}'), "expected a map"),
    (headed(f'{{"__metadata__": null, {TENSOR}}}'), "no served model is named"),
    (headed(f"{{{TENSOR}}}"), "no served model is named"),
    *((headed(f'{{"__metadata__": {{"request": {value}}}, {TENSOR}}}'), words)
      for value, words in (("null", "expected a string"), ("{}", "expected a string"),
                           ('"no json"', NO_JSON), ('"[]"', NO_JSON), ('"null"', NO_JSON),
                           ('""', NO_JSON))),
    # parts are counted before they are objects
    (headed(MANY, b""), f"its header has {len(MANY)} bytes, the limit is 65536"),
    (headed("{" + ",".join(f'"{number}":{EMPTY}' for number in range(8)) + "}"),
     "has more than 7 objects, the limit"),
    (headed(f"{{{TENSOR}}}".replace("1, 1", "1," * 100 + "1")), "more than 100 values, the limit"),
    (headed(f'{{{TENSOR},"__metadata__":{{"request":"{{}}"' + ',"a":""' * 50 + "}}"),
     "has more than 100 strings, the limit"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), REJECTED, ids=range(len(REJECTED)))
def test_bodies_that_lie_are_rejected_in_words(
    client: httpx.Client, body: bytes, words: str
) -> None:
    answer = client.post("/v1/infer", content=body, headers={"content-type": SAFETENSORS})
    assert answer.status_code == 400, answer.text[:200]
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "shape", [[2**60, 0], [0, 2**60], [2**63, 0], [2**60, 0, 0], [2**31, 2**31, 0], [2**31, 0], [0]]
)
@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "lengths"])
def test_an_axis_beside_one_of_none_may_not_be_endless(
    client: httpx.Client, name: str, shape: list[int]
) -> None:
    header: dict[str, Any] = {
        "__metadata__": {"request": '{"model": "notebook"}'},
        "input_ids": {"dtype": "I64", "shape": [1, 0], "data_offsets": [0, 0]},
    }
    header[name] = {"dtype": "I64", "shape": shape, "data_offsets": [0, 0]}
    headers = {"content-type": SAFETENSORS}
    answer = client.post("/v1/infer", content=headed(json.dumps(header), b""), headers=headers)
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("chosen", "accepts"),
    [
        (JSON, ["", "*/*", "application/*", f"{JSON};q=0.5, {SAFETENSORS};q=0.4"]),
        (SAFETENSORS,
         [SAFETENSORS, f"{SAFETENSORS}, */*", f"{JSON};q=0.5, {SAFETENSORS}",
          f"{JSON};q=0, */*;q=0.1", f"text/html, {SAFETENSORS.upper()};Q=0.9",
          f"{SAFETENSORS};q=high"]),
        # a server may disregard what it cannot fulfil
        (JSON,
         ["text/event-stream", "application/vnd.elasticsearch+json;compatible-with=8", "*",
          f"{JSON};q=high", f"text/html, {JSON};q=0, {SAFETENSORS};q=0"]),
    ],
)  # fmt: skip
def test_accept_is_weighed(chosen: str, accepts: list[str]) -> None:
    for accept in accepts:
        headers = Headers({"accept": accept} if accept else {})
        assert negotiate(headers, (JSON, SAFETENSORS)) == chosen, accept


def test_who_asks_for_safetensors_gets_no_json() -> None:
    with pytest.raises(NotAcceptable, match=r"send one of application/json$"):
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


def test_a_request_beside_tensors_may_have_any_characters(client: httpx.Client) -> None:
    answer = post(client, {"input_ids": IDS}, {"model": '{"[,' * 200})
    assert answer.json()["error"]["code"] == "model_not_found"
