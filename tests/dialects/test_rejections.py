"""What every dialect rejects: a row has what changes in a good body, the field, how the message
begins (or, behind "...", what it holds), and the status where it is not 400. The field is OpenAI's
`param`, and TEI's `error_type`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.conftest import client_of, inference_of, linked
from tests.support.task_models import DEFAULTS
from tests.support.texts import TEXT_MODEL

CODES = {400: "invalid_input", 404: "model_not_found", 413: "body_too_large"}
ENDLESS = "a" * 200_000  # one word, whose tokens cannot be known from a part
SPANNED = "pads are dropped, padding costs nothing."
EMBEDDED = {"model": TEXT_MODEL, "input": [[2, 4, 3]], "dtype": "int8"}
PACKED = {"model": TEXT_MODEL, "input_ids": [[2, 4, 3]], "outputs": ["pooled"], "normalize": True}
PACKED["dtype"] = "int8"
SCORED = {"model": "gpt", "prompt": "a", "max_tokens": 1, "temperature": 0}
ASKED = {"type": "noul", "instructions": "b"}
SCORED |= {"echo": True, "logprobs": 2}


class Told(NamedTuple):
    message: str
    field: str


def OPENAI(said: dict[str, Any], status: int) -> Told:
    error = said["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["code"]) == ("invalid_request_error", CODES[status])
    return Told(error["message"], error["param"] or "")


def TEI(said: dict[str, Any], status: int) -> Told:
    assert said.keys() == {"error", "error_type"}
    return Told(said["error"], said["error_type"])


def NVIDIA(said: dict[str, Any], status: int) -> Told:
    assert said.keys() == {"object", "message", "type", "detail"}
    assert said["detail"] == said["message"]
    return Told(said["message"], "")


def of_one(name: str) -> Callable[[dict[str, Any], int], Told]:
    def told(said: dict[str, Any], status: int) -> Told:
        assert said.keys() == {name}
        return Told(said[name], "")

    return told


COHERE, HUB, OLLAMA = of_one("message"), of_one("error"), of_one("error")


def SYSTEM_ONE(said: dict[str, Any], status: int) -> Told:
    detail = said["detail"]
    if status != 422:
        return Told(detail["message"], "")
    ((where, *field), message, kind) = detail[0].values()
    assert (where, kind, len(detail)) == ("body", "value_error", 1)
    return Told(message, *field or [""])


def of_text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def unknown_prompts(field: str) -> list[Any]:
    """Rows of the model with prompts; its texts are in this field."""
    return [
        (
            {"model": "embedder:nobody", field: ["a"]},
            "model",
            "...'embedder:nobody' is not served here: the prompts of embedder/1 are query",
            404,
        ),
        (
            {"model": "embedder:query", field: ["a"], "prompt_name": "document"},
            "prompt_name",
            "prompt_name is 'document', but model already has the prompt 'query'",
        ),
        (
            {field: ["a"], "prompt_name": "nobody"},
            "prompt_name",
            "prompt_name is 'nobody': embedder/1 has no such prompt",
        ),
    ]


# the dialect, the path, a good body, and the rows
# fmt: off
TABLES: list[tuple[Any, str, dict[str, Any], list[Any]]] = [
    (OPENAI, "/v1/infer", {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]]}, [
        ({"model": None}, "model", "no served model is named; served here: all-minilm-l6-v2"),
        ({"model": "bert"}, "model", "model 'bert' is not served here", 404),
        ({"model": "notebook/7"}, "model", "...no version '7': it has 1", 404),
        ({"model": "notebook/latest"}, "model", "...no version 'latest'", 404),
        ({"model": "../../etc/passwd"}, "model", "...is not served here", 404),
        ({"model": "notebook/01"}, "model", "...no version '01'", 404),
        ({"model": "notebook/../1"}, "model", "...no version '../1'", 404),
        ({"model": ""}, "model", "no served model is named"),
        ({"model": "notebook\x00"}, "model", "...is not served here", 404),
        ({"input_ids": None}, "input_ids", "input_ids is missing: send token ids, or texts"),
        ({"input_ids": [1, 2]}, "input_ids", "input_ids[0]: Input should be a valid list, got 1"),
        ({"input_ids": [[[1]]]}, "input_ids",
         "input_ids[0][0]: Input should be a valid integer, got [1]"),
        ({"input_ids": []}, "input_ids", "input_ids is empty"),
        ({"input_ids": [[1], []]}, "input_ids", "input_ids[1] is empty"),
        ({"input_ids": [[]], "attention_mask": [[]]}, "input_ids", "input_ids[0] is empty"),
        ({"input_ids": [[1, True]]}, "input_ids",
         "input_ids[0][1]: Input should be a valid integer, got true"),
        ({"input_ids": [["1"]]}, "input_ids",
         'input_ids[0][0]: Input should be a valid integer, got "1"'),
        ({"input_ids": [[1.5]]}, "input_ids",
         "input_ids[0][0]: Input should be a valid integer, got 1.5"),
        (b'{"model": "notebook", "input_ids": [[NaN]]}', "",
         "the body is not a JSON object: unexpected character"),
        (b'{"model": "notebook", "input_ids": [[1e999]]}', "",
         "the body is not a JSON object: number is infinity"),
        ({"input_ids": [[1], [1, 6]]}, "input_ids",
         "input_ids[1][1] is 6: ids of notebook/1 are 0 to 5"),
        ({"input_ids": [[-1]]}, "input_ids", "input_ids[0][0] is -1"),
        ({"input_ids": [[2 ** 63]]}, "input_ids",
         "input_ids[0][0] is 9223372036854775808, which is outside 64-bit"),
        ({"input_ids": [[1, 1], [1, 2 ** 63]]}, "input_ids",
         "input_ids[1][1] is 9223372036854775808, which is outside 64-bit"),
        ({"input_ids": [[2 ** 64]]}, "input_ids",
         "...integer, got 1.8446744073709552e+19: more than 64 bits hold"),
        ({"input_ids": [[2 ** 4000]]}, "", "the body is not a JSON object: number is infinity"),
        ({"input_ids": [[6, 9]], "attention_mask": [[0, 1]]}, "input_ids", "input_ids[0][1] is 9"),
        ({"input_ids": [[1] * 6]}, "input_ids",
         "input_ids[0] has 6 real tokens, the limit of notebook/1 is 5"),
        ({"input_ids": [[1], [1, 2]], "attention_mask": [[1], [1, 1]]}, "input_ids",
         "input_ids[1] has 2 tokens"),
        ({"input_ids": [[1], [2]], "attention_mask": [[1]]}, "attention_mask",
         "attention_mask has 1 rows, input_ids has 2"),
        ({"attention_mask": [[1]]}, "attention_mask",
         "attention_mask[0] has 1 values, input_ids[0] has 5"),
        ({"attention_mask": [[1, 1, 2, 1, 1]]}, "attention_mask", "attention_mask[0][2] is 2"),
        ({"attention_mask": [[1, 1, -1, 1, 1]]}, "attention_mask", "attention_mask[0][2] is -1"),
        ({"attention_mask": [[True] * 5]}, "attention_mask",
         "attention_mask[0][0]: Input should be a valid integer, got true"),
        ({"attention_mask": [[1, 1, 2 ** 63, 1, 1]]}, "attention_mask",
         "attention_mask[0][2] is 9223372036854775808"),
        ({"input_ids": [[1]] * 2049}, "input_ids", "...2049 sequences, the limit is 2048"),
        ({"input_ids": [[1] * 300001], "attention_mask": [[0] * 300001]}, "input_ids",
         "...300001 tokens with pads, the limit is 300000"),
        ({"ids": [[1]]}, "ids", "ids is unknown; known are model"),
        ({"outputs": []}, "outputs", "outputs is empty: send some of activations, logits"),
        ({"outputs": ["pooled", "pooled"]}, "outputs", "outputs has 'pooled' twice"),
        ({"outputs": ["hidden"]}, "outputs", "outputs has 'hidden': notebook/1 has activations, "),
        ({"outputs": [1]}, "outputs", "outputs[0]: Input should be 'activations', "),
        ({"outputs": ["attentions"]}, "outputs",
         "outputs has 'attentions': notebook/1 has activations"),
        ({"outputs": "pooled"}, "outputs", "outputs: Input should be a valid list"),
        ({"logits": {"top_k": 0}}, "logits.top_k", "logits.top_k is 0: 1 to 6"),
        ({"logits": {"top_k": 7}}, "logits.top_k", "logits.top_k is 7: 1 to 6"),
        ({"logits": {"position": "last"}}, "logits.position",
         "logits.position is unknown; known are positions, top_k"),
        ({"logits": {"positions": "first"}}, "logits.positions", "logits.positions"),
        ({"outputs": ["pooled"], "logits": {"top_k": 1}}, "logits",
         "logits is set, but outputs lacks 'logits'"),
        ({"pooling": "mean"}, "pooling", "pooling is set, but outputs lacks 'pooled'"),
        ({"outputs": ["pooled"], "pooling": "median"}, "pooling", "pooling: Input should be"),
        ({"outputs": ["pooled"], "normalize": 1}, "normalize",
         "normalize: Input should be a valid boolean, got 1"),
        ({"precision": "fp16"}, "precision", "precision"),
        ({"model": "gpt", "input_ids": [[1] * 40] * 2048}, "outputs",
         '..."outputs": ["activations"], or "logits": {"top_k": 5}'),
        (b"", "", "the body is not a JSON object"),
        (b'{"input_ids": [[1]', "", "the body is not a JSON object: unexpected end of data"),
        (b"[1]", "", "the body is not a JSON object"),
        (b'{"model": "\xff\xfe"}', "", "the body is not a JSON object"),
        (b'{"input_ids": ' + b"[" * 2000 + b"]" * 2000 + b"}", "", "the body is not a JSON object"),
        (b" " * (16 * 2 ** 20 + 1), "", "...the limit is 16777216", 413),
        *((sent, "", "...send each key once") for sent in (
            b'{"model": "notebook", "input_ids": [[9999]], "input_ids": [[1]]}',
            b'{"model": "notebook", "model": "gpt", "input_ids": [[1]]}',
            rb'{"model": "notebook", "\u006dodel": "gpt", "input_ids": [[1]]}',
            b'{"input_ids": [[1]], "logits": {"top_k": 3, "top_k": 1}, "outputs": ["logits"]}',
            b'{"input_ids": [[1]], "logits": {"top_k": 3}, "logits": {"top_k": 1}}',
        )),
        ({"token_type_ids": [[0]]}, "token_type_ids",
         "token_type_ids[0] has 1 values, input_ids[0] has 5"),
        ({"input_ids": [[1], [2]], "token_type_ids": [[0]]}, "token_type_ids",
         "token_type_ids has 1 rows, input_ids has 2"),
        ({"token_type_ids": [[0, 0, 1, 0, 0]]}, "token_type_ids",
         "token_type_ids[0][2] is 1: notebook/1 takes no token types: leave them out, or send "
         "zeros"),
        ({"attention_mask": [[0, 1, 1, 1, 1]], "token_type_ids": [[9, 0, 0, -1, 0]]},
         "token_type_ids",
         "token_type_ids[0][3] is -1: notebook/1 takes no token types"),
        ({"token_type_ids": [[0, 0, 2 ** 63, 0, 0]]}, "token_type_ids",
         "token_type_ids[0][2] is 9223372036854775808, which is outside 64-bit"),
        ({"truncate": True}, "truncate", "truncate is set, but applies to texts"),
        ({"texts": ["a"]}, "texts", "texts cannot be combined with"),
        ({"input_ids": None, "texts": ["a"]}, "texts",
         "notebook/1 has no tokenizer: send token ids"),
        ({"input_ids": [None]}, "input_ids", "input_ids[0]"),
    ]),
    (OPENAI, "/v1/infer", PACKED, [
        ({"normalize": False}, "dtype", '...which have length 1: send "normalize": true'),
        ({"pooling": "max"}, "dtype", "...are pooled by 'mean', not 'max': leave out pooling"),
        ({"model": "notebook", "input_ids": [[1]]}, "dtype",
         "...notebook/1 has no ranges to compute it with"),
        ({"outputs": ["pooled", "activations"]}, "dtype",
         "...'int8', which applies to pooled and token_vectors only, but outputs are pooled, act"),
        ({"outputs": None, "normalize": False}, "dtype", "...but outputs are activations: request"),
    ]),
    (OPENAI, "/v1/embeddings", EMBEDDED, [
        ({"dimensions": 8}, "dtype", "...which have 32 dimensions: leave"),
        ({"model": "notebook", "input": [1]}, "dtype", "...notebook/1 has no ranges"),
        ({"dtype": "int4"}, "dtype", "dtype: Input should be 'float32', 'int8'"),
        (b'{"model": "notebook", "input": [[9999]], "input": [[1]]}', "", "...send each key once"),
    ]),
    (OPENAI, "/v1/infer", {"model": TEXT_MODEL, "input_ids": [[2, 4, 3]]}, [
        ({"token_type_ids": [[0, 0, 2]]}, "token_type_ids",
         "token_type_ids[0][2] is 2: types of all-minilm-l6-v2/1 are 0 to 1"),
        ({"token_type_ids": [[0, -1, 0]]}, "token_type_ids",
         "token_type_ids[0][1] is -1: types of"),
        ({"token_type_ids": [[0, 0]]}, "token_type_ids",
         "token_type_ids[0] has 2 values, input_ids[0] has 3"),
        ({"token_type_ids": []}, "token_type_ids", "token_type_ids has 0 rows, input_ids has 1"),
        ({"token_type_ids": [[0, 0, True]]}, "token_type_ids",
         "token_type_ids[0][2]: Input should be a valid integer, got true"),
    ]),
    (OPENAI, "/v1/infer",
     {"model": "masked-lm", "input_ids": [[2, 4, 5, 3]], "outputs": ["sparse"]}, [
        ({"sparse": {"top_k": 0}}, "sparse.top_k", "sparse.top_k is 0: 1 to 23 for masked-lm/1"),
        ({"sparse": {"top_k": 24}}, "sparse.top_k", "sparse.top_k is 24: 1 to 23"),
        ({"outputs": ["pooled"], "sparse": {"top_k": 1}}, "sparse",
         "sparse is set, but outputs lacks 'sparse'"),
        ({"model": "classifier"}, "outputs", "outputs has 'sparse': classifier/1 has activations"),
    ]),
    (OPENAI, "/v1/infer", {"model": "embedder", "outputs": ["pooled"]}, [
        ({"texts": [SPANNED, "a"], "spans": [[[0, 17], [17, 40]]]}, "spans",
         "spans has 1 lists, texts has 2: send one list of ranges for each, which may be empty"),
        ({"texts": [SPANNED], "spans": [[[0, 17], [17, 40]], []]}, "spans",
         "spans has 2 lists, texts has 1"),
        ({"texts": ["a", SPANNED], "spans": [[], [[0, 4], [3, 41]]]}, "spans",
         "spans[1][1] is [3, 41]: a range of texts[1] is [first, one past the last] of its 40 "
         "characters"),
        ({"texts": [SPANNED], "spans": [[[3, 3]]]}, "spans",
         "spans[0][0] is [3, 3]: a range of texts[0]"),
        ({"texts": [SPANNED], "spans": [[[-1, 3]]]}, "spans", "spans[0][0] is [-1, 3]: a range of"),
        ({"texts": [SPANNED], "spans": [[[4, 5]]]}, "spans",
         "spans[0][0] is [4, 5]: it contains no token of texts[0], not counting special tokens "
         "and padding"),
        ({"texts": [SPANNED], "spans": [[[0, 3]]]}, "spans", "spans[0][0] is [0, 3]: it contains"),
        ({"texts": ["a " * 60], "truncate": True, "spans": [[[100, 110]]]}, "spans",
         "spans[0][0] is [100, 110]: a range of texts[0] is [first, one past the last] of its 75 "
         "characters that are left once it is cut"),
        ({"input_ids": [[2, 0, 4]], "attention_mask": [[1, 0, 1]], "spans": [[[1, 2]]]}, "spans",
         "spans[0][0] is [1, 2]: it contains no token of input_ids[0]"),
        ({"input_ids": [[2, 3]], "spans": [[[0, 1]] * 3]}, "spans",
         "spans[0] has 3 ranges, the limit is 2: one for each token of input_ids[0]"),
        ({"texts": [["a", "b"]], "spans": [[[0, 1]]]}, "spans",
         "spans is set, but texts[0] is a pair: spans need single texts"),
        ({"texts": [SPANNED], "spans": [[[0, 17], [17, 40]]], "outputs": ["activations"]}, "spans",
         "spans is set, but outputs lacks 'pooled'"),
        ({"texts": [SPANNED], "spans": [[[0]]]}, "spans", "spans[0][0]: "),
    ]),
    (OPENAI, "/v1/infer", {"model": "classifier", "input_ids": [[7]]}, [
        ({"logits": {"positions": "last"}}, "logits.positions",
         "logits.positions is 'last', but classifier/1 has one row"),
        ({"logits": {"top_k": 6}}, "logits.top_k", "logits.top_k is 6: 1 to 3 for classifier/1"),
    ]),
    (OPENAI, "/v1/infer", {"model": "colbert", "input_type": "query"}, [
        ({"input_ids": [[2, 3]]}, "input_type", "input_type is set, but applies to texts only"),
        ({"texts": [["a", "b"]]}, "input_type", "input_type is set, but texts[0] is a pair"),
        ({"texts": ["a"], "prompt_name": "query"}, "input_type",
         "input_type is 'query', and the prompt 'query' is set as well"),
        ({"model": "embedder", "texts": ["a"]}, "input_type",
         "input_type is 'query', but embedder/1 does not distinguish queries from"),
    ]),
    (OPENAI, "/v1/infer", {"model": TEXT_MODEL}, [
        ({"texts": ["a", "a " * 40]}, "texts",
         "texts[1] has 42 tokens, 30 more than all-minilm-l6-v2/1 takes (12): shorten it, or send"
         ' "truncate": true'),
        ({"texts": ["a" * 600]}, "texts",
         "texts[0] has 600 characters, 344 more than all-minilm-l6-v2/1 takes (256)"),
        ({"texts": []}, "texts", "texts is empty: send at least one text"),
        ({"texts": ["a"] * 2049}, "texts", "texts has 2049 texts, the limit is 2048"),
        ({"texts": "a"}, "texts", 'texts: Input should be a valid list, got "a"'),
        ({"texts": ["a", 1]}, "texts", "texts[1]: Input should be a text, or a pair"),
        ({"texts": ["\ud800"]}, "", "the body is not a JSON object"),
        ({"texts": ["a"], "attention_mask": [[1]]}, "texts", "texts cannot be combined with"),
        ({"texts": ["a", ["a"]]}, "texts",
         "texts[1]: Input should be a text, or a pair of texts: [first, second]"),
        ({"texts": [["a", "b", "c"]]}, "texts", '...of texts: [first, second], got ["a","b","c"]'),
        ({"texts": [["a", 1]]}, "texts", "texts[0]: Input should be a text, or a pair of texts"),
        ({"texts": [["a", None]]}, "texts", "texts[0]: Input should be a text, or a pair of texts"),
        ({"texts": [["a", ["b", "c"]]]}, "texts",
         "texts[0]: Input should be a text, or a pair of texts"),
        ({"texts": [["a b c a b", "a b c a b"]]}, "texts", "texts[0] has 13 tokens, 1 more than"),
        ({"texts": [["a" * 200, "b" * 100]]}, "texts", "texts[0] has 300 characters, 44 more than"),
    ]),
    (OPENAI, "/v1/tokenize", {"model": TEXT_MODEL}, [
        ({"texts": ["a", ["a"]]}, "texts",
         "texts[1]: Input should be a text, or a pair of texts: [first, second]"),
        ({"texts": [["a", 1]]}, "texts", "texts[0]: Input should be a text, or a pair of texts"),
        ({"texts": [["a", None]]}, "texts", "texts[0]: Input should be a text, or a pair of texts"),
        ({"texts": [["a", ["b", "c"]]]}, "texts",
         "texts[0]: Input should be a text, or a pair of texts"),
        ({"input_ids": [[2], [-1]]}, "input_ids", "input_ids[1] has -1: ids are 0 to 22"),
        ({"input_ids": [[23]]}, "input_ids", "input_ids[0] has 23: ids are 0 to 22"),
        ({"input_ids": [[2] * 10001]}, "input_ids",
         "input_ids has 10001 ids, the limit is 10000"),
        ({"input_ids": [[2]], "texts": ["a"]}, "input_ids",
         "texts and input_ids are both set: send one"),
        ({}, "texts", "texts is missing: send texts, or input_ids"),
    ]),
    (OPENAI, "/v1/infer", {"model": TEXT_MODEL, "truncate": True}, [
        ({"texts": ["a", ["a " * 20000, "a " * 20000]]}, "texts",
         "texts[1] is a pair of texts of more than 32768 characters each"),
        ({"texts": ["a", " " * 2**17 + "the same text"]}, "texts",
         "texts[1] has 131085 characters, and its first 131072 have too few tokens to truncate"
         " it to 12: shorten it"),
        ({"texts": ["a", ["a", "x" * 150000]]}, "texts",
         "texts[1][1] has 150000 characters, and its first 131072 have"),
        ({"texts": ["a", ["x" * 150000, "a"]]}, "texts",
         "texts[1][0] has 150000 characters, and its first 131072 have"),
    ]),
    (OPENAI, "/v1/infer", {"model": "embedder"}, [
        ({"texts": ["a"], "prompt_name": "x"}, "prompt_name",
         "prompt_name is 'x': embedder/1 has no such prompt, it has 'query', 'document'"),
        ({"texts": ["a", ["a", "b"]], "prompt_name": "query"}, "prompt_name",
         "prompt_name is set, but texts[1] is a pair"),
        ({"input_ids": [[2, 3]], "prompt_name": "query"}, "prompt_name",
         "prompt_name is set, but applies to texts only"),
        ({"model": TEXT_MODEL, "texts": ["a"], "prompt_name": "query"}, "prompt_name",
         "...has no such prompt, it has none"),
        ({"model": "embedder:query", "input_ids": [[2, 3]]}, "prompt_name",
         "...applies to texts only"),
        *unknown_prompts("texts"),
    ]),
    (OPENAI, "/v1/tokenize", {"model": "embedder"}, [
        ({"texts": ["a"], "prompt_name": "x" * 99}, "prompt_name", "...has no such prompt"),
        *unknown_prompts("texts"),
    ]),
    (OPENAI, "/v1/embeddings", {"model": "embedder"}, [
        ({"input": [[2, 3]], "prompt_name": "query"}, "prompt_name",
         "prompt_name is set, but applies to texts only"),
        ({"input": "a", "prompt_name": " "}, "prompt_name", "prompt_name is ' '"),
        ({"model": "embedder:query", "input": [[2, 3]]}, "prompt_name", "...applies to texts only"),
        *unknown_prompts("input"),
    ]),
    (OPENAI, "/v1/tokenize", {"model": "colbert", "texts": ["a"], "input_type": "query"}, [
        ({"prompt_name": "query"}, "input_type", "input_type"),
    ]),
    (OPENAI, "/v1/embeddings", {"model": TEXT_MODEL, "input": "a"}, [
        ({"model": "gpt-5"}, "model", "...'gpt-5' is not served here", 404),
        ({"input": ["a", "a " * 40]}, "input", "input[1] has 42 tokens, 30 more than"),
        ({"input": [[2, *[1] * 15, 3]]}, "input", "input[0] has 17 real tokens, the limit"),
        ({"input": [[1], [50256]]}, "input", "...set check_embedding_ctx_length=False"),
        ({"input": [2, -1, 3]}, "input", "input[0][1] is -1: ids of"),
        ({"input": [[1, 2 ** 64]]}, "input",
         "input[0][1]: Input should be a valid integer, got 1.8446744073709552e+19: more than 64 "
         "bits hold"),
        ({"input": []}, "input", "input is empty"),
        ({"input": [[1], []]}, "input", "input[1] is empty"),
        ({"input": ["a", 1]}, "input", "input[1]: Input should be a valid string, got 1"),
        ({"input": [[1], "a"]}, "input", 'input[1]: Input should be a valid list, got "a"'),
        ({"input": [1, True]}, "input", "input[1]: Input should be a valid integer, got true"),
        ({"input": {}}, "input", "input: Input should be a text, a list of texts"),
        ({"dimensions": -1}, "dimensions",
         "dimensions: Input should be greater than or equal to 1, got -1"),
        ({"dimensions": 33}, "dimensions", "dimensions is 33: 1 to 32"),
        ({"encoding_format": "int8"}, "encoding_format", "encoding_format: Input should be"),
        ({"input": [1], "truncate": True}, "truncate", "truncate is set, but applies to texts"),
        ({"model": "notebook"}, "input", "notebook/1 has no tokenizer"),
        ({"input": [None]}, "input", "input: Input should be a text, a list of texts"),
        ({"input": ["a", None]}, "input", "input[1]: Input should be a valid string"),
        ({"input": [[2, None]]}, "input", "input[0][1]: Input should be a valid integer"),
    ]),
    (OPENAI, "/embeddings", {"model": "embedder"}, [
        ({"input": 1}, "input", "input: Input should be"),
    ]),
    (OPENAI, "/v1/embeddings", {"model": "embedder", "input": ["a"]}, [
        ({"modality": "image"}, "modality", "modality"),
        ({"late_chunking": True, "input": [[2, 3]]}, "late_chunking",
         "late_chunking is true, but input has token ids: send texts"),
        ({"late_chunking": True, "input": []}, "input", "input is empty"),
        ({"late_chunking": True, "input": ["a " * 30, "b " * 30]}, "input",
         "input as one text has 62 tokens, 22 more than embedder/1 takes (40): shorten it, or"),
        ({"late_chunking": True, "input": ["a " * 30, "b " * 30, "c"], "truncate": True}, "input",
         "input[2] has no vector in one text with the other chunks: the text is truncated before"),
        ({"late_chunking": True, "input": ["pads ", "", "are"]}, "input",
         "input[1] has no vector in one text with the other chunks: it has no token of its own"),
        ({"late_chunking": True, "input": ["pads ", ""]}, "input",
         "input[1] has no vector in one text with the other chunks: it has no token of its own"),
        ({"spans": [[[0, 1]]]}, "spans", "spans is [[[0,1]]]: /v1/infer has them; leave spans out"),
        ({"sparse": {"top_k": 3}}, "sparse", 'sparse is {"top_k":3}: /v1/infer has them'),
        ({"outputs": ["sparse"]}, "outputs", 'outputs is ["sparse"]: /v1/infer has them'),
        ({"late_chunking": True, "truncate": "START"}, "truncate",
         "truncate is 'START', but late_chunking keeps the first chunks"),
        ({"truncate_prompt_tokens": 7}, "truncate_prompt_tokens",
         "truncate_prompt_tokens is 7: embedder/1 truncates texts to 40"),
        ({"input_type": "query", "task": "retrieval.query"}, "task",
         "task and input_type are both set"),
        ({"input_type": "query", "truncate": "START"}, "truncate",
         "...which would cut off the prompt"),
        ({"input_type": "query", "model": "embedder:document"}, "input_type",
         "...already has the prompt"),
        ({"input": [{"text": "a", "image": "b"}]}, "input",
         '...image is "b": only texts are embedded here'),
        ({"dtype": "int8", "output_dtype": "binary"}, "output_dtype",
         "output_dtype and dtype mean the same"),
        ({"dtype": "float32", "embedding_type": "binary"}, "embedding_type", "...mean the same"),
        ({"dimensions": 3, "output_dimension": 4}, "output_dimension",
         "output_dimension and dimensions mean the same"),
        ({"truncate": "END", "truncation": False}, "truncation",
         "truncation and truncate mean the same"),
        ({"truncate": False, "truncate_prompt_tokens": -1}, "truncate_prompt_tokens",
         "...mean the same"),
        ({"input": [[2, 3]], "input_type": "query"}, "input_type",
         "...puts the model's prompt 'query' before"),
        ({"input": [[2, 3]], "task": "retrieval.passage"}, "task",
         "task is 'retrieval.passage', which"),
        ({"add_special_tokens": False}, "add_special_tokens",
         "add_special_tokens is false: texts always have them"),
        ({"stream": True}, "stream", "stream is true"),
        ({"instruction": "Find"}, "instruction", 'instruction is "Find": this is not supported'),
        ({"dimension": 3}, "dimension", "dimension is 3: the field is called dimensions; leave"),
        ({"extra_body": {"truncate": True}}, "extra_body", "...belong into the body itself"),
        ({"normalized": True, "normalize": False}, "normalize", "...mean the same"),
    ]),
    (OPENAI, "/v1/completions", SCORED, [
        ({"max_tokens": None}, "max_tokens", "...is missing, which means 16 new tokens: this"),
        ({"max_tokens": 2}, "max_tokens", "...is 2: this server scores, it does not generate"),
        ({"max_tokens": 0, "echo": False}, "max_tokens", "...is 0, but echo and logprobs are not"),
        ({"temperature": None}, "temperature", "...is missing, which means 1: the new token is"),
        ({"temperature": 0.7}, "temperature", "...is 0.7: the new token is always the likeliest"),
        ({"temperature": 0.7, "max_tokens": 0}, "temperature",
         "...are always computed at temperature 1"),
        ({"logprobs": 21}, "logprobs", "...less than or equal to 20, got 21"),
        ({"n": 2}, "n", "...is 2: this server scores, it does not generate; leave n out"),
        ({"stream": True}, "stream", "...is true: this server scores"),
        ({"stop": ["x"]}, "stop", '...is ["x"]: this server scores'),
        ({"best_of": 3}, "best_of", "...is 3: this server scores"),
        ({"suffix": "x"}, "suffix", '...is "x": this server scores'),
        ({"logit_bias": {"5": 1}}, "logit_bias", "...this server scores"),
        ({"prompt": []}, "prompt", "...is empty: send at least one text or sequence"),
        ({"prompt": [[]]}, "prompt", "...[0] is empty: leave it out"),
        ({"prompt": ""}, "prompt", "...[0] has no tokens"),
        ({"prompt": 5}, "prompt", "...a text, a list of texts, token ids, or a list of such"),
        ({"prompt": "a" * 16 * 40}, "prompt", "...takes (40): shorten it"),
        ({"prompt": [[1] * (40 + 1)]}, "prompt", "...the limit of gpt/1 is 40"),
        ({"prompt": [[300]]}, "prompt", "...are 0 to 299. Ids of another"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "...is 1.1: this server scores"),
        ({"model": TEXT_MODEL}, "model", "all-minilm-l6-v2/1 cannot"),
    ]),
    (OPENAI, "/v1/classify", {}, [
        ({"texts": []}, "texts", "texts is empty"),
        ({"texts": ["a"], "top_k": -1}, "top_k", "...greater than or equal to 1"),
        ({"texts": ["a"], "model": "embedder"}, "model", "embedder/1 cannot classify"),
        ({"texts": ["a"], "kind": 1}, "kind", "kind is unknown; known are"),
        ({"texts": ["a " * 60]}, "texts", "texts[0] has 62 tokens, 22 more than"),
    ]),
    (OPENAI, "/v1/tag", {}, [
        ({"texts": [["a", "b"]]}, "texts", "texts[0] is a pair: send single texts"),
    ]),
    (OPENAI, "/v1/fill-mask", {}, [
        ({"texts": ["[MASK]", "a"]}, "texts", "texts[1] has no mask token: put"),
        ({"texts": ["[MASK]"], "top_k": 101}, "top_k", "...equal to 100"),
        ({"texts": ["[MASK]"], "targets": ["zzz"]}, "targets", "targets has 'zzz'"),
    ]),
    (OPENAI, "/v1/zero-shot", {}, [
        ({"texts": ["a"], "candidate_labels": []}, "candidate_labels", "candidate_labels: "),
        ({"texts": ["a"], "candidate_labels": ["b"], "hypothesis_template": "no"},
         "hypothesis_template",
         "hypothesis_template is 'no'"),
        ({"texts": ["x", "y"], "candidate_labels": ["a", "b " * 499], "model": "classifier"},
         "texts",
         "texts[0] with candidate_labels[1] in hypothesis_template has "),
    ]),
    (OPENAI, "/score", {}, [
        ({"text_1": ["a"] * 3, "text_2": ["a"] * 2}, "text_1", "text_1 has 3 texts, text_2 has 2"),
    ]),
    (COHERE, "/v1/rerank", {}, [
        ({"query": ENDLESS, "documents": ["x"]}, "", "query has "),
        ({"query": "x", "documents": ["x", ENDLESS]}, "", "documents[1] has "),
    ]),
    (COHERE, "/v2/embed", {"model": "embedder", "texts": ["a"], "input_type": "clustering"}, [
        ({"texts": []}, "", "texts is empty"),
        ({"texts": ["a", "a " * 62], "truncate": "NONE"}, "",
         "texts[1] has 64 tokens, 24 more than"),
        ({"truncate": "LEFT"}, "", "truncate: Input should be 'NONE', 'START' or 'END'"),
        ({"truncate": "START", "input_type": "search_query"}, "", "...would cut off the prompt"),
        ({"input_type": "image"}, "", "input_type: Input should be 'search_query'"),
        ({"images": ["data:image/png;base64,AA=="]}, "",
         "...only texts are embedded here; leave images"),
        ({"inputs": []}, "", "texts and inputs are both set: send one of them"),
        ({"output_dimension": 999}, "", "output_dimension is 999: 1 to "),
        ({"max_tokens": 3}, "", "...embedder/1 truncates texts to 40 tokens"),
        ({"embedding_types": ["int4"]}, "", "embedding_types[0]: Input should be 'float'"),
        ({"embedding_types": []}, "", "embedding_types: Input should have 1 items or more"),
        ({"embedding_types": ["float", "int8"], "output_dimension": 8}, "",
         "embedding_types is 'int8': its ranges are of embedder/1's own vectors"),
        ({"model": "embedder:document", "input_type": "search_query"}, "",
         "input_type is 'search_query', but model already has the prompt 'document'"),
        ({"model": "embedder:query", "input_type": "clustering"}, "",
         "...already has the prompt"),
    ]),
    (COHERE, "/v2/embed", {"model": "embedder", "truncate": "NONE"}, [
        ({"inputs": []}, "", "inputs is empty"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "",
         "inputs[0].content[0].type: Input should be 'text', got \"image_url\""),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}] * 2}]}, "",
         "inputs[0].content: Input should have 1 items or fewer, got 2"),
        ({"inputs": [of_text("a"), of_text("a " * 62)]}, "",
         "inputs[1] has 64 tokens, 24 more than"),
    ]),
    (COHERE, "/v1/rerank", {"model": "reranker", "query": "a", "documents": ["b"]}, [
        ({"documents": []}, "", "documents is empty"),
        ({"documents": ["b"] * 2049}, "", "documents has 2049 texts, the limit is 2048"),
        ({"top_n": -1}, "", "top_n: Input should be greater than or equal to 0, got -1"),
        ({"rank_fields": ["title"]}, "",
         'rank_fields is ["title"]: the text of a document is scored'),
        ({"model": "classifier"}, "", "classifier/1 cannot rerank"),
        ({"documents": [None]}, "", "documents[0]"),
        ({"top_n": 1, "top_k": 2}, "", "top_k and top_n mean the same"),
        ({"documents": ["a " * 80], "truncation": False}, "", "...documents[0] has"),
    ]),
    (COHERE, "/v2/rerank", {"model": "reranker", "query": "a", "documents": ["b"]}, [
        ({"documents": ["a", "pads " * 90], "max_tokens_per_doc": 20}, "",
         "max_tokens_per_doc is 20, but documents[1] has 40 tokens"),
        ({"documents": ["pads " * 90], "overlap_tokens": 80}, "",
         "overlap_tokens is 80, but a window of 40 tokens has 4 beside the text that is split"),
        ({"documents": ["b"], "windows": {}, "max_chunks_per_doc": 2}, "",
         "windows and max_chunks_per_doc are both set"),
    ]),
    (TEI, "/rerank", {}, [
        ({"query": "a", "texts": ["b"], "top_n": 1, "top_k": 2}, "Validation", "...mean the same"),
        ({"query": ENDLESS, "texts": ["x"], "truncate": False}, "Validation",
         "query with texts[0] has "),
        ({"query": "a", "texts": []}, "Empty", "texts is empty"),
        ({"texts": ["a"]}, "Validation", "query is missing"),
    ]),
    (TEI, "/similarity", {}, [
        ({"inputs": {"source_sentence": ENDLESS, "sentences": ["x"]}}, "Validation",
         "inputs.source_sentence has "),
        ({"inputs": {"source_sentence": "x", "sentences": ["x", ENDLESS]}}, "Validation",
         "inputs.sentences[1] has "),
        ({"inputs": {"source_sentence": "a", "sentences": []}}, "Empty",
         "inputs.sentences is empty"),
        ({"inputs": {"source_sentence": "a"}}, "Validation", "inputs.sentences is missing"),
    ]),
    (TEI, "/embed", {}, [
        ({"inputs": []}, "Empty", "inputs is empty"),
        ({"inputs": [""] * 2049}, "Validation", "inputs has 2049 texts, the limit is 2048"),
        ({"inputs": 1}, "Validation", "inputs: Input should be"),
        ({}, "Validation", "inputs is missing"),
        ({"inputs": "a", "precision": "int8"}, "Validation",
         'precision is "int8": this is not supported'),
        ({"inputs": "a", "dimensions": 37}, "Validation", "dimensions is 37: 1 to 36"),
        ({"inputs": "a", "prompt_name": "x"}, "Validation", "prompt_name is 'x'"),
        ({"inputs": "a " * 50, "truncate": False}, "Validation",
         "inputs[0] has 52 tokens, 12 more than embedder/1 takes (40)"),
        ({"inputs": "a " * 20000, "truncation_direction": "Left"}, "Validation",
         "inputs[0] has 40000 characters: a text of more than 32768 characters cannot"),
        ({"inputs": "a", "truncation_direction": "up"}, "Validation",
         "truncation_direction: Input should be 'Left', 'Right'"),
        ({"inputs": [[2, 3]], "truncate": True}, "Validation", "truncate is set"),
        ({"inputs": [[2, 99, 3]]}, "Validation", "inputs[0][1] is 99: ids of embedder/1"),
        ({"inputs": ["a"], "parameters": {"stream": True}}, "Validation", "stream is true"),
        ({"inputs": ["a"], "truncate": True, "parameters": {"truncate": False}}, "Validation",
         "...mean the same"),
        ({"inputs": ["a"], "model": "nobody"}, "Validation", "...not served here", 404),
    ]),
    (TEI, "/embed_all", {}, [
        ({"inputs": [[]]}, "Validation", "inputs[0] is empty"),
    ]),
    (TEI, "/embed_sparse", {}, [
        ({"inputs": []}, "Empty", "inputs is empty"),
    ]),
    (TEI, "/predict", {}, [
        ({"inputs": []}, "Empty", "inputs is empty"),
        ({"inputs": ["a", "b", "c"]}, "Validation", "...texts by themselves make a batch"),
        ({"inputs": [["a"], "b"]}, "Validation", "...texts by themselves make a batch"),
    ]),
    (TEI, "/tokenize", {}, [
        ({"inputs": []}, "Empty", "inputs is empty"),
        ({"inputs": "a" * 641}, "Validation", "inputs[0] has 641 characters, 1 more"),
    ]),
    (TEI, "/decode", {}, [
        ({"ids": []}, "Empty", "ids is empty"),
        ({"ids": [23]}, "Validation", "ids has 23: ids of tokens of embedder/1 are 0 to 22"),
        ({"ids": [-1]}, "Validation", "ids has -1"),
        ({"ids": [[4]] * 2049}, "Validation", "ids has 2049 lists, the limit is 2048"),
    ]),
    (TEI, "/", {}, [
        ({"text": "a"}, "Validation", "query or parameters or inputs is missing"),
    ]),
    (TEI, "/hf/embedder/rerank", {}, [
        ({"query": "a", "texts": ["b"]}, "Validation", "...cannot rerank"),
    ]),
    (TEI, "/vertex", {}, [
        ({"instances": []}, "Empty", "instances is empty"),
        ({"instances": [{"inputs": "a"}, {"inputs": 1}]}, "Validation",
         "instances[1].inputs: Input should be a text"),
        ({"instances": [{"inputs": "a"}, {"inputs": "b", "normalize": False}]}, "Validation",
         "instances[1] has normalize"),
        ({"instances": [{"inputs": "a"}, {"inputs": [[1, 2]]}]}, "Validation",
         "instances[1] has token ids"),
        ({"instances": [{"inputs": "a"}, {"query": "b", "texts": ["c"]}]}, "Validation",
         "instances[1].inputs is missing"),
        ({"instances": [{"inputs": 1}] * 2049}, "Validation",
         "instances has 2049 instances, the limit is 2048"),
        ({"instances": [{"inputs": "a"}, {"inputs": "b", "prompt_name": "x" * 100000}]},
         "Validation",
         "instances[1] has prompt_name "
         '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..., instances[0] has null'),
    ]),
    (HUB, "/hf/other", {}, [
        ({"inputs": "a"}, "", "model 'other' is not served here", 404),
    ]),
    (HUB, "/hf/tagger", {}, [
        ({"inputs": 3}, "", "inputs: Input should be a text"),
        ({"inputs": "a", "parameters": {"top_k": 3}}, "", "parameters.top_k is set"),
        ({"inputs": "a", "parameters": {"targets": ["b"]}}, "", "...has no effect for the task"),
        ({"inputs": "a", "normalize": True, "parameters": {"top_k": 1}}, "", "...no effect"),
    ]),
    (HUB, "/hf/embedder", {}, [
        ({"inputs": "a", "dimensions": 999}, "", "dimensions is 999: 1 to 36"),
        ({"inputs": "a", "parameters": {"top_k": 3}}, "",
         "parameters.top_k is set, but has no effect for the task of embedder/1; known are"),
        ({"inputs": {"source_sentence": "a", "sentences": []}}, "", "...sentences is empty"),
        ({"inputs": {"source_sentence": "a", "sentences": ["b"]}, "dimensions": 3}, "",
         "dimensions is set, but has no effect for similarity"),
        ({"inputs": {"source_sentence": "a " * 60, "sentences": ["a"]}, "truncate": False}, "",
         "inputs.source_sentence has"),
    ]),
    (HUB, "/hf/masked-lm", {}, [
        ({"inputs": "a b", "parameters": {}}, "", "inputs[0] has no mask token"),
    ]),
    (HUB, "/invocations", {}, [
        ({"inputs": ["a"], "parameters": {"seed": 1, "n": 2}}, "", "...n is 2: this server scores"),
    ]),
    (HUB, "/", {}, [
        ({"inputs": ["a"], "parameters": {"seed": 1, "n": 2}}, "", "...n is 2: this server scores"),
    ]),
    (SYSTEM_ONE, "/v1/systemone",
     {"model": "reranker", "state": "a", "questions": {"q": ASKED}}, [
        ({"model": "nobody"}, "", "model 'nobody' is not served here", 404),
        ({"model": "embedder"}, "model", "embedder/1 cannot decide between options", 422),
        ({"state": None}, "state", "state", 422),
        ({"assets": {"a": {}}}, "assets", "assets has images, which are not supported", 422),
        ({"questions": {}}, "questions", "questions: Input should be an object of 1 to 64", 422),
        ({"questions": {str(at): {} for at in range(65)}}, "questions", "...got 65 questions", 422),
        ({"questions": {"a": {"type": "box"}}}, "questions",
         'questions.a: its type should be noul, choice, score, got "box"', 422),
        ({"questions": {"a": {"type": "noul"}}}, "questions",
         "questions.a.instructions and criteria are missing", 422),
        ({"questions": {"a": {"type": "choice", "criteria": {"b": None}}}}, "questions",
         "questions.a.criteria: ", 422),
        ({"questions": {"a": {"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))}}},
         "questions", "questions.a.criteria: ", 422),
        ({"questions": {"a": {"type": "score", "criteria": {"0": "b", "1": "c"}}}}, "questions",
         "questions.a.criteria: Input should be a valid list", 422),
        ({"questions": {"a": {"type": "noul", "instructions": "b", "prompt": "c"}}}, "questions",
         'questions.a.prompt is "c": this is not supported', 422),
        ({"state": "a " * 90}, "questions", "state with questions.q, option false has", 422),
    ]),
    (OLLAMA, "/api/embed", {"model": "embedder"}, [
        ({"input": "a " * 80, "truncate": False}, "", "input[0] has 82 tokens"),
    ]),
    (OLLAMA, "/api/show", {}, [
        ({"model": "nobody"}, "", "...not served here", 404),
    ]),
    (OLLAMA, "/api/pull", {}, [
        ({"model": "nobody", "stream": True}, "",
         "pull model manifest: file does not exist: model", 404),
        ({"model": "nobody", "stream": False}, "",
         "pull model manifest: file does not exist: model", 404),
    ]),
    (NVIDIA, "/v1/ranking", {"query": {"text": "a"}}, [
        ({"passages": [{"text": "a " * 80}]}, "", "query with passages[0] has"),
    ]),
    (NVIDIA, "/v1/retrieval/reranker/reranking", {"query": {"text": "a"}}, [
        ({"passages": [{"text": "a " * 80}]}, "", "query with passages[0] has"),
    ]),
]
# fmt: on
ROWS = [
    pytest.param(dialect, path, good, *row, *[400][: 4 - len(row)], id=f"{path} {row[2][:60]}")
    for dialect, path, good, rows in TABLES
    for row in rows
]


@pytest.fixture(scope="module")
def client(
    text_bundles: Path,
    task_bundles: Path,
    multi_vector_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    folders = [
        *text_bundles.iterdir(), *task_bundles.iterdir(), *multi_vector_bundles.iterdir(),
    ]  # fmt: skip
    root = linked(tmp_path_factory.mktemp("all"), folders)
    defaults = {**DEFAULTS, "embed": "embedder", "complete": "gpt", "rerank": "reranker"}
    with client_of(inference_of(root, default_models=defaults)) as client:
        yield client
        body = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]]}
        assert client.post("/v1/infer", json=body).status_code == 200, "after all of these"


@pytest.mark.parametrize(("dialect", "path", "good", "changes", "field", "words", "status"), ROWS)
def test_what_does_not_fit_is_rejected_by_field_limit_and_value(
    client: httpx.Client,
    dialect: Callable[[dict[str, Any], int], Told],
    path: str,
    good: dict[str, Any],
    changes: dict[str, Any] | bytes,
    field: str,
    words: str,
    status: int,
) -> None:
    content = changes if isinstance(changes, bytes) else json.dumps({**good, **changes}).encode()
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    error = dialect(answer.json(), status)
    assert error.field == field
    if words.startswith("..."):
        assert words[3:] in error.message
    else:
        assert error.message.startswith(words)
    assert len(error.message) < 700
