"""Scores of pairs, as each dialect that has them answers. The server's default model scores."""

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from addnorm.service.arithmetic import exp

# client, query, documents, whether scores are logits -> a score for each document, as sent
Dialect = Callable[[httpx.Client, str, Sequence[str], bool], list[float]]


def asked(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def logits(client: httpx.Client, model: str, query: str, documents: Sequence[str]) -> list[float]:
    """/v1/infer's."""
    pairs = [[query, document] for document in documents]
    answer = asked(client, "/v1/infer", model=model, texts=pairs, outputs=["logits"])
    return [row[0] for row in answer["logits"]]


def sigmoid(values: Sequence[float]) -> list[float]:
    """Each by itself. numpy's exponential has other bits on other processors."""
    exact = np.array(values, np.float32).astype(np.float64)
    small = exp(-np.abs(exact))
    scores: list[float] = (np.where(exact < 0, small, 1) / (1 + small)).astype(np.float32).tolist()
    return scores


def bits(scores: Sequence[float]) -> NDArray[np.uint32]:
    return np.array(scores, np.float32).view(np.uint32)


def _cohere(path: str) -> Dialect:
    def scores(
        client: httpx.Client, query: str, documents: Sequence[str], raw: bool
    ) -> list[float]:
        answer = asked(client, path, query=query, documents=list(documents), raw_scores=raw)
        return _as_sent(answer["results"], "relevance_score")

    return scores


def _tei_rerank(
    client: httpx.Client, query: str, documents: Sequence[str], raw: bool
) -> list[float]:
    answer = asked(client, "/rerank", query=query, texts=list(documents), raw_scores=raw)
    return _as_sent(answer, "score")


def _tei_predict(
    client: httpx.Client, query: str, documents: Sequence[str], raw: bool
) -> list[float]:
    pairs = [[query, document] for document in documents]
    return [own["score"] for (own,) in asked(client, "/predict", inputs=pairs, raw_scores=raw)]


def _classify(client: httpx.Client, query: str, documents: Sequence[str], raw: bool) -> list[float]:
    pairs = [[query, document] for document in documents]
    function = {"function_to_apply": "none"} if raw else {}
    answer = asked(client, "/v1/classify", texts=pairs, **function)
    return [own["score"] for (own,) in answer["results"]]


def _as_sent(results: list[dict[str, Any]], name: str) -> list[float]:
    return [entry[name] for entry in sorted(results, key=lambda entry: int(entry["index"]))]


DIALECTS: dict[str, Dialect] = {
    "/v1/rerank": _cohere("/v1/rerank"),
    "/v2/rerank": _cohere("/v2/rerank"),
    "/rerank, documents": _cohere("/rerank"),
    "/rerank, texts": _tei_rerank,
    "/predict": _tei_predict,
    "/v1/classify": _classify,
}
