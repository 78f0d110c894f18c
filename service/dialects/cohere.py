"""Cohere's rerank and embeddings under /v1 and /v2, in the words of all who speak them.

One answer serves the clients of Cohere, Jina, vLLM, Infinity and Open WebUI: each reads its own
fields of it. `input_type` chooses one of the bundle's prompts, by sentence-transformers' names for
queries and documents. Sources: Cohere's Python SDK and API reference, vLLM's and Infinity's
servers, Open WebUI's client.
"""

from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Precision
from addnorm.service.engine.outputs.output import JSON_BYTES_PER_BYTE, JSON_BYTES_PER_FLOAT
from addnorm.service.engine.outputs.pooled import DIMENSIONS, PooledByDType, check_dimensions
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.payload import Encode, base64_of
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.dialect_errors import COHERE_ERRORS
from addnorm.service.wire.route import Protocol, Route
from addnorm.service.wire.texts.json_answers import Ranking, usage
from addnorm.service.wire.texts.reranking import BestOptions, pairs
from addnorm.service.wire.texts.sequences import OneText, Strings, vectors
from addnorm.service.wire.texts.texts import PRECISION, Truncation, Wish, query_with
from addnorm.service.wire.tools import Tools


class Document(Strict, extra="allow"):
    """Its text is scored. What else it has is sent back with it."""

    text: str


class RerankRequest(BestOptions):
    """Cohere's fields; `raw_scores` is Infinity's, `precision` and `max_time_ms` are ours."""

    model: str | None = Field(None, description="By default the one model that can rerank.")
    query: OneText
    documents: Annotated[list[str | Document], Field(fail_fast=True)] = Field(
        description="Each is scored with the query, as a pair. What is too long is cut."
    )
    return_documents: bool | None = Field(
        None, description="Whether the results have their documents."
    )
    precision: Precision | None = PRECISION
    max_tokens_per_doc: int | None = Field(
        None,
        ge=1,
        description="Documents are cut to the model's limit only: with the query they may have at"
        " most so many tokens.",
    )
    truncation: bool | None = Field(
        None, description="Voyage's: whether what is too long is cut, as by default."
    )
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="vLLM's: at least the model's limit, which -1 stands for."
    )


RERANK_EXAMPLES: dict[str, Any] = {
    "three documents": {
        "model": "reranker",
        "query": "What is dropped?",
        "documents": ["Pads are dropped.", "Bread is baked.", "Weights are kept."],
        "top_n": 2,
    }
}


