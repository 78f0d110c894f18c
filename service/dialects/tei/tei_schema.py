"""The bodies of text-embeddings-inference as types. Source: its router/src/http/types.rs."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from addnorm.service.engine.tokenizer import Text
from addnorm.service.wire.codec.validation import Strict, into_body
from addnorm.service.wire.texts.sequences import (
    ONE_ROW,
    ROWS,
    OneOrSeveral,
    Sequences,
    Strings,
)
from addnorm.service.wire.texts.task_options import RerankOptions
from addnorm.service.wire.texts.texts import PROMPT_NAME

INPUTS = Field(
    description="A text, token ids with their special tokens, or a list of either. Ids are not cut,"
    " and rejected without the special tokens at both ends, unless the model has no tokenizer."
)


class PredictInputs(NamedTuple):
    texts: Annotated[list[Text], Field(fail_fast=True)]
    is_batch: bool  # then the response is a list for each


def _predict_inputs(value: Any) -> PredictInputs:
    """`["a", "b"]` is one pair. A batch is a list of lists of one or two texts."""
    if isinstance(value, str):
        return PredictInputs([value], is_batch=False)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return PredictInputs([_one_or_two(value)], is_batch=False)
    if isinstance(value, list):
        return PredictInputs([_one_or_two(texts) for texts in value], is_batch=True)
    raise PydanticCustomError(
        "predict_kind",
        "Input should be a text, a pair [text, text], or a batch [[text], [text, text], ...]",
    )


def _one_or_two(value: Any) -> Text:
    if isinstance(value, list) and set(map(type, value)) == {str} and len(value) <= 2:
        return value[0] if len(value) == 1 else (value[0], value[1])
    raise PydanticCustomError(
        "predict_pair",
        "Input should be one text or a pair in a list; texts by themselves make a batch as"
        " [[text], [text], ...]",
    )


def _rows(value: Any) -> list[list[int]]:
    if isinstance(value, list) and value and not isinstance(value[0], list):
        return [ONE_ROW.validate_python(value, strict=True)]
    return ROWS.validate_python(value, strict=True)


OneOrTwo = Annotated[list[str], Field(min_length=1, max_length=2)]
Rows = Annotated[list[list[int]], PlainValidator(_rows, list[int] | list[list[int]])]


MODEL = Field(None, description="By default the one model made for this.")


class Cutting(Strict):
    truncate: bool | None = Field(
        None,
        description="Whether texts that are too long are cut, which is the default, instead of"
        " rejected.",
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "right", description="At which end they are cut."
    )

    @property
    def left(self) -> bool:
        return self.truncation_direction.lower() == "left"


class TeiRequest(Cutting):
    model: str | None = MODEL
    parameters: dict[str, Any] | None = Field(
        None, description="The other fields may stand in here, as Hugging Face's clients have it."
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        return into_body(value)


class TeiEmbedAllRequest(TeiRequest):
    """Token ids instead of texts are taken as they are."""

    inputs: Sequences = INPUTS
    prompt_name: str | None = PROMPT_NAME


class TeiEmbedRequest(TeiEmbedAllRequest):
    normalize: bool = Field(True, description="Whether vectors are scaled to length 1.")
    dimensions: int | None = Field(None, ge=1, description="Only the first so many.")


class TeiRerankRequest(TeiRequest, RerankOptions):
    query: str
    texts: Strings = Field(description="Each is scored with the query, as a pair.")
    raw_scores: bool = Field(
        False, description="Whether scores are the model's own numbers, instead of 0 to 1."
    )
    return_text: bool = False
    top_n: int | None = Field(None, ge=0, description="Only the best so many; all for 0.")


class TeiPredictRequest(TeiRequest):
    inputs: Annotated[
        PredictInputs, PlainValidator(_predict_inputs, str | OneOrTwo | list[OneOrTwo])
    ] = Field(description="A text, one pair of texts, or a batch of lists of one or two texts.")
    raw_scores: bool = Field(False, description="Whether scores are logits.")


class TeiSentences(Strict):
    source_sentence: str
    sentences: Strings


class TeiSimilarityParameters(Cutting):
    prompt_name: str | None = PROMPT_NAME


class TeiSimilarityRequest(Strict):
    model: str | None = MODEL
    inputs: TeiSentences
    parameters: TeiSimilarityParameters | None = None


class TeiTokenizeRequest(Strict):
    model: str | None = MODEL
    inputs: OneOrSeveral = Field(description="A text, or a list of texts.")
    add_special_tokens: bool = True
    prompt_name: str | None = PROMPT_NAME


class TeiDecodeRequest(Strict):
    model: str | None = MODEL
    ids: Rows = Field(description="Token ids, or a list of such.")
    skip_special_tokens: bool = True
