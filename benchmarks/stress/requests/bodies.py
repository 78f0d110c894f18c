"""Large and odd requests of every protocol, as large as the default settings allow."""

import gzip
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from addnorm.service.inference.outputs.output import (
    BINARY_BYTES,
    JSON_BYTES_PER_FLOAT,
    JSON_BYTES_PER_PAD,
)
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS
from addnorm.service.runtime.manifest import Manifest
from addnorm.service.runtime.tokenizing.tokenizer import CHARACTERS_PER_TOKEN
from addnorm.service.settings import Settings
from benchmarks.stress.caller import JSON, Request
from benchmarks.stress.requests import texts

LIMITS = Settings.model_construct()  # the defaults, whatever the environment says
BODY_BYTES = LIMITS.max_body_bytes - 1024  # but for what stands around it
JSON_BYTES = LIMITS.max_json_bytes - 1024
DIGITS = 4299  # Python turns no longer integers into text
INFER, EMBEDDINGS, TOKENIZE = "/v1/infer", "/v1/embeddings", "/v1/tokenize"
V2 = "/v2/models/{model}/infer"


# numbers


def grid(manifest: Manifest, num_padded_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and mask of so many padded tokens, one of them real."""
    num_rows = min(LIMITS.max_sequences // 2, num_padded_tokens)
    shape = num_rows, num_padded_tokens // num_rows
    mask = np.zeros(shape, np.int64)
    mask[0, 0] = 1
    return np.random.default_rng(0).integers(0, manifest.limits.vocab_size, shape), mask


def rows(manifest: Manifest, num_tokens: int, longest: int) -> list[list[int]]:
    """Ragged sequences of so many tokens together."""
    length = min(longest, manifest.limits.max_positions)
    tokens = np.random.default_rng(0).integers(0, manifest.limits.vocab_size, num_tokens).tolist()
    return [tokens[start : start + length] for start in range(0, num_tokens, length)]


def real_tokens(width: int) -> int:
    """The most tokens that a JSON response may have, with `width` floats for each."""
    return LIMITS.max_response_bytes // (width * JSON_BYTES_PER_FLOAT) - 1


def pads(width: int, bytes_each: int = JSON_BYTES_PER_PAD) -> int:
    """The most pads that a response may have beside one token."""
    return min(
        LIMITS.max_padded_tokens,
        LIMITS.max_response_bytes // (width * bytes_each) - JSON_BYTES_PER_FLOAT,
    )


def zeros(num: int) -> bytes:
    return b",".join([b"0"] * num)


def integers(digits: int, most: int = LIMITS.max_padded_tokens) -> tuple[bytes, int]:
    """The most integers of this many digits that a body holds, separated by commas; their
    number."""
    num = min(most, JSON_BYTES // (digits + 3))  # a mask has room beside them
    return b",".join([b"9" * digits] * num), num


def floats(digits: int) -> tuple[bytes, int]:
    num = min(LIMITS.max_padded_tokens, JSON_BYTES // (digits + 6))
    return b",".join([b"0." + b"7" * digits] * num), num


def packed(request: Request) -> Request:
    assert request.body is not None
    return Request(request.path, gzip.compress(request.body, 1), request.headers).having(
        content_encoding="gzip"
    )


def raw(path: str, body: bytes, **headers: str) -> Request:
    return Request(path, body, JSON).having(**headers)


# /v1/infer


def infer(manifest: Manifest, fields: dict[str, Any], **headers: str) -> Request:
    return Request.json(INFER, {"model": manifest.name, **fields}, **headers)


def long_integers(digits: int, manifest: Manifest) -> Request:
    """Under a mask of zeros, where an id may be any integer."""
    numbers, num = integers(digits)
    body = b'{"input_ids":[[%s]],"attention_mask":[[%s]],"outputs":["pooled"]}' % (
        numbers,
        zeros(num),
    )
    return packed(raw(INFER, body))


def padding(
    manifest: Manifest,
    outputs: Sequence[str],
    num_padded_tokens: int = LIMITS.max_padded_tokens,
    **more: Any,
) -> Request:
    ids, mask = grid(manifest, num_padded_tokens)
    return infer(manifest, {"input_ids": ids, "attention_mask": mask, "outputs": outputs, **more})


def ragged(
    manifest: Manifest, outputs: Sequence[str], num_tokens: int, longest: int = 64, **more: Any
) -> Request:
    return infer(
        manifest, {"input_ids": rows(manifest, num_tokens, longest), "outputs": outputs, **more}
    )


def quick(manifest: Manifest, output: str, num_tokens: int, longest: int) -> Request:
    """A request in the faster precision, so that making the response takes most of the time."""
    precision = "int8" if "int8" in manifest.precisions else "fp32"
    return ragged(manifest, [output], num_tokens, longest, precision=precision)


def logits(manifest: Manifest, **more: Any) -> Request:
    """A request for the logits of as many tokens as a response may have."""
    return ragged(manifest, ["logits"], real_tokens(manifest.limits.vocab_size), 64, **more)


def all_likeliest(manifest: Manifest) -> Request:
    vocab_size = manifest.limits.vocab_size
    num_tokens = min(real_tokens(2 * vocab_size), 8 * manifest.limits.max_positions)
    return ragged(manifest, ["logits"], num_tokens, logits={"top_k": vocab_size})


def likeliest_of_pads(manifest: Manifest) -> Request:
    return padding(manifest, ["logits"], logits={"top_k": 1})


def string(
    field: str, content: bytes, path: str = INFER, rest: bytes = b'"input_ids":[[1]]'
) -> Request:
    """A body of one huge string, written as it is given."""
    times = JSON_BYTES // len(content)
    return packed(raw(path, b'{%s,"%s":"%s"}' % (rest, field.encode(), content * times)))


def slow_count(manifest: Manifest) -> Request:
    """A string of colons, which must not be counted as keys, and of backslashes, which are slow."""
    return string("x", b":" * 2000 + b"\\\\" * (JSON_BYTES // 4))


def random_letters(manifest: Manifest) -> Request:
    letters = np.random.default_rng(0).integers(ord("0"), ord("z"), JSON_BYTES, np.uint8).tobytes()
    return packed(raw(INFER, b'{"input_ids":[[1]],"x":"%s"}' % letters.replace(b"\\", b"_")))


def unknown_keys(path: str, manifest: Manifest) -> Request:
    return Request.json(path, {f"key{n}": "v" * 8_000 for n in range(990)})


def nested(path: str, field: str, manifest: Manifest) -> Request:
    return raw(path, b'{"%s":%s1%s}' % (field.encode(), b"[" * 2000, b"]" * 2000))


def names(path: str, field: str, value: str, manifest: Manifest, rest: bytes = b"") -> Request:
    """A request with as many strings as a body may have commas."""
    values = b",".join([b'"%s"' % value.encode()] * (3 * LIMITS.max_padded_tokens))
    return packed(raw(path, b'{%s"%s":[%s]}' % (rest, field.encode(), values)))


def spaces(manifest: Manifest) -> Request:
    return packed(raw(INFER, b" " * JSON_BYTES + b'{"input_ids":[[1]]}'))


def small_chunks(manifest: Manifest) -> Request:
    body = b"1\r\n \r\n" * (1 << 20) + b"0\r\n\r\n"
    return raw(INFER, body, transfer_encoding="chunked")


# safetensors


def with_header(tensors: dict[str, Any], data: bytes = b"") -> Request:
    header = orjson.dumps(tensors)
    return raw(INFER, len(header).to_bytes(8, "little") + header + data, content_type=SAFETENSORS)


def many_tensors(manifest: Manifest) -> Request:
    one = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    return with_header({f"t{n}": one for n in range(1100)})


def wrong_mask(manifest: Manifest) -> Request:
    """A request with as many cells as a body holds, each with a mask that is neither 0 nor 1."""
    num = BODY_BYTES // 5
    ids = {"dtype": "I32", "shape": [1, num], "data_offsets": [0, 4 * num]}
    mask = {"dtype": "U8", "shape": [1, num], "data_offsets": [4 * num, 5 * num]}
    return with_header({"input_ids": ids, "attention_mask": mask}, bytes(4 * num) + b"\7" * num)


def many_lengths(manifest: Manifest) -> Request:
    num = BODY_BYTES // 4
    lengths = {"dtype": "I32", "shape": [num - 1], "data_offsets": [4, 4 * num]}
    ids = {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}
    return with_header({"input_ids": ids, "lengths": lengths}, b"\1\0\0\0" * num)


def tensor_pads(manifest: Manifest) -> Request:
    """Little in, as many floats out as there may be."""
    ids, mask = grid(manifest, pads(manifest.d_model, BINARY_BYTES))
    asked = orjson.dumps({"model": manifest.name, "outputs": ["activations"]}).decode()
    half, about = ids.nbytes, {"dtype": "I64", "shape": ids.shape}
    tensors = {"input_ids": {**about, "data_offsets": [0, half]}}
    tensors["attention_mask"] = {**about, "data_offsets": [half, 2 * half]}
    header = {"__metadata__": {"request": asked}, **tensors}
    return with_header(header, ids.tobytes() + mask.tobytes()).having(accept=SAFETENSORS)


# V2


def v2_path(manifest: Manifest) -> str:
    return V2.format(model=manifest.name)


def tensor(name: str, shape: Sequence[int], data: bytes, datatype: str = "INT64") -> bytes:
    about = orjson.dumps({"name": name, "shape": shape, "datatype": datatype})
    return about[:-1] + b',"data":[%s]}' % data


def v2(manifest: Manifest, *inputs: bytes, rest: bytes = b"", **headers: str) -> Request:
    return raw(v2_path(manifest), b'{"inputs":[%s]%s}' % (b",".join(inputs), rest), **headers)


def v2_numbers(kind: tuple[bytes, int], datatype: str, manifest: Manifest) -> Request:
    """A mask of such numbers."""
    numbers, num = kind
    ids = tensor("input_ids", [1, num], zeros(num))
    return packed(v2(manifest, ids, tensor("attention_mask", [1, num], numbers, datatype)))


def v2_cells(
    manifest: Manifest, output: str, num_padded_tokens: int, binary: bool = False
) -> Request:
    ids, mask = grid(manifest, num_padded_tokens)
    return v2(
        manifest,
        tensor("input_ids", ids.shape, b",".join(b"%d" % value for value in ids.ravel())),
        tensor("attention_mask", mask.shape, b",".join(b"%d" % value for value in mask.ravel())),
        rest=b',"outputs":[{"name":"%s"}],"parameters":{"binary_data_output":%s}'
        % (output.encode(), b"true" if binary else b"false"),
    )


def v2_inputs(manifest: Manifest) -> Request:
    return v2(manifest, *(tensor(f"input{n}", [1, 1], b"1") for n in range(240)))


def v2_rows(manifest: Manifest) -> Request:
    data = b",".join([b"[%s]" % zeros(100)] * 2048)
    return v2(
        manifest, tensor("input_ids", [2048, 100], data), rest=b',"outputs":[{"name":"pooled"}]'
    )


def v2_wrong_mask(manifest: Manifest) -> Request:
    num = BODY_BYTES // 5
    size = b',"parameters":{"binary_data_size":%d}}'
    about = b'{"name":"%s","shape":[1,%d],"datatype":"%s"'
    ids = about % (b"input_ids", num, b"INT32") + size % (4 * num)
    mask = about % (b"attention_mask", num, b"UINT8") + size % num
    head = b'{"inputs":[%s,%s]}' % (ids, mask)
    body = head + bytes(4 * num) + b"\7" * num
    return raw(v2_path(manifest), body, inference_header_content_length=str(len(head)))


# embeddings and texts


def embeddings(manifest: Manifest, **more: Any) -> Request:
    fields = {"model": manifest.name, "input": rows(manifest, LIMITS.max_sequences * 4, 4), **more}
    return Request.json(EMBEDDINGS, fields)


def hopeless(num_texts: int) -> list[str]:
    """Texts with as many tokens as a request may have, each a word that costs a search."""
    return [texts.hopeless_words(LIMITS.max_tokens // num_texts - 3)] * num_texts


def longest(manifest: Manifest, make: Callable[[int], str]) -> list[str]:
    """The most texts that a body holds, each as long as it may be."""
    text = make(CHARACTERS_PER_TOKEN * manifest.limits.max_positions)
    return [text] * min(LIMITS.max_sequences, JSON_BYTES // (len(text.encode()) + 3))


def of_texts(path: str, make: Callable[[Manifest], list[str]], manifest: Manifest) -> Request:
    field = "input" if path == EMBEDDINGS else "texts"
    more = {"outputs": ["pooled"]} if path == INFER else {}
    return Request.json(path, {"model": manifest.name, field: make(manifest), **more})
