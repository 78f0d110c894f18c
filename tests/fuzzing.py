"""Schemathesis' hooks: without them it names models that nobody serves, and all is a 404."""

from typing import Any

import schemathesis

from addnorm.service.wire.codec.foreign_fields import FOREIGN

TEXT_MODEL = "all-minilm-l6-v2"
NAMES = ("notebook", TEXT_MODEL)
SERVED = {"name": NAMES[0], "model": NAMES[0], "version": "1"}
# path -> models that can do what it is for; then one that cannot
ABLE = {
    "/v1/classify": ("classifier", "topics", "tagger"),
    "/v1/tag": ("tagger", "classifier"),
    "/v1/fill-mask": ("masked-lm", "tagger"),
    "/v1/zero-shot": ("classifier", "reranker"),
    "/v1/completions": ("notebook", "gpt", "tagger"),
    "/detokenize": ("gpt", "notebook"),
    "/v1/embed": (TEXT_MODEL, "embedder:query", "reranker"),
    "/v2/embed": (TEXT_MODEL, "embedder:query", "reranker"),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), ("reranker", "embedder")),
    "/hf/{model}": ("classifier", "tagger", "masked-lm", "embedder", "embedder:query"),
}
IDS = ("input", "input_ids", "inputs", "prompt", "tokens", "ids")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    path, length = context.operation.path, len(str(body))
    body = {field: small(value) if field in IDS else value for field, value in body.items()}
    if isinstance(name := body.get("model"), str):
        able = ABLE.get(path, NAMES)
        body["model"] = able[len(name) % len(able)]
    if path == "/v1/completions" and length % 4:  # three of four ask for no more than there is
        scored = {field: value for field, value in body.items() if field not in FOREIGN}
        return scored | {"max_tokens": 1, "temperature": 0}
    if path == "/v1/fill-mask" and isinstance(texts := body.get("texts"), list):
        body["texts"] = [f"{text} [MASK]" if isinstance(text, str) else text for text in texts]
    if path == "/v1/zero-shot" and length % 4:
        body["hypothesis_template"] = "the {}"
    return body


@schemathesis.hook
def map_path_parameters(context: Any, path: Any) -> Any:
    """Three of four are served."""
    length = len("".join(map(str, path.values()))) if isinstance(path, dict) else 0
    if not length % 4:
        return path
    served = {key: SERVED.get(key, value) for key, value in path.items()}
    if able := ABLE.get(context.operation.path.removesuffix("/{version}")):
        served["model"] = able[length % len(able)]
    return served


def small(value: Any) -> Any:
    """Odd integers become ids of all models, and lists no longer than the smallest takes."""
    if isinstance(value, list):
        return [small(part) for part in value[:5]]
    return value % 6 if type(value) is int and value % 2 else value