async def rerank(body: RerankRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    documents = [text if isinstance(text, str) else text.text for text in body.documents]
    wish = Wish(
        model=ask.names.get("model", body.model),
        precision=body.precision,
        field="documents",
        texts=[(body.query, document) for document in documents],
        named=query_with("documents"),
        truncate=body.truncation,
        cuts=True,
        can_cut=False,
        limit=("truncate_prompt_tokens", body.truncate_prompt_tokens),
    )
    ranking = Ranking(
        len(documents), partial(_entry, body), body.num_best, unscored=body.unscored("null")
    )
    sent_back = 2 * ask.num_body_bytes if body.return_documents else 0
    answer = await pairs(
        wish, body, body.function, ask, tools, _rankings, ranking, answer_bytes=sent_back
    )
    # a document might have to be cut shorter than the model cuts it. Haystack always sends 4096,
    # which matters only where the model takes more
    lengths = ask.batch.lengths[-len(documents) :]  # a query may stand before them
    if ask.windows:
        lengths = ask.windows.lengths
    index, max_tokens = int(lengths.argmax()), body.max_tokens_per_doc
    if max_tokens is not None and (num := int(lengths[index])) > max_tokens:
        index = ask.order[index] if ask.order else index
        raise InvalidInput(
            f"max_tokens_per_doc is {max_tokens}, but documents[{index}] has {num} tokens with"
            " the query as it is read, and documents are truncated to the model's limit alone:"
            " leave max_tokens_per_doc out, or shorten the document",
            param="max_tokens_per_doc",
        )
    return answer


def _entry(body: RerankRequest, index: int, score: Any) -> dict[str, Any]:
    entry = {"index": index, "relevance_score": score}
    if not body.return_documents:
        return entry
    document = body.documents[index]
    fields = {"text": document} if isinstance(document, str) else document.model_dump()
    return {**entry, "document": fields}


def _rankings(ask: Ask, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": ask.id,
        "object": "rerank",
        "model": ask.model.answered_name,
        "results": entries,
        "data": [  # Voyage's, with documents as plain texts
            {**entry, "document": entry["document"]["text"]} if "document" in entry else entry
            for entry in entries
        ],
        "usage": usage(ask),
        "meta": {"tokens": {"input_tokens": ask.batch.num_tokens}},
    }


RERANK = tuple(
    Route(
        path=path,
        name=name,
        summary="Documents by how well they answer a query, as Cohere's, Jina's, vLLM's and"
        " Infinity's clients ask for it",
        body=RerankRequest,
        decode=rerank,
        examples=RERANK_EXAMPLES,
    )
    for path, name in (("/v1/rerank", "rerank"), ("/v2/rerank", "rerank_v2"))
)


InputType = Literal["search_query", "search_document", "classification", "clustering"]
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
KINDS: tuple[EmbeddingType, ...] = get_args(EmbeddingType)
# of a number as JSON; of base64 also as float32 until it is written
NUMBER_BYTES = dict.fromkeys(KINDS, JSON_BYTES_PER_BYTE) | {
    "float": JSON_BYTES_PER_FLOAT,
    "base64": 9,
}


class TextContent(Strict):
    type: Literal["text"]
    text: str


class EmbedInput(Strict):
    content: list[TextContent] = Field(min_length=1, max_length=1)


class EmbedRequest(Strict):
    """Cohere's fields; `precision` is ours."""

    model: str | None = Field(None, description="By default the one model that can embed.")
    texts: Strings | None = None
    input_type: InputType | None = Field(
        None,
        description="Puts the model's prompt of this kind before each text; none if it has none of"
        " this kind. Without it the model's default prompt.",
    )
    embedding_types: (
        Annotated[list[EmbeddingType], Field(min_length=1, max_length=len(KINDS), fail_fast=True)]
        | None
    ) = Field(
        None,
        description="float by default. base64 is of little-endian float32. /v1/embed without it"
        " answers with a plain list of vectors.",
    )
    output_dimension: int | None = Field(
        None,
        ge=1,
        description="Only the first so many, scaled to length 1 where the model's vectors are."
        " Means something only of models trained for it. Not for int8 and uint8.",
    )
    truncate: Truncation | None = Field(
        None,
        description="Which end of a text that is too long is cut, END by default; NONE: it is"
        " rejected.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="Has no effect; rejected if it is below what the model cuts texts to.",
    )
    precision: Precision | None = PRECISION
    inputs: Annotated[list[EmbedInput], Field(fail_fast=True)] | None = Field(
        None, description="In place of texts: each is of one text."
    )


EMBED_EXAMPLES: dict[str, Any] = {
    "a text in two types": {
        "model": "all-minilm-l6-v2",
        "texts": ["Pads are dropped."],
        "input_type": "search_document",
        "embedding_types": ["float", "ubinary"],
    }
}


async def embed(is_v1: bool, body: EmbedRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    if body.inputs is not None and body.texts is not None:
        raise InvalidInput("texts and inputs are both set: send one of them", param="inputs")
    if body.inputs is not None:
        field, strings = "inputs", [embed_input.content[0].text for embed_input in body.inputs]
    elif body.texts is not None:
        field, strings = "texts", body.texts
    else:
        raise InvalidInput("texts is missing: send the texts to embed", param="texts")
    types = list(dict.fromkeys(body.embedding_types or KINDS[:1]))
    wish = Wish(
        model=body.model,
        task="embed",
        precision=body.precision,
        field=field,
        texts=strings,
        input_type=body.input_type and ("input_type", body.input_type),
        truncate=None if body.truncate is None else body.truncate != "NONE",
        cuts=True,
        can_cut=False,
        left=body.truncate == "START",
        keeps_prompt=True,
        limit=("max_tokens", body.max_tokens),
        output=partial(_output, types, body.output_dimension),
    )
    is_plain = is_v1 and body.embedding_types is None
    words = partial(_embeddings, is_plain, strings)
    answer = await vectors(wish, ask, tools, words, partial(_by_type, types))
    dimensions = body.output_dimension or ask.model.bundle.width("pooled")
    vector_bytes = sum(
        NUMBER_BYTES[kind] * -(-dimensions // DIMENSIONS[_dtype(kind)]) for kind in types
    )
    ask.answer_bytes = ask.num_body_bytes + len(strings) * vector_bytes
    return answer


def _output(types: list[EmbeddingType], dimensions: int | None, bundle: Bundle) -> PooledByDType:
    if dimensions is not None:
        check_dimensions("output_dimension", dimensions, bundle)
    dtypes = tuple(dict.fromkeys(map(_dtype, types)))
    normalize = bundle.manifest.normalize
    return PooledByDType(None, normalize, dimensions, dtypes, field="embedding_types")


def _dtype(kind: EmbeddingType) -> VectorDType:
    return "float32" if kind == "float" or kind == "base64" else kind


def _by_type(types: list[EmbeddingType], ask: Ask) -> dict[str, Any]:
    by_dtype = ask.value(PooledByDType).parts
    by_type: dict[str, Any] = {kind: by_dtype[_dtype(kind)].joined for kind in types}
    if "base64" in by_type:
        by_type["base64"] = map(base64_of, by_type["base64"])
    return by_type


def _embeddings(is_plain: bool, texts: list[str], ask: Ask, by_type: Any) -> dict[str, Any]:
    """is_plain: a list of vectors, as /v1/embed answers where no type is asked for."""
    num_tokens = ask.batch.num_tokens
    return {
        "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
        "id": ask.id,
        "embeddings": by_type["float"] if is_plain else by_type,
        "texts": texts,
        "meta": {
            # the SDK adds up billed units where it sends many texts in several requests
            "billed_units": {"input_tokens": num_tokens},
            "tokens": {"input_tokens": num_tokens},
        },
    }


EMBED = tuple(
    Route(
        path=path,
        name=name,
        summary="Embeddings of texts in several types, as Cohere's clients ask for them",
        body=EmbedRequest,
        decode=partial(embed, is_v1),
        examples=EMBED_EXAMPLES,
    )
    for path, name, is_v1 in (
        ("/v1/embed", "cohere_embed", True),
        ("/v2/embed", "cohere_embed_v2", False),
    )
)


PROTOCOL = Protocol(
    tag="Cohere",
    reference="https://docs.cohere.com/reference/about",
    routes=(*RERANK, *EMBED),
    errors=COHERE_ERRORS,
)
