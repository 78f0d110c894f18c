"""Cohere's embeddings of texts under /v1 and /v2. Source: Cohere's Python SDK and API reference.

`input_type` chooses one of the bundle's prompts, by sentence-transformers' names for queries and
documents.
"""

from functools import partial
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.manifest import Precision
from addnorm.service.engine.outputs.output import JSON_BYTES_PER_BYTE, JSON_BYTES_PER_FLOAT
from addnorm.service.engine.outputs.pooled import DIMENSIONS, PooledByDType, check_dimensions
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.payload import Encode, base64_of
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts.json_answers import JsonAnswer
from addnorm.service.wire.texts.sequences import Strings, typed
from addnorm.service.wire.texts.texts import TextsToTokenize, Truncation, check_limit

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
    precision: Precision | None = Field(
        None, description="One the model has; by default as it says."
    )
    inputs: Annotated[list[EmbedInput], Field(fail_fast=True)] | None = Field(
        None, description="In place of texts: each is of one text."
    )


EXAMPLES: dict[str, Any] = {
    "a text in two types": {
        "model": "all-minilm-l6-v2",
        "texts": ["Pads are dropped."],
        "input_type": "search_document",
        "embedding_types": ["float", "ubinary"],
    }
}


async def embed(is_v1: bool, body: EmbedRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    field, sent = _checked_texts(body)
    model, alias = ask.find_model_and_prompt(tools.models, body.model, None, "embed")
    if body.output_dimension is not None:
        check_dimensions("output_dimension", body.output_dimension, model.bundle)
    check_limit("max_tokens", body.max_tokens, model)
    types = list(dict.fromkeys(body.embedding_types or KINDS[:1]))
    sent_cut = None if body.truncate is None else body.truncate != "NONE"
    cut = tools.texts.cuts(sent_cut, by_default=True)
    if body.input_type is None:
        texts = TextsToTokenize.prompted(field, sent, cut, model, alias)
    else:
        plain = TextsToTokenize(field, sent, cut, model)
        texts = typed(plain, "input_type", body.input_type, alias)
    texts = texts._replace(left=body.truncate == "START", keeps_prompt=True, can_cut=False)
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    dtypes = dict.fromkeys(_dtype(kind) for kind in types)
    output = PooledByDType(
        normalize=model.bundle.manifest.normalize,
        dimensions=body.output_dimension,
        dtypes=tuple(dtypes),
        field="embedding_types",
    )
    dimensions = body.output_dimension or model.bundle.width("pooled")
    vector_bytes = sum(
        NUMBER_BYTES[kind] * -(-dimensions // DIMENSIONS[_dtype(kind)]) for kind in types
    )
    ask.outputs, ask.precision, ask.field = (output,), body.precision or ask.precision, field
    ask.answer_bytes = ask.num_body_bytes + len(sent) * vector_bytes
    is_plain = is_v1 and body.embedding_types is None
    return JsonAnswer(partial(_by_type, types), words=partial(_words, is_plain, sent))


def _checked_texts(body: EmbedRequest) -> tuple[str, list[str]]:
    """The field that has the texts, and these."""
    if body.inputs is not None and body.texts is not None:
        raise InvalidInput("texts and inputs are both set: send one of them", param="inputs")
    if body.inputs is not None:
        return "inputs", [each.content[0].text for each in body.inputs]
    if body.texts is None:
        raise InvalidInput("texts is missing: send the texts to embed", param="texts")
    return "texts", body.texts


def _dtype(kind: EmbeddingType) -> VectorDType:
    return "float32" if kind == "float" or kind == "base64" else kind


def _by_type(types: list[EmbeddingType], ask: Ask) -> dict[str, Any]:
    by_dtype = ask.value(PooledByDType).parts
    by_type: dict[str, Any] = {kind: by_dtype[_dtype(kind)].joined for kind in types}
    if "base64" in by_type:
        by_type["base64"] = map(base64_of, by_type["base64"])
    return by_type


def _words(is_plain: bool, texts: list[str], ask: Ask, by_type: Any) -> dict[str, Any]:
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


ROUTES = tuple(
    Route(
        path=path,
        name=name,
        summary="Embeddings of texts in several types, as Cohere's clients ask for them",
        body=EmbedRequest,
        decode=partial(embed, is_v1),
        examples=EXAMPLES,
    )
    for path, name, is_v1 in (
        ("/v1/embed", "cohere_embed", True),
        ("/v2/embed", "cohere_embed_v2", False),
    )
)
