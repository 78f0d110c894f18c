"""Requests of one API key at the cost of others: little to send, much to hold or to compute.

Each is within the limits of the default settings, or was before such limits were known.
"""

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from addnorm.service.engine.manifest import Manifest
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from benchmarks.stress.caller import JSON, Request
from benchmarks.stress.requests import texts
from benchmarks.stress.requests.bodies import (
    BODY_BYTES,
    EMBEDDINGS,
    INFER,
    LIMITS,
    TOKENIZE,
    compress,
    embeddings,
    hopeless,
    infer,
    integers,
    long_name,
    longest,
    of_texts,
    padding,
    pads,
    small_chunks,
    spaces,
    tensor_pads,
    v2_floats,
    v2_pads,
    wrong_mask,
)

MB = 1_000_000
RERANKER, ENTAILMENT, MASKED_LM = "reranker", "entailment", "masked-lm"  # of stress/copies.py


@dataclass(frozen=True)
class Greed:
    """A request, sent again and again over some connections. make: from the embedder's manifest."""

    name: str
    make: Callable[[Manifest], Request]
    connections: int = 2
    is_read: bool = True  # whether the answer is
    is_whole: bool = True  # whether the body is sent to its end
    slow_answer: bool = False  # what the other asks for is a large answer with little time
    log_is_read: bool = True
    has_key: bool = True  # whether a key is sent; without, what needs none is asked for


def _zero_shot(texts: list[str], labels: list[str], **fields: object) -> Request:
    body = {"model": ENTAILMENT, "texts": texts, "candidate_labels": labels, **fields}
    return Request.json("/v1/zero-shot", body)


def _fill_mask(text: str, **fields: object) -> Request:
    return Request.json("/v1/fill-mask", {"model": MASKED_LM, "texts": [text], **fields})


def _many_masks(_: Manifest) -> Request:
    return _fill_mask("[MASK]\u4e00" * 255, top_k=100)


