"""The server's answers to texts, task by task, as the author's program gives them: a text's token
ids, and an array. Through the routes that callers use."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

from addnorm.export.certificate.served import PATIENCE_S, infer_body, run
from addnorm.export.sources.program import (
    CANDIDATES,
    Answer,
    Ids,
    Text,
    entity_rows,
    logarithms,
    mask_targets,
    split_task,
)
from addnorm.service.inference.request import InferenceRequest
from addnorm.service.inference.request_path import Call
from addnorm.service.protocols.codec.validation import fit
from addnorm.service.protocols.cohere import cohere_rerank
from addnorm.service.protocols.native import text_routes
from addnorm.service.protocols.route import Decoded
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.server.wiring import Service

Served = Callable[..., list[Answer]]  # service, bundle, texts, precision
ROUTES = {row.path: row for row in (*text_routes.ROUTES, *cohere_rerank.ROUTES)}


def embed(
    service: Service,
    bundle: Bundle,
    texts: Sequence[Text],
    precision: str,
    prompt_name: str | None = None,
) -> list[Answer]:
    """Vectors, normalized if the authors do it, behind this prompt, or the default one."""
    own: dict[str, Any] = {"normalize": bundle.manifest.normalize, "prompt_name": prompt_name}
    return _infer(service, texts, precision, "pooled", **own)


def sparse(service: Service, bundle: Bundle, texts: Sequence[Text], precision: str) -> list[Answer]:
    """Weights of the whole vocabulary."""
    return _infer(service, texts, precision, "sparse", width=bundle.width("logits"))


def query(service: Service, bundle: Bundle, texts: Sequence[Text], precision: str) -> list[Answer]:
    """Vectors of the tokens of queries."""
    return _token_vectors(service, bundle, texts, precision, "query")


def document(
    service: Service, bundle: Bundle, texts: Sequence[Text], precision: str
) -> list[Answer]:
    """Vectors of the tokens of documents."""
    return _token_vectors(service, bundle, texts, precision, "document")


def rerank(
    service: Service,
    bundle: Bundle,
    texts: Sequence[Text],
    precision: str,
    raw_scores: bool = True,
) -> list[Answer]:
    """Scores of pairs, before anything is made of them."""
    found = []
    for text in texts:
        asked, told = tuple(text)
        body = {"query": asked, "documents": [told], "raw_scores": raw_scores}
        body["precision"] = precision
        answer, request = _ask_route(service, "/v1/rerank", body)
        found += _answers(request, [[answer["results"][0]["relevance_score"]]])
    return found


def relevance(
    service: Service, bundle: Bundle, texts: Sequence[Text], precision: str
) -> list[Answer]:
    """Scores of pairs, from 0 to 1."""
    return rerank(service, bundle, texts, precision, raw_scores=False)


def classify(
    service: Service, bundle: Bundle, texts: Sequence[Text], precision: str
) -> list[Answer]:
    """Scores of all labels, in the order of the logits."""
    body = {"texts": _as_json(texts), "truncate": True, "precision": precision}
    answer, request = _ask_route(service, "/v1/classify", body)
    width = bundle.width("logits")
    names = bundle.manifest.labels or [f"LABEL_{index}" for index in range(width)]
    return _answers(request, [_scores_in_order(own, names) for own in answer["results"]])


def zero_shot(
    service: Service, bundle: Bundle, texts: Sequence[Text], precision: str
) -> list[Answer]:
    """Scores of some labels; the ids are those of the last label's hypothesis."""
    found = []
    for text in texts:
        body: dict[str, Any] = {"texts": [text], "candidate_labels": [*CANDIDATES]}
        body |= {"truncate": True, "precision": precision}
        answer, request = _ask_route(service, "/v1/zero-shot", body)
        scores = _scores_in_order(answer["results"][0], CANDIDATES)
        found.append(Answer(_ids(request)[-1], np.array(scores, np.float32)))
    return found


