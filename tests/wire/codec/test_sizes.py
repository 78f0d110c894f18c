"""What a request multiplies to: every route answers just under each limit, and just over it refuses
before anything is built, by field, limit and value."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from addnorm.service.engine.registry import Models
from tests.conftest import client_of, service_of
from tests.support.task_models import MAX_TEXT_TOKENS

MAX_SEQUENCES, MAX_TOKENS = 8, 128
MAX_CHARACTERS = 16 * MAX_TEXT_TOKENS
KINDS = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
MASKED = "the [MASK] costs"


def texts(num: int, text: str = "a") -> list[str]:
    return [text] * num


def zero_shot(num_texts: int = 1, num_labels: int = 1, **changed: Any) -> dict[str, Any]:
    labels = {"candidate_labels": texts(num_labels, "b")}
    sent = {"model": "classifier", "texts": texts(num_texts), "truncate": True}
    return {**sent, **labels, **changed}


def hugging_face(num_texts: int = 1, num_labels: int = 1, **changed: Any) -> dict[str, Any]:
    options = {"candidate_labels": texts(num_labels, "b"), **changed}
    return {"inputs": texts(num_texts), "truncate": True, "parameters": options}


def fill_mask(**changed: Any) -> dict[str, Any]:
    return {"texts": [MASKED], **changed}


def hugging_face_mask(**changed: Any) -> dict[str, Any]:
    return {"inputs": MASKED, "parameters": changed}


def v2(num_rows: int) -> dict[str, Any]:
    ids = {"name": "input_ids", "shape": [num_rows, 1], "datatype": "INT64"}
    return {"inputs": [{**ids, "data": [4] * num_rows}], "outputs": [{"name": "pooled"}]}


def long_label(num: int) -> list[str]:
    return [("b " * num)[:num]]


def template(num: int) -> str:
    return ("c " * num)[: num - 2] + "{}"


def target(num: int) -> list[str]:
    return [" " * (num - 1) + "a"]


INFER = {"model": "embedder", "outputs": ["pooled"]}
EMBED = {"model": "embedder", "texts": ["a"] * 2}
HF = "/hf/classifier"
PAIRS = "candidate_labels has 3 for each of 3 {}, which makes 9 pairs, the limit is 8"
# the path, what is just under a limit, what is just over it, and the words for that
ROWS: list[tuple[str, Any, Any, str]] = [
    ("/v1/zero-shot", zero_shot(4, 2), zero_shot(3, 3), PAIRS.format("texts")),
    (HF, hugging_face(2, 4), hugging_face(3, 3), PAIRS.format("inputs")),
    *(
        (path, make(**{name: value(1000)}), make(**{name: value(1001)}),
         f"{prefix}{name}{of}: Input should have 1000 characters or fewer, got 1001")
        for path, make, prefix in (
            ("/v1/zero-shot", zero_shot, ""), (HF, hugging_face, "parameters."),
        )
        for name, value, of in (
            ("candidate_labels", long_label, "[0]"), ("hypothesis_template", template, ""),
        )
    ),
    *(
        (path, make(targets=value(most)), make(targets=value(most + 1)),
         f"{prefix}targets{of}: Input should have {most} {what} or fewer, got {most + 1}")
        for path, make, prefix in (
            ("/v1/fill-mask", fill_mask, ""), ("/hf/masked-lm", hugging_face_mask, "parameters."),
        )
        for value, most, of, what in (
            (texts, 1000, "", "items"), (target, 256, "[0]", "characters"),
        )
    ),
    ("/v1/fill-mask", fill_mask(top_k=100), fill_mask(top_k=101),
     "top_k: Input should be less than or equal to 100, got 101"),
    ("/hf/masked-lm", hugging_face_mask(top_k=100), hugging_face_mask(top_k=101),
     "top_k has 101 candidates of each mask, the limit is 100"),
    *(
        (path, {**EMBED, "embedding_types": KINDS}, {**EMBED, "embedding_types": [*KINDS, "float"]},
         "embedding_types: Input should have 6 items or fewer, got 7")
        for path in ("/v1/embed", "/v2/embed")
    ),
]  # fmt: skip
# the path, the field of its texts, and the rest of a body
TEXTS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/infer", "texts", INFER),
    ("/v1/embeddings", "input", {"model": "embedder"}),
    ("/v1/completions", "prompt", {"max_tokens": 1, "temperature": 0}),
    ("/v1/classify", "texts", {}),
    ("/v1/tag", "texts", {}),
    ("/v1/fill-mask", "texts", {}),
    ("/v1/zero-shot", "texts", {"model": "classifier", "candidate_labels": ["b"]}),
    ("/v1/tokenize", "texts", {"model": "embedder"}),
    ("/v1/embed", "texts", {"model": "embedder", "truncate": "NONE"}),
    ("/v2/embed", "texts", {"model": "embedder", "truncate": "NONE"}),
    ("/v1/rerank", "documents", {"query": "b"}),
    ("/v2/rerank", "documents", {"query": "b"}),
    ("/rerank", "documents", {"query": "b"}),
    ("/rerank", "texts", {"query": "b", "truncate": False}),
    ("/embed", "inputs", {"truncate": False}),
    ("/embed_all", "inputs", {"truncate": False}),
    ("/embed_sparse", "inputs", {"truncate": False}),
    ("/tokenize", "inputs", {}),
    ("/hf/embedder", "inputs", {"truncate": False}),
    ("/hf/tagger", "inputs", {}),
    ("/hf/classifier", "inputs", {}),
    ("/hf/masked-lm", "inputs", {"parameters": {}}),
    ("/hf/classifier", "inputs", {"parameters": {"candidate_labels": ["b"]}}),
]
MASKS = ("/v1/fill-mask", "/hf/masked-lm")
P = "parameters"
PAIRED = {"query", "candidate_labels"}  # fields with the other texts of pairs


def several(path: str, field: str, rest: dict[str, Any], num: int) -> dict[str, Any]:
    return {field: texts(num, MASKED if path in MASKS else "a"), **rest}


ROWS += [
    (
        path,
        several(path, field, rest, MAX_SEQUENCES),
        several(path, field, rest, MAX_SEQUENCES + 1),
        f"{field} has 9 texts, the limit is 8",
    )
    for path, field, rest in TEXTS
]
ROWS += [
    (
        path,
        {"inputs": {"source_sentence": "a", "sentences": texts(MAX_SEQUENCES - 1)}},
        {"inputs": {"source_sentence": "a", "sentences": texts(MAX_SEQUENCES)}},
        "has 9 texts, the limit is 8",
    )
    for path in ("/similarity", "/hf/embedder")
]
ROWS += [
    ("/predict", {"inputs": [["a"]] * 8}, {"inputs": [["a"]] * 9}, "inputs has 9 texts"),
    ("/decode", {"ids": [[4]] * 8}, {"ids": [[4]] * 9}, "ids has 9 lists, the limit is 8"),
    ("/decode", {"ids": [4] * 128}, {"ids": [4] * 129}, "ids has 129 ids, the limit is"),
    ("/detokenize", {"tokens": [4] * 128}, {"tokens": [4] * 129}, "tokens has 129 ids, the limit"),
    ("/v1/embeddings", {"model": "embedder", "input": [[2, 4, 3]] * 8},
     {"model": "embedder", "input": [[2, 4, 3]] * 9}, "input has 9 sequences, the limit is 8"),
    ("/v1/infer", {**INFER, "input_ids": [[4]] * 8}, {**INFER, "input_ids": [[4]] * 9},
     "input_ids has 9 sequences, the limit is 8"),
    ("/v1/infer", {**INFER, "texts": ["a " * 38] * 3}, {**INFER, "texts": ["a " * 38] * 4},
     "texts has more than 128 tokens, the limit"),
    ("/v2/models/embedder/infer", v2(8), v2(9), "input_ids has 9 sequences, the limit is 8"),
]  # fmt: skip
# one text, as long as any may be, and a character more; GPT's have a token for each
LONG = "x" * MAX_CHARACTERS
ROWS += [
    (path, {field: [LONG], **rest}, {field: [LONG + "x"], **rest}, "characters, 1 more than")
    for path, field, rest in TEXTS
    if path not in (*MASKS, "/v1/completions") and not PAIRED & {field, *rest, *rest.get(P, ())}
]


@pytest.fixture(scope="module")
def client(tasks: Models) -> Iterator[httpx.Client]:
    service = service_of(tasks, max_sequences=MAX_SEQUENCES, max_tokens=MAX_TOKENS)
    with client_of(service) as client:
        yield client


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[3][:40]}")
def test_what_is_just_over_a_limit_is_rejected_by_its_value(
    client: httpx.Client, row: tuple[str, Any, Any, str]
) -> None:
    path, under, over, words = row
    answer = client.post(path, json=under)
    assert answer.status_code == 200, answer.text
    answer = client.post(path, json=over)
    assert answer.status_code == 400, answer.text
    assert words in answer.text


def peak_of(client: httpx.Client, path: str, body: Any) -> tuple[httpx.Response, int, int]:
    """The answer, the bytes sent, and the most that Python's objects took meanwhile, those of the
    client and of the server in this process."""
    content = orjson.dumps(body)
    tracemalloc.start()
    try:
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        return answer, len(content), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


LARGE = "b" * 300_000
LONG_TEMPLATE = "hypothesis_template: Input should have 1000 characters or fewer, got 300002"
NUM_PAIRS = "which makes 900000 pairs, the limit is 2048"
FACTORS: list[tuple[str, Any, str]] = [
    ("/v1/zero-shot", zero_shot(1, 400, hypothesis_template=LARGE + "{}"), LONG_TEMPLATE),
    (HF, hugging_face(1, 400, hypothesis_template=LARGE + "{}"), LONG_TEMPLATE),
    ("/v1/zero-shot", zero_shot(900, 1000), NUM_PAIRS),
    (HF, hugging_face(900, 1000), NUM_PAIRS),
    ("/v1/zero-shot", zero_shot(60, candidate_labels=[LARGE]),
     "candidate_labels[0]: Input should have 1000 characters or fewer, got 300000"),
    ("/v1/fill-mask", fill_mask(targets=["a b " * 100_000]),
     "targets[0]: Input should have 256 characters or fewer, got 400000"),
    ("/v2/embed",
     {"model": "embedder", "texts": texts(170), "embedding_types": ["base64"] * 3000},
     "embedding_types: Input should have 6 items or fewer, got 3000"),
    ("/v1/infer", {**INFER, "texts": texts(4000), "prompt_name": "query"},
     "texts has 4000 texts, the limit is 2048"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "words"), FACTORS, ids=range(len(FACTORS)))
def test_what_is_rejected_was_never_built(
    task_client: httpx.Client, path: str, body: Any, words: str
) -> None:
    answer, num_bytes, peak = peak_of(task_client, path, body)
    assert answer.status_code == 400
    assert words in answer.text
    # the body is sent, received, parsed and cut out: strings of its size, and objects of its items
    assert peak < 1_000_000 + 25 * num_bytes
