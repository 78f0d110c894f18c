"""What V2 rejects, in JSON, with tensors as bytes, and over gRPC: a row has what changes in a good
request, and how the message begins (or, behind "...", what it holds)."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from addnorm.service.engine.registry import Models
from tests.support import web
from tests.support.grpc_client import FIELDS, GrpcClient, calling, refusal
from tests.support.texts import TEXT_MODEL
from tests.support.v2_bodies import LENGTH, body
from tests.support.waiting import PATIENCE_S

grpc = pytest.importorskip("grpc")


def tensor(name: str, data: Any, datatype: str = "INT64", **more: Any) -> dict[str, Any]:
    if "shape" not in more:
        more["shape"] = list(np.shape(data))
    return {"name": name, "datatype": datatype, "data": data, **more}


def ids(data: Any = ([1, 2],), datatype: str = "INT64", **more: Any) -> dict[str, Any]:
    return {"inputs": [tensor("input_ids", data, datatype, **more)]}


def masked(mask: Any, datatype: str = "INT64") -> dict[str, Any]:
    return {"inputs": [*ids()["inputs"], tensor("attention_mask", [mask], datatype)]}


def texts(data: Any, name: str = "input_text", **more: Any) -> dict[str, Any]:
    return {"inputs": [tensor(name, data, "BYTES", **more)]}


def as_bytes(raw: bytes = bytes(16), length: Any = "", **more: Any) -> tuple[bytes, dict[str, Any]]:
    """Content and headers of ids as bytes. length: what the header says in place of the truth."""
    return sized({"name": "input_ids", "shape": [1, 2], "datatype": "INT64", **more}, raw, length)


def sized(about: dict[str, Any], raw: bytes, length: Any = "") -> tuple[bytes, dict[str, Any]]:
    about.setdefault("parameters", {"binary_data_size": len(raw)})
    (head, raw), other = body([about], raw), {"content-type": "application/octet-stream"}
    return head + raw, other if length is None else {**other, LENGTH: length or str(len(head))}


def mask_as_bytes(datatype: str, raw: bytes) -> tuple[bytes, dict[str, Any]]:
    both = [
        {"name": name, "shape": [1, 2], "datatype": kind, "parameters": {"binary_data_size": size}}
        for name, kind, size in (("input_ids", "INT64", 16), ("attention_mask", datatype, len(raw)))
    ]
    head, _ = body(both, b"")
    return head + bytes(16) + raw, {LENGTH: str(len(head))}


def texts_as_bytes(raw: bytes) -> tuple[bytes, dict[str, Any]]:
    return sized({"name": "input_text", "shape": [2], "datatype": "BYTES"}, raw)


def serialized(*each: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in each)


def parameters(**given: Any) -> dict[str, Any]:
    return {"parameters": given}


def output(name: str, **given: Any) -> dict[str, Any]:
    return {"outputs": [{"name": name, "parameters": given} if given else {"name": name}]}


GOOD = ids()
NO_JSON, BEFORE = "the body is not a JSON object", "inference-header-content-length is "
NAN = float("nan")
# fmt: off
BOTH: list[tuple[str, Any, str]] = [
    *(("notebook", *row) for row in (
        ({"inputs": []}, "inputs lacks input_ids"),
        ({"inputs": [tensor("ids", [[1]])]},
         "inputs has 'ids': known are input_ids, attention_mask, token_type_ids"),
        ({"inputs": ids()["inputs"] * 2}, "inputs has 'input_ids' twice"),
        ({"inputs": [tensor("attention_mask", [[1]])]}, "inputs lacks input_ids"),
        (ids(shape=[2]), "input_ids.shape is [2]: send [batch, seq]"),
        (ids([1, 2], shape=[1, 3]), "input_ids has 2 values, its shape [1, 3] 3"),
        (ids([1, 2], shape=[2**31, 2**31]), "input_ids has 2 values"),
        (ids([[1.0, 2.0]], "FP32"), "input_ids has datatype 'FP32': send INT64, INT32"),
        (ids([[1, 6]]), "input_ids[0][1] is 6: ids of notebook/1 are 0 to 5"),
        (masked([1]), "attention_mask has shape [1, 1]"),
        (masked([1, 2]), "attention_mask[0][1] is 2: it must be 0 (pad) or 1 (real token)"),
        (masked([1, 0.5], "FP32"), "attention_mask[0][1] is 0.5"),
        (ids([[1] * 6]), "input_ids[0] has 6 real tokens, the limit of notebook/1 is 5"),
        (output("hidden"), "outputs has 'hidden': notebook/1 has activations"),
        ({"outputs": output("pooled")["outputs"] * 2}, "outputs has 'pooled' twice"),
        (parameters(sequence_id=1), "parameters.sequence_id is not supported"),
        (parameters(triton_x=1), "parameters.triton_x is not supported"),
        (parameters(pooling="median"), "parameters.pooling"),
        (parameters(normalize="yes"), "parameters.normalize: Input should be a valid boolean"),
        (parameters(timeout="soon"), "parameters.timeout: Input should be a valid integer, got"),
        (parameters(priority=1), "parameters.priority is not supported: turns are fair by size"),
        (parameters(truncate=True), "parameters.truncate is set, but applies to texts only"),
        (ids(parameters={"shared_memory_region": "a"}),
         "input_ids: shared memory is not supported"),
        (output("pooled", shared_memory_region="a"), "pooled: shared_memory_region is not"),
        (output("logits", classification=2), "logits: classification is not supported"),
        (texts([["a"]], "input_ids"), "input_ids has datatype 'BYTES': send INT64, INT32"),
    )),
    ("bert", {}, "model 'bert' is not served here"),
    ("notebook/versions/7", {}, "model 'notebook' has no version '7'"),
    *((TEXT_MODEL, *row) for row in (
        ({"inputs": texts(["a"])["inputs"] + ids([[1]])["inputs"]},
         "inputs has 2 tensors: 'input_text' has texts"),
        ({"inputs": [tensor("text", [[1]])]}, "...and texts of datatype BYTES"),
        (texts(["a"], shape=[2]), "input_text has 1 texts, its shape [2] 2"),
        (texts(["a"] * 3, shape=[1, 3]), "input_text.shape is [1, 3]: send [texts]"),
        (texts([], shape=[2**31]), "...2147483648 texts"),
    )),
]
HTTP: list[tuple[str, Any, str]] = [
    *(("notebook", *row) for row in (
        (b'{"inputs": [', NO_JSON),
        (b'{"id": "\xff"}', NO_JSON),
        (b'{"inputs": [{"shape": [1, 1], "shape": [1, 1]}]}', "...send each key once"),
        (b'{"parameters": {"a": 1, "a": 1}, "inputs": []}', "...send each key once"),
        ({"inputs": None}, "inputs is missing"),
        ({"tools": [1]}, "tools is [1]"),
        ({"model_name": "gpt"}, "model_name is 'gpt', but the path has 'notebook'"),
        (ids(None, shape=[1, 2]), "input_ids has neither data nor binary_data_size"),
        (ids(shape=None), "inputs[0].shape is missing"),
        (ids([], shape=[0, 2]),
         "inputs[0].shape[0]: Input should be greater than or equal to 1, got 0"),
        (ids(shape=[-1, -2]), "inputs[0].shape[0]"),
        (ids(shape=[10**4000, 1]), "...number is infinity"),
        (ids([[1], [2]], shape=[1, 2]), "input_ids.data[0] has 1 values"),
        (ids([[1, 2], 3], shape=[2, 2]), "input_ids.data[1] is no list"),
        (ids([1, 2.5], shape=[1, 2]), "input_ids.data[1] is 2.5, which is not INT64"),
        (ids([1, True], shape=[1, 2]), "input_ids.data[1] is true, which is not INT64"),
        (ids([1, "2"], shape=[1, 2]), 'input_ids.data[1] is "2", which is not INT64'),
        (ids([1, 2**63], shape=[1, 2]), "input_ids.data[1] is outside 64-bit integers"),
        (ids([1, 2**70], shape=[1, 2]),
         "input_ids.data[1] is 1.1805916207174113e+21: more than 64 bits hold, which is not INT64"),
        (masked([1, NAN], "FP32"), f"{NO_JSON}: unexpected character"),
        (masked([1, 1], "BOOL"), "...is 1, which is not BOOL"),
        (masked([1, 1], "FP16"),
         "attention_mask has datatype 'FP16': send INT64, INT32, UINT8, BOOL, FP32"),
        ({"outputs": []}, "outputs is empty"),
        (parameters(timeout=10**400), "...number is infinity"),
        (parameters(binary_data_output="yes"),
         "parameters.binary_data_output: Input should be a valid boolean"),
        (ids(parameters={"binary_data_size": 16}), "input_ids has both data and binary_data_size"),
        (as_bytes(length="many"), f"{BEFORE}'many': it must be the number of bytes of JSON"),
        (as_bytes(length="-1"), f"{BEFORE}'-1'"),
        (as_bytes(length="1.5"), f"{BEFORE}'1.5'"),
        (as_bytes(length=b"\xb2"), BEFORE),
        (as_bytes(length="100000"),
         f"{BEFORE}'100000': it must be the number of bytes of JSON, at most"),
        (as_bytes(length="9" * 400), f"{BEFORE}'999"),
        (as_bytes(length="0"), f"{BEFORE}0: a body without JSON is possible only for models with"),
        (as_bytes(length="20"), NO_JSON),
        (as_bytes(length=None), NO_JSON),
        (as_bytes(bytes(10), **parameters(binary_data_size=16)),
         "unexpected size for input 'input_ids', expecting 6 additional bytes"),
        (as_bytes(b"", **parameters(binary_data_size=16)), "...expecting 16 additional bytes"),
        (as_bytes(bytes(19), **parameters(binary_data_size=16)),
         "unexpected additional input data: 3 bytes after the last tensor"),
        (as_bytes(**parameters(binary_data_size=2**40)),
         f"...expecting {2**40 - 16} additional bytes"),
        (as_bytes(**parameters(binary_data_size=10**99)),
         "...binary_data_size: Input should be a valid integer, got 1e+99: more than 64 bits hold"),
        (as_bytes(**parameters(binary_data_size=-8)),
         "inputs[0].parameters.binary_data_size: Input should be greater"),
        (as_bytes(**parameters(binary_data_size="all")),
         "inputs[0].parameters.binary_data_size: Input should be a valid integer"),
        (as_bytes(shape=[1, 3]), "input_ids has 2 values, its shape [1, 3] 3"),
        (as_bytes(shape=[2**31, 2**31]),
         f"input_ids has 2 values, its shape [2147483648, 2147483648] {2**62}"),
        (as_bytes(shape=[2**62, 4]), "inputs[0].shape[0]: Input should be less than or equal"),
        (as_bytes(bytes(12)),
         "input_ids has 12 bytes, which is not a multiple of 8, the size of one INT64"),
        (as_bytes(datatype="INT32"), "input_ids has 4 values, its shape [1, 2] 2"),
        (as_bytes(datatype="FP32"), "input_ids has datatype 'FP32'"),
        (as_bytes(struct.pack("<2q", 0, 6)), "input_ids[0][1] is 6: ids of notebook/1 are 0 to 5"),
        (as_bytes(struct.pack("<2q", -1, 1)), "input_ids[0][0] is -1"),
        (mask_as_bytes("BOOL", b"\1\2"), "attention_mask[0][1] is 2"),
        (mask_as_bytes("FP16", bytes(4)), "attention_mask has datatype 'FP16'"),
        (mask_as_bytes("FP32", struct.pack("<2f", 1, NAN)), "attention_mask[0][1] is nan"),
    )),
    *((TEXT_MODEL, *row) for row in (
        (texts(["a", 1]), "input_text.data[1] is 1, which is not a text"),
        (texts(None, shape=[1]), "input_text has 0 texts"),
        (texts_as_bytes(b"\x01"), "input_text[0] ends at byte 5 of 1"),
        (texts_as_bytes(serialized(b"a") + struct.pack("<I", 9) + b"b"),
         "input_text[1] ends at byte 18 of 10"),
        (texts_as_bytes(serialized(b"a", b"\xff")),
         "input_text[1] is not valid UTF-8: invalid start byte at its byte 0"),
    )),
]
ALONE = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2]}
MESSAGES: list[tuple[Any, str]] = [
    ({"inputs": [ALONE], "raw_input_contents": [bytes(16), b""]},
     "raw_input_contents has 2 entries, inputs 1: send one for each, or none and `contents`"),
    ({"inputs": [{**ALONE, "contents": {"int64_contents": [1, 2]}}], "raw_input_contents": [b""]},
     "input_ids has both contents and raw_input_contents: send one of them"),
    ({"inputs": [ALONE], "raw_input_contents": [bytes(9)]},
     "input_ids has 9 bytes, which is not a multiple of 8, the size of one INT64"),
    ({"inputs": [ALONE]}, "input_ids has 0 values, its shape [1, 2] 2"),
    ({"inputs": [{**ALONE, "name": "attention_mask", "datatype": "UINT8",
                  "contents": {"uint_contents": [300, 1]}}]},
     "attention_mask has values in uint_contents that are not UINT8"),
]
OTHER: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/v2/nothing", None, 404, ""),
    ("GET", "/v2/models/bert", None, 404, "model 'bert' is not served here; served are: "),
    ("GET", "/v2/models/bert/config", None, 404, "model 'bert' is"),
    ("GET", "/v2/models/bert/stats", None, 404, "model 'bert' is"),
    ("GET", "/v2/models/bert/ready", None, 404, "model 'bert' is"),
    ("GET", "/v2/models/notebook/versions/9", None, 404, "model 'notebook' has no version '9'"),
    ("GET", "/v2/models/notebook/versions/9/stats", None, 404, "model 'notebook' has"),
    ("GET", "/v2/models/notebook%2F1", None, 404, ""),
    ("GET", "/v2/models/notebook/infer", None, 405, ""),
    ("POST", "/v2", {}, 405, ""),
    ("POST", "/v2/models/notebook/infer", b" " * (16 * 2**20 + 1), 413, "...limit"),
    ("POST", "/v2/models/notebook/infer", (b"{}", {"content-encoding": "br"}), 415, ""),
    ("POST", "/v2/models/notebook/infer", (b"{}", {"content-encoding": "gzip"}), 400, ""),
    ("POST", "/v2/repository/models/bert/load", {}, 404, "...bert"),
    ("POST", "/v2/repository/models/bert/unload", {}, 404, "...bert"),
    ("POST", "/v2/repository/models/notebook/7/load", {}, 404,
     "...no bundle 'notebook/7' in the folder"),
    ("POST", "/v2/repository/models/notebook/7/unload", {}, 404,
     "model 'notebook/7' is not served"),
    ("POST", "/v2/repository/models/notebook/load", parameters(config="{}"), 400,
     "parameters.config is not supported"),
    ("POST", "/v2/repository/models/notebook/load", parameters(**{"file:1/model.onnx": "AA=="}),
     400, "parameters.file:1/model.onnx is not"),
    ("POST", "/v2/repository/models/notebook/load", {"parameter": {}}, 400,
     "parameter is unknown; known are parameters"),
    ("POST", "/v2/repository/index", {"ready": "yes"}, 400,
     "ready: Input should be a valid boolean"),
]
# fmt: on
CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}
PARAMETERS = {bool: "bool_param", int: "int64_param", str: "string_param"}


@pytest.fixture(scope="module")
def called(text_models: Models) -> Iterator[tuple[GrpcClient, httpx.Client]]:
    with (
        calling(text_models, admin=True) as (call, _, url),
        web.client(base_url=url, timeout=60) as client,
    ):
        yield call, client


def told(client: httpx.Client, method: str, path: str, sent: Any, status: int) -> str:
    """The message of a rejection over HTTP."""
    content, headers = sent if isinstance(sent, tuple) else (sent, {})
    if isinstance(content, dict):
        content = json.dumps(content).encode()
    answer = client.request(method, path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    words: str = answer.json()["error"]
    assert isinstance(words, str)
    return words


def assert_begins(message: str, words: str) -> None:
    assert words[3:] in message if words.startswith("...") else message.startswith(words)


def complete(changes: Any) -> Any:
    if not isinstance(changes, dict):
        return changes
    return {**GOOD, **changes}


def as_message(asked: dict[str, Any]) -> dict[str, Any]:
    """The same as the fields of a ModelInferRequest."""

    def typed(given: dict[str, Any]) -> dict[str, Any]:
        return {name: {PARAMETERS[type(value)]: value} for name, value in given.items()}

    def input_of(about: dict[str, Any]) -> dict[str, Any]:
        values = np.ravel(about["data"]).tolist()
        if about["datatype"] == "BYTES":
            contents = {"bytes_contents": [text.encode() for text in values]}
        else:
            contents = {FIELDS[about["datatype"]]: values}
        given = typed(about.get("parameters", {}))
        kept = {name: about[name] for name in ("name", "shape", "datatype")}
        return {**kept, "contents": contents, "parameters": given}

    parts = {"inputs": [input_of(about) for about in asked["inputs"]]}
    parts["outputs"] = [
        {"name": each["name"], "parameters": typed(each.get("parameters", {}))}
        for each in asked.get("outputs", ())
    ]
    return {**parts, "parameters": typed(asked.get("parameters", {}))}


@pytest.mark.parametrize(("model", "changes", "words"), BOTH)
def test_over_both_transports_the_words_are_the_same(
    called: tuple[GrpcClient, httpx.Client], model: str, changes: dict[str, Any], words: str
) -> None:
    call, client = called
    status = 400 if changes else 404
    body = complete(changes)
    message = told(client, "POST", f"/v2/models/{model}/infer", body, status)
    assert_begins(message, words)
    name, _, version = model.partition("/versions/")
    refused = call.refused("ModelInfer", model_name=name, model_version=version, **as_message(body))
    assert refused[:2] == (CODES[status], message)


@pytest.mark.parametrize(("model", "sent", "words"), HTTP)
def test_bodies_that_do_not_fit_are_rejected_with_the_reason(
    called: tuple[GrpcClient, httpx.Client], model: str, sent: Any, words: str
) -> None:
    assert_begins(told(called[1], "POST", f"/v2/models/{model}/infer", complete(sent), 400), words)


@pytest.mark.parametrize(("method", "path", "sent", "status", "words"), OTHER)
def test_whatever_fails_under_v2_says_error(
    called: tuple[GrpcClient, httpx.Client],
    method: str, path: str, sent: Any, status: int, words: str,
) -> None:  # fmt: skip
    assert_begins(told(called[1], method, path, sent, status), words)


@pytest.mark.parametrize(("sent", "words"), MESSAGES)
def test_what_only_messages_get_wrong_is_said_in_words(
    called: tuple[GrpcClient, httpx.Client], sent: dict[str, Any], words: str
) -> None:
    assert called[0].refused("ModelInfer", model_name="notebook", **sent)[:2] == (CODES[400], words)


@pytest.mark.parametrize("path", ["index", "models/gpt/load", "models/gpt/unload"])
def test_the_repository_is_closed_by_default(client: httpx.Client, path: str) -> None:
    assert_begins(told(client, "POST", f"/v2/repository/{path}", {}, 403), "...ADDNORM_ADMIN")


# --- bodies that are no message


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def field(number: int, value: bytes) -> bytes:
    """A field of a message, on the wire."""
    return varint(number << 3 | 2) + varint(len(value)) + value


ONE, MANY = b"\x0a\x04text\x12\x05BYTES", "1000 fields"
LIMITED = [
    *((field(number, b"") * 1001, MANY) for number in (4, 5, 6, 7, 1000)),
    (field(5, field(4, b"") * 1001), MANY),  # parameters of an input
    (field(6, field(2, b"") * 1001), MANY),  # parameters of an output
    (field(5, field(5, b"\x18\1" * 1001)), MANY),  # values that are not packed
    (field(5, field(5, field(3, b"") * 1001)), MANY),  # packs of no value
    (b"\x78\1\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x78\1" * 1001, MANY),  # unknown numbers
    (field(5, ONE + field(5, field(8, b"") * 4097)), "4096 texts"),
    (field(5, field(5, field(3, b"\x81\1" * 1_000_000))), "907244 values"),
    (field(5, field(3, b"\1" * 1_000_000)), "907244 values"),  # axes
    (field(5, field(5, field(6, bytes(4_000_000)))), "907244 values"),  # numbers of 4 bytes
    (field(5, field(5, field(7, bytes(8_000_000)))), "907244 values"),  # numbers of 8 bytes
]  # fmt: skip
NO_MESSAGES = [
    b"\xff\xff", b"\x0b\x0c", field(5, b"\x2b\x2c"), b"\x0a", b"\x0d\1", b"\x08", b"\x0a\5a",
    b"\x0a" + b"\xff" * 11, field(5, field(5, b"\x1a")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((field(1, b"gpt") + content,
           f"the message has more than {limit}, the limit: send less at once, and numbers as"
           " raw_input_contents") for content, limit in LIMITED),
        *((content, "the message is not a valid inference.ModelInferRequest: ")
          for content in NO_MESSAGES),
    ],
    ids=range(len(LIMITED) + len(NO_MESSAGES)),
)  # fmt: skip
def test_parts_are_counted_and_read_before_they_are_objects(
    called: tuple[GrpcClient, httpx.Client], content: bytes, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        called[0].method("ModelInfer")(content, timeout=PATIENCE_S)
    code, message, _ = refusal(caught.value)
    assert code == CODES[400]
    assert message.startswith(words)
