"""The server's answers to texts, task by task, as the author's program gives them: a text's token
ids, and an array. Through the routes that callers use."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import Tokenizer

from addnorm.export.certificate.served import PATIENCE_S, infer_body, run
from addnorm.export.reference.program import (
    CANDIDATES,
    Answer,
    Ids,
    entity_rows,
    logarithms,
    mask_targets,
    split_task,
)
from addnorm.export.wishes import Text
from addnorm.service.asking.ask import Ask
from addnorm.service.dialects import cohere
from addnorm.service.dialects.native import text_routes
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.manifest import Manifest
from addnorm.service.engine.outputs import Sparse
from addnorm.service.server.wiring import Service
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import fit

Array = NDArray[Any]
ROUTES = {row.path: row for row in (*text_routes.ROUTES, *cohere.RERANK)}
PAIRS = ("rerank", "relevance")  # tasks that take pairs alone
BOTH = ("classify", "read")  # that take texts and pairs


class Embedded(NamedTuple):
    """Texts, and a vector for each `[n, w]`."""

    ids: list[Ids]
    vectors: Array


def embed_by_server(
    service: Service, manifest: Manifest, texts: Sequence[Any], precision: str, **options: Any
) -> Embedded:
    """Texts or pairs as the server embeds them, cut to the limit of texts: documents, where the
    model tells them from queries and takes no text of no type for one. options: of the request.
    ServiceError if it is rejected."""
    defaults = {"texts": texts, "outputs": ["pooled"], "truncate": True, "precision": precision}
    is_typed = options.get("prompt_name") is not None or manifest.default_input_type == "document"
    if not is_typed and all(isinstance(text, str) for text in texts):
        defaults["input_type"] = "document"
    body = {**defaults, "normalize": manifest.normalize, **options}
    answer, ask = run(infer_body(service, body))
    return Embedded(_ids(ask), np.array(orjson.loads(answer)["pooled"]))


class ServedTasks:
    """The server with one model, asked for the tasks of a program: each method is of that name."""

    def __init__(self, service: Service, bundle: Bundle, precision: str) -> None:
        self._service, self._bundle, self._precision = service, bundle, precision

    def answer(self, task: str, texts: Sequence[Text]) -> list[Answer]:
        """ServiceError if the server rejects them."""
        name, option = split_task(task)
        answers: list[Answer] = getattr(self, name)(texts, **option)
        return answers

    def embed(self, texts: Sequence[Text], prompt_name: str | None = None) -> list[Answer]:
        """Vectors, normalized if the authors do it, behind this prompt, or the default one."""
        normalize = self._bundle.manifest.normalize
        return self._infer(texts, "pooled", normalize=normalize, prompt_name=prompt_name)

    def sparse(self, texts: Sequence[Text], input_type: str = "document") -> list[Answer]:
        """Weights of the whole vocabulary. input_type: where the model tells the two apart."""
        has_types = self._bundle.manifest.is_inference_free
        return self._infer(texts, "sparse", input_type=input_type if has_types else None)

    def query(self, texts: Sequence[Text], input_type: str = "query") -> list[Answer]:
        """Vectors of the tokens of queries."""
        normalize = self._bundle.manifest.normalize
        return self._infer(texts, "token_vectors", input_type=input_type, normalize=normalize)

    def document(self, texts: Sequence[Text]) -> list[Answer]:
        return self.query(texts, "document")

    def rerank(self, texts: Sequence[Text], raw_scores: bool = True) -> list[Answer]:
        """Scores of pairs, before anything is made of them."""
        answers = []
        for text in texts:
            query, document = tuple(text)
            body = {"query": query, "documents": [document], "raw_scores": raw_scores}
            answer, ask = self._ask("/v1/rerank", body)
            answers += _answers(ask, [[answer["results"][0]["relevance_score"]]])
        return answers

    def relevance(self, texts: Sequence[Text]) -> list[Answer]:
        """Scores of pairs, from 0 to 1."""
        return self.rerank(texts, raw_scores=False)

    def classify(self, texts: Sequence[Text]) -> list[Answer]:
        """Scores of all labels, in the order of the logits."""
        answer, ask = self._ask("/v1/classify", {"texts": _as_json(texts), "truncate": True})
        width = self._bundle.width("logits")
        names = self._bundle.manifest.labels or [f"LABEL_{index}" for index in range(width)]
        return _answers(ask, [_scores_in_order(labelled, names) for labelled in answer["results"]])

    def zero_shot(self, texts: Sequence[Text]) -> list[Answer]:
        """Scores of some labels; the ids are those of the last label's hypothesis."""
        answers = []
        for text in texts:
            body = {"texts": [text], "candidate_labels": [*CANDIDATES], "truncate": True}
            answer, ask = self._ask("/v1/zero-shot", body)
            scores = _scores_in_order(answer["results"][0], CANDIDATES)
            answers.append(Answer(_ids(ask)[-1], np.array(scores, np.float32)))
        return answers

    def tag(self, texts: Sequence[Text], aggregation_strategy: str = "none") -> list[Answer]:
        """For each token or entity the number of its label, its first and last character, and the
        score."""
        body = {"texts": texts, "ignore_labels": [], "truncate": True}
        body["aggregation_strategy"] = aggregation_strategy
        answer, ask = self._ask("/v1/tag", body)
        labels = self._bundle.manifest.labels or ()
        return _answers(ask, [entity_rows(entities, labels) for entities in answer["results"]])

    def names(self, text: str, labels: Sequence[str], threshold: float, flat: bool) -> list[Any]:
        """Names of these labels, as the route has them."""
        body = {"texts": [text], "labels": [*labels], "threshold": threshold, "flat": flat}
        names: list[Any] = self._ask("/v1/extract", body)[0]["results"][0]
        return names

    def fill_mask(self, texts: Sequence[Text]) -> list[Answer]:
        """For each mask the logarithms of some tokens' scores."""
        tokenizer = Tokenizer.from_file(str(self._bundle.path / TOKENIZER))
        targets = mask_targets(tokenizer.get_vocab())
        body = {"texts": texts, "targets": targets, "top_k": len(targets)}
        answer, ask = self._ask("/v1/fill-mask", body)
        rows = [
            [
                logarithms((candidate["token"], candidate["score"]) for candidate in mask)
                for mask in masks
            ]
            for masks in answer["results"]
        ]
        return _answers(ask, rows)

    def read(self, texts: Sequence[Text]) -> list[Answer]:
        """Hidden states."""
        return self._infer(texts, "activations")

    def _infer(self, texts: Sequence[Text], output: str, **options: Any) -> list[Answer]:
        body = {"texts": _as_json(texts), "outputs": [output], "truncate": True, **options}
        answer, ask = run(infer_body(self._service, {**body, "precision": self._precision}))
        rows = orjson.loads(answer)[output]
        if output == "sparse":
            dense = np.zeros((len(rows), Sparse().width(self._bundle)), np.float32)
            for row, weights in zip(dense, rows, strict=True):
                row[weights["indices"]] = weights["values"]
            rows = [*dense]
        return _answers(ask, rows)

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Ask]:
        """The answer of a route, parsed, and the ask that the body became."""
        row, service = ROUTES[path], self._service
        full_body = {**body, "precision": self._precision}

        async def decode(ask: Ask) -> Encode:
            assert callable(row.decode)
            encode: Encode = await row.decode(fit(row.body, full_body), ask, service.tools)
            return encode

        payload, ask = run(service.answers.ask(PATIENCE_S, decode))
        return orjson.loads(b"".join(payload.parts)), ask


def _as_json(texts: Sequence[Text]) -> list[Any]:
    return [text if isinstance(text, str) else [*text] for text in texts]


def _scores_in_order(labelled: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[float]:
    scores = {entry["label"]: entry["score"] for entry in labelled}
    return [scores[name] for name in names]


def _ids(ask: Ask) -> list[Ids]:
    batch = ask.batch
    types = np.zeros_like(batch.tokens) if batch.types is None else batch.types
    ends = ask.padding.lengths.cumsum()[:-1]  # a text may have no tokens
    rows = (np.split(values, ends) for values in (batch.tokens, types))
    return [
        Ids(*(row.tolist() for row in ids_and_types)) for ids_and_types in zip(*rows, strict=True)
    ]


def _answers(ask: Ask, rows: Sequence[Any]) -> list[Answer]:
    both = zip(_ids(ask), rows, strict=True)
    return [Answer(ids, np.array(row, np.float32)) for ids, row in both]