def tag(
    service: Service,
    bundle: Bundle,
    texts: Sequence[Text],
    precision: str,
    aggregation_strategy: str = "none",
) -> list[Answer]:
    """For each token or entity the number of its label, its first and last character, and the
    score."""
    body: dict[str, Any] = {"texts": texts, "ignore_labels": []}
    body["aggregation_strategy"] = aggregation_strategy
    answer, request = _ask_route(
        service, "/v1/tag", {**body, "truncate": True, "precision": precision}
    )
    labels = bundle.manifest.labels or ()
    return _answers(request, [entity_rows(own, labels) for own in answer["results"]])


def fill_mask(
    service: Service, bundle: Bundle, texts: Sequence[Text], precision: str
) -> list[Answer]:
    """For each mask the logarithms of some tokens' scores."""
    tokenizer = Tokenizer.from_file(str(bundle.path / TOKENIZER))
    targets = mask_targets(tokenizer.get_vocab())
    body = {"texts": texts, "targets": targets, "top_k": len(targets), "precision": precision}
    answer, request = _ask_route(service, "/v1/fill-mask", body)
    rows = [
        [logarithms((one["token"], one["score"]) for one in mask) for mask in own]
        for own in answer["results"]
    ]
    return _answers(request, rows)


def read(service: Service, bundle: Bundle, texts: Sequence[Text], precision: str) -> list[Answer]:
    """Hidden states."""
    return _infer(service, texts, precision, "activations")


# by the name that the program's task has
TASKS: Mapping[str, Served] = {
    made.__name__: made
    for made in (
        embed,
        sparse,
        query,
        document,
        rerank,
        relevance,
        classify,
        zero_shot,
        tag,
        fill_mask,
        read,
    )
}
PAIRS = ("rerank", "relevance")  # tasks that take pairs alone
BOTH = ("classify", "read")  # that take texts and pairs


def function_for(task: str) -> Served:
    """Answers a task of the program."""
    name, option = split_task(task)
    return partial(TASKS[name], **option)


def _infer(
    service: Service,
    texts: Sequence[Text],
    precision: str,
    output: str,
    width: int | None = None,
    **options: Any,
) -> list[Answer]:
    body = {"texts": _as_json(texts), "outputs": [output], "truncate": True, **options}
    answer, request = run(infer_body(service, {**body, "precision": precision}))
    rows = orjson.loads(answer)[output]
    if width is not None:
        rows = [_to_dense(one, width) for one in rows]
    return _answers(request, rows)


def _to_dense(weights: Mapping[str, Any], width: int) -> np.ndarray:
    made = np.zeros(width, np.float32)
    made[weights["indices"]] = weights["values"]
    return made


def _token_vectors(
    service: Service, bundle: Bundle, texts: Sequence[Text], precision: str, input_type: str
) -> list[Answer]:
    own = {"input_type": input_type, "normalize": bundle.manifest.normalize}
    return _infer(service, texts, precision, "token_vectors", None, **own)


def _as_json(texts: Sequence[Text]) -> list[Any]:
    return [text if isinstance(text, str) else [*text] for text in texts]


def _scores_in_order(labelled: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[float]:
    scores = {one["label"]: one["score"] for one in labelled}
    return [scores[name] for name in names]


def _ask_route(
    service: Service, path: str, body: dict[str, Any]
) -> tuple[dict[str, Any], InferenceRequest]:
    """The answer of a route, parsed, and the request that the body became."""
    row = ROUTES[path]

    async def decode(call: Call) -> Decoded:
        assert callable(row.decode)
        made: Decoded = await row.decode(fit(row.body, body), call, service.tools)
        return made

    payload, request = run(service.request_path.ask(PATIENCE_S, decode))
    return orjson.loads(b"".join(payload.parts)), request


def _ids(request: InferenceRequest) -> list[Ids]:
    batch = request.batch
    types = np.zeros_like(batch.tokens) if batch.types is None else batch.types
    rows = (np.split(values, batch.offsets[1:-1]) for values in (batch.tokens, types))
    return [Ids(*(row.tolist() for row in own)) for own in zip(*rows, strict=True)]


def _answers(request: InferenceRequest, rows: Sequence[Any]) -> list[Answer]:
    return [
        Answer(ids, np.array(row, np.float32)) for ids, row in zip(_ids(request), rows, strict=True)
    ]
