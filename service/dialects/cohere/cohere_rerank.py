"""Cohere's rerank under /v1 and /v2, in the words of all who speak it.

One answer serves the clients of Cohere, Jina, vLLM, Infinity and Open WebUI: each reads its own
fields of it. Sources: Cohere's Python SDK, vLLM's and Infinity's servers, Open WebUI's client.
"""

from functools import partial
from typing import Annotated, Any

from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.engine.manifest import Precision
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict, agreed
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts.json_answers import Ranking, ranked, usage
from addnorm.service.wire.texts.task_options import RerankOptions
from addnorm.service.wire.texts.text_tasks import score_pairs
from addnorm.service.wire.texts.texts import TextsToTokenize, check_limit, query_with


class Document(Strict, extra="allow"):
    """Its text is scored. What else it has is sent back with it."""

    text: str


class RerankRequest(RerankOptions):
    """Cohere's fields; `raw_scores` is Infinity's, `precision` and `max_time_ms` are ours."""

    model: str | None = Field(None, description="By default the one model that can rerank.")
    query: str
    documents: Annotated[list[str | Document], Field(fail_fast=True)] = Field(
        description="Each is scored with the query, as a pair. What is too long is cut."
    )
    top_n: int | None = Field(
        None, ge=0, description="Only the best so many; all by default, and for 0."
    )
    return_documents: bool | None = Field(
        None, description="Whether the results have their documents."
    )
    raw_scores: bool = Field(
        False, description="Whether scores are the model's own numbers, instead of 0 to 1."
    )
    precision: Precision | None = Field(
        None, description="One the model has; by default as it says."
    )
    max_tokens_per_doc: int | None = Field(
        None,
        ge=1,
        description="Documents are cut to the model's limit only: with the query they may have at"
        " most so many tokens.",
    )
    top_k: int | None = Field(None, ge=0, description="`top_n`, as Voyage calls it.")
    truncation: bool | None = Field(
        None, description="Voyage's: whether what is too long is cut, as by default."
    )
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="vLLM's: at least the model's limit, which -1 stands for."
    )


EXAMPLES: dict[str, Any] = {
    "three documents": {
        "model": "reranker",
        "query": "What is dropped?",
        "documents": ["Pads are dropped.", "Bread is baked.", "Weights are kept."],
        "top_n": 2,
    }
}


async def rerank(body: RerankRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    model = ask.find_model(tools.models, ask.names.get("model", body.model), "rerank")
    check_limit("truncate_prompt_tokens", body.truncate_prompt_tokens, model, whole=-1)
    num_best = agreed(top_n=body.top_n, top_k=body.top_k) or None
    documents = [text if isinstance(text, str) else text.text for text in body.documents]
    pairs = [(body.query, document) for document in documents]
    truncate = tools.texts.cuts(body.truncation, by_default=True)
    texts = TextsToTokenize(
        "documents", pairs, truncate, model, can_cut=False, named=query_with("documents")
    )
    function: Function = "none" if body.raw_scores else "sigmoid"
    sent_back = 2 * ask.num_body_bytes if body.return_documents else 0
    options = body.precision, sent_back, body.max_time_ms
    finish = await score_pairs(ask, tools, texts, function, *options)
    _check_documents(body.max_tokens_per_doc, ask)
    ranking = Ranking(len(documents), partial(_entry, body), num_best, nulls=True)
    return ranked(finish, _words, ranking)


def _check_documents(most: int | None, ask: Ask) -> None:
    """InvalidInput if a document might have to be cut shorter than the model cuts it. Haystack
    always sends 4096, which matters only where the model takes more."""
    index = int(ask.batch.lengths.argmax())
    if most is not None and (num := int(ask.batch.lengths[index])) > most:
        index = ask.order[index] if ask.order else index
        raise InvalidInput(
            f"max_tokens_per_doc is {most}, but documents[{index}] has {num} tokens with the query,"
            " and is not cut below the model's own limit: leave it out, or shorten the document",
            param="max_tokens_per_doc",
        )


def _entry(body: RerankRequest, index: int, score: Any) -> dict[str, Any]:
    entry = {"index": index, "relevance_score": score}
    if not body.return_documents:
        return entry
    document = body.documents[index]
    whole = {"text": document} if isinstance(document, str) else document.model_dump()
    return {**entry, "document": whole}


def _words(ask: Ask, results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": ask.id,
        "object": "rerank",
        "model": ask.model.answered_name,
        "results": results,
        "data": [  # Voyage's, with documents as plain texts
            {**result, "document": result["document"]["text"]} if "document" in result else result
            for result in results
        ],
        "usage": usage(ask),
        "meta": {"tokens": {"input_tokens": ask.batch.num_tokens}},
    }


ROUTES = tuple(
    Route(
        path=path,
        name=name,
        summary="Documents by how well they answer a query, as Cohere's, Jina's, vLLM's and"
        " Infinity's clients ask for it",
        body=RerankRequest,
        decode=rerank,
        examples=EXAMPLES,
    )
    for path, name in (("/v1/rerank", "rerank"), ("/v2/rerank", "rerank_v2"))
)
