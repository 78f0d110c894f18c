"""Large and odd requests of every protocol, as large as the default settings allow."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from addnorm.service.engine.manifest import Manifest
from addnorm.service.engine.outputs.output import (
    BINARY_BYTES,
    JSON_BYTES_PER_FLOAT,
    JSON_BYTES_PER_PAD,
)
from addnorm.service.engine.tokenizer import CHARACTERS_PER_TOKEN
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from benchmarks.stress.caller import JSON, Request
from benchmarks.stress.requests import texts

LIMITS = Settings.model_construct()  # the defaults, whatever the environment says
BODY_BYTES = LIMITS.max_body_bytes - 1024  # but for what stands around it
JSON_BYTES = LIMITS.max_json_bytes - 1024
INFER, EMBEDDINGS, TOKENIZE = "/v1/infer", "/v1/embeddings", "/v1/tokenize"


# numbers


def grid(manifest: Manifest, num_padded_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and mask of so many padded tokens, one of them real."""
    num_rows = min(LIMITS.max_sequences // 2, num_padded_tokens)
    shape = num_rows, num_padded_tokens // num_rows
    mask = np.zeros(shape, np.int64)
    mask[0, 0] = 1
    return np.random.default_rng(0).integers(0, manifest.limits.vocab_size, shape), mask


def pads(width: int, bytes_each: int = JSON_BYTES_PER_PAD) -> int:
    """The most pads that a response may have beside one token."""
    return min(
        LIMITS.max_padded_tokens,
        LIMITS.max_response_bytes // (width * bytes_each) - JSON_BYTES_PER_FLOAT,
    )


def zeros(num: int) -> bytes:
    return b",".join([b"0"] * num)


def numbers(number: bytes) -> tuple[bytes, int]:
    """This number as often as a body holds it, separated by commas; how often."""
    num = min(
        LIMITS.max_padded_tokens, JSON_BYTES // (len(number) + 4)
    )  # a mask has room beside them
    return b",".join([number] * num), num


def compress(request: Request) -> Request:
    content = gzip.compress(request.body or b"", 1)
    return replace(request, body=content).having(content_encoding="gzip")


def raw(path: str, body: bytes, **headers: str) -> Request:
    return Request(path, body, JSON).having(**headers)


# /v1/infer


def infer(manifest: Manifest, fields: dict[str, Any], **headers: str) -> Request:
    return Request.json(INFER, {"model": manifest.name, **fields}, **headers)


def integers(digits: int) -> Request:
    """Under a mask of zeros, where an id may be any integer."""
    ids, num = numbers(b"9" * digits)
    body = b'{"input_ids":[[%s]],"attention_mask":[[%s]],"outputs":["pooled"]}'
    return raw(INFER, body % (ids, zeros(num)))


def padding(manifest: Manifest, output: str, num_padded_tokens: int) -> Request:
    ids, mask = grid(manifest, num_padded_tokens)
    return infer(manifest, {"input_ids": ids, "attention_mask": mask, "outputs": [output]})


def long_name(content: bytes) -> Request:
    """A huge string for the model's name, written as it is given."""
    name = content * (JSON_BYTES // len(content))
    return compress(raw(INFER, b'{"input_ids":[[1]],"model":"%s"}' % name))


def spaces(manifest: Manifest) -> Request:
    return compress(raw(INFER, b" " * JSON_BYTES + b'{"input_ids":[[1]]}'))


def small_chunks(manifest: Manifest) -> Request:
    body = b"1\r\n \r\n" * (1 << 20) + b"0\r\n\r\n"
    return raw(INFER, body, transfer_encoding="chunked")


# safetensors


def with_header(tensors: dict[str, Any], content: bytes) -> Request:
    header = orjson.dumps(tensors)
    return raw(
        INFER, len(header).to_bytes(8, "little") + header + content, content_type=SAFETENSORS
    )


def wrong_mask(manifest: Manifest) -> Request:
    """A request with as many cells as a body holds, each with a mask that is neither 0 nor 1."""
    num = BODY_BYTES // 5
    ids = {"dtype": "I32", "shape": [1, num], "data_offsets": [0, 4 * num]}
    mask = {"dtype": "U8", "shape": [1, num], "data_offsets": [4 * num, 5 * num]}
    return with_header({"input_ids": ids, "attention_mask": mask}, bytes(4 * num) + b"\7" * num)


def tensor_pads(manifest: Manifest) -> Request:
    """Little in, as many floats out as there may be."""
    ids, mask = grid(manifest, pads(manifest.d_model, BINARY_BYTES))
    options = orjson.dumps({"model": manifest.name, "outputs": ["activations"]}).decode()
    half, about = ids.nbytes, {"dtype": "I64", "shape": ids.shape}
    tensors = {"input_ids": {**about, "data_offsets": [0, half]}}
    tensors["attention_mask"] = {**about, "data_offsets": [half, 2 * half]}
    header = {"__metadata__": {"request": options}, **tensors}
    return with_header(header, ids.tobytes() + mask.tobytes()).having(accept=SAFETENSORS)


# V2


def tensor(name: str, shape: Sequence[int], content: bytes, datatype: str = "INT64") -> bytes:
    about = orjson.dumps({"name": name, "shape": shape, "datatype": datatype})
    return about[:-1] + b',"data":[%s]}' % content


def v2(manifest: Manifest, *inputs: bytes, rest: bytes = b"") -> Request:
    body = b'{"inputs":[%s]%s}' % (b",".join(inputs), rest)
    return raw(f"/v2/models/{manifest.name}/infer", body)


def v2_floats(digits: int, manifest: Manifest) -> Request:
    """A mask of floats."""
    mask, num = numbers(b"0." + b"7" * digits)
    ids = tensor("input_ids", [1, num], zeros(num))
    return compress(v2(manifest, ids, tensor("attention_mask", [1, num], mask, "FP32")))


def v2_pads(manifest: Manifest) -> Request:
    """Little in, as much JSON out as there may be."""
    ids, mask = (
        tensor(name, cells.shape, b",".join(b"%d" % value for value in cells.ravel()))
        for name, cells in zip(
            ("input_ids", "attention_mask"), grid(manifest, pads(manifest.d_model)), strict=True
        )
    )
    return v2(manifest, ids, mask, rest=b',"outputs":[{"name":"activations"}]')


# embeddings and texts


def embeddings(manifest: Manifest) -> Request:
    num = LIMITS.max_sequences
    ids = np.random.default_rng(0).integers(0, manifest.limits.vocab_size, (num, 4))
    return Request.json(EMBEDDINGS, {"model": manifest.name, "input": ids})


def hopeless(num_texts: int) -> list[str]:
    """Texts with as many tokens as a request may have and JSON holds, each a word that costs a
    search."""
    num_words = min(LIMITS.max_tokens, JSON_BYTES // len(texts.hopeless_words(1).encode() + b" "))
    return [texts.hopeless_words(num_words // num_texts - 3)] * num_texts


def longest(manifest: Manifest, make: Callable[[int], str]) -> list[str]:
    """The most texts that a body holds, each as long as it may be."""
    text = make(CHARACTERS_PER_TOKEN * manifest.limits.max_positions)
    return [text] * min(LIMITS.max_sequences, JSON_BYTES // (len(text.encode()) + 3))


def of_texts(path: str, make: Callable[[Manifest], list[str]], manifest: Manifest) -> Request:
    field = "input" if path == EMBEDDINGS else "texts"
    fields = {"outputs": ["pooled"]} if path == INFER else {}
    return Request.json(path, {"model": manifest.name, field: make(manifest), **fields})