def _equal_rows(manifest: Manifest) -> Request:
    """Answers of about 90 MB: equal sequences are computed once, so they cost next to nothing."""
    length = min(500, manifest.limits.max_positions)
    num = min(90 * MB // (4 * manifest.d_model), LIMITS.max_tokens) // length
    fields = {"input_ids": [[5] * length] * num, "outputs": ["activations"]}
    return infer(manifest, fields, accept=SAFETENSORS)


def _wide_heads(_: Manifest) -> Request:
    fields = {"input_ids": [[5 + row] * 500 for row in range(8)], "outputs": ["logits"]}
    return Request.json("/v1/infer", {"model": MASKED_LM, **fields, "logits": {"top_k": 1}})


def _repeated_types(manifest: Manifest) -> Request:
    body = {"model": manifest.name, "texts": ["a"] * 100, "input_type": "search_document"}
    return Request.json("/v2/embed", {**body, "embedding_types": ["base64"] * 3850})


def _bulk(manifest: Manifest) -> Request:
    """About as many tokens as a request may have."""
    documents = [f"{number} " + "pads are dropped " * 45 for number in range(LIMITS.max_sequences)]
    return Request.json(EMBEDDINGS, {"model": manifest.name, "input": documents})


def _many_tensors(_: Manifest) -> Request:
    """A header of safetensors that names many tensors of no bytes."""
    tensor = {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}
    header = orjson.dumps({f"t{number}": tensor for number in range(100_000)})
    body = len(header).to_bytes(8, "little") + header
    return Request("/v1/infer", body, {"content-type": SAFETENSORS})


def _deep_lists(manifest: Manifest) -> Request:
    deep = b"[1," + b"[" * 250 + b"]" * 250 + b"]"
    body = b'{"model":"%b","inputs":[%b]}' % (manifest.name.encode(), b",".join([deep] * 2000))
    return Request("/embed", body, JSON)


def _with_model(path: str, **fields: object) -> Callable[[Manifest], Request]:
    """A body that names the embedder."""
    return lambda manifest: Request.json(path, {"model": manifest.name, **fields})


def _other(path: str, **fields: object) -> Callable[[Manifest], Request]:
    """A body that names another model, or none."""
    return lambda _: Request.json(path, fields)


def _texts(path: str, make: Callable[[Manifest], list[str]]) -> Callable[[Manifest], Request]:
    return lambda manifest: of_texts(path, make, manifest)


LABELS = [f"label {number}" for number in range(400)]
# random weights leave half of the vocabulary positive
SPARSE = [f"{'ba ' * 470}{number}" for number in range(130)]
GREEDS = (
    Greed("8 MiB of spaces, gzip", spaces),
    Greed("8 MiB of escapes for a name, gzip", lambda _: long_name(rb"\u0041")),
    Greed("260,000 integers of 60 digits, gzip", lambda _: compress(integers(60))),
    Greed("a million chunks of a byte", small_chunks),
    Greed(
        "norm_stats of 300,000 pads", lambda m: padding(m, "norm_stats", LIMITS.max_padded_tokens)
    ),
    Greed(
        "activations of 174,000 pads, gzip",
        lambda m: padding(m, "activations", pads(m.d_model)).having(accept_encoding="gzip"),
    ),
    Greed("the same as safetensors", tensor_pads),
    Greed("the same by V2", v2_pads),
    Greed("3,300,000 cells, a wrong mask", wrong_mask),
    Greed("300,000 floats of 55 digits by V2, gzip", lambda m: v2_floats(55, m)),
    Greed("embeddings of 2,048 sequences", embeddings),
    Greed("900 texts of words in no vocabulary", _texts(EMBEDDINGS, lambda _: hopeless(900))),
    Greed("texts of one endless word", _texts(TOKENIZE, lambda m: longest(m, texts.run_on))),
    Greed("texts of accents", _texts(INFER, lambda m: longest(m, texts.accents))),
    Greed(
        "a template of 2 MB for 400 labels",
        lambda _: _zero_shot(["a"], LABELS, hypothesis_template="{}" + "x" * 2 * MB),
    ),
    Greed("a target of 2 MB", lambda _: _fill_mask("ba [MASK]", targets=["a b c d " * (MB // 4)])),
    Greed("2,020 texts for 2,020 labels", lambda _: _zero_shot(["a"] * 2020, ["b"] * 2020)),
    Greed("six answers of 90 MB that are not read", _equal_rows, 6, is_read=False),
    Greed(
        "17 bodies of 16 MB without their ends",
        lambda _: Request(EMBEDDINGS, b" " * BODY_BYTES, JSON), 17, is_whole=False,
    ),
    Greed(
        "a query of 260 KB for 1,024 documents",
        _other("/v1/rerank", model=RERANKER, query="a" * 260_000, documents=["b"] * 1024), 1,
    ),
    Greed("30 requests for logits of 4,000 tokens", _wide_heads, 30),
    Greed("30 bodies of 7 MB", lambda _: integers(19), 30),
    Greed("answers that take long to write", _many_masks, slow_answer=True),
    Greed("sparse vectors of half a vocabulary", _other("/embed_sparse", inputs=SPARSE), 5),
    Greed("a text of 255 masks", _many_masks, 6),
    Greed("a row of 65,000 ids to decode", _with_model("/detokenize", tokens=[100] * 65_000)),
    Greed("a type of vectors asked for 3,850 times", _repeated_types),
    Greed(
        "a label of 4 MB for 60 texts",
        lambda _: _zero_shot(["a"] * 60, ["l" * 4 * MB], truncate=True),
    ),
    Greed("1,024 empty texts", _with_model(TOKENIZE, texts=[""] * 1024), 4),
    Greed("2,048 texts of 140 tokens", _bulk, 1),
    Greed("the OpenAPI document", lambda _: Request("/openapi.json"), 4),
    Greed(
        "unread OpenAPI documents without a key",
        lambda _: Request("/openapi.json"), 1000, is_read=False, has_key=False,
    ),
    Greed(  # that no engine computes
        "12 answers of 18 MB of tokens that are not read",
        _with_model("/tokenize", inputs=["a " * 140] * LIMITS.max_sequences), 12, is_read=False,
    ),
    Greed(
        "8,000 instances for Vertex AI", _other("/vertex", instances=[{"inputs": "a"}] * 8000), 4
    ),
    Greed("a safetensors header of 100,000 tensors", _many_tensors, 4),
    Greed("2,000 lists nested 250 deep", _deep_lists, 4),
    Greed("a log that nobody reads", _with_model(EMBEDDINGS, input="a text"), 4, log_is_read=False),
)  # fmt: skip
