"""What a request may say of its task over texts, whatever the protocol."""

from typing import Annotated

from pydantic import Field

from addnorm.service.asking.tasks import classification, tagging
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.asking.tasks.tagging import Aggregation
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts.sequences import Strings
from addnorm.service.wire.texts.texts import (
    MAX_LABEL_CHARACTERS,
    MAX_TARGET_CHARACTERS,
    MAX_TARGETS,
    MAX_TEMPLATE_CHARACTERS,
)

MAX_CANDIDATES = 100  # of a mask
DEFAULT_CANDIDATES = 5  # as transformers has it
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARACTERS)]
Labels = Annotated[list[Label], Field(fail_fast=True)]
Target = Annotated[str, Field(max_length=MAX_TARGET_CHARACTERS)]
Targets = Annotated[list[Target], Field(fail_fast=True)]


class RerankOptions(Strict):
    max_time_ms: int | None = Field(
        None,
        ge=1,
        description="The answer has what is scored after so many milliseconds. By default as the"
        " header `x-max-time-ms` or the alias says, else there is no such limit.",
    )


class ClassifyOptions(Strict):
    function_to_apply: Function | None = Field(
        None,
        description="From logits to scores: by default sigmoid for one label, or where several may"
        " be true, else softmax.",
    )
    top_k: int | None = Field(
        None, ge=1, description="Only the likeliest so many labels; all by default."
    )


class TagOptions(Strict):
    aggregation_strategy: Aggregation = Field(
        "none",
        description="`none` tags tokens, `simple` joins neighbours of one label, `first`, `average`"
        " and `max` decide for each word first, as in transformers.",
    )
    ignore_labels: Strings = Field(
        list(tagging.IGNORED), description="Labels that are left out of the answer."
    )


class FillMaskOptions(Strict):
    targets: Targets | None = Field(
        None,
        min_length=1,
        max_length=MAX_TARGETS,
        description="Only these tokens are candidates; by default the whole vocabulary.",
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_CANDIDATES,
        description=f"Candidates of each mask; {DEFAULT_CANDIDATES} by default.",
    )


class ZeroShotOptions(Strict):
    candidate_labels: Labels = Field(
        min_length=1, description="Each makes a pair with each text, and counts as a text."
    )
    hypothesis_template: str = Field(
        classification.TEMPLATE,
        max_length=MAX_TEMPLATE_CHARACTERS,
        description="With {} in place of the label.",
    )
    multi_label: bool = Field(
        False, description="Whether each label is scored by itself, so that several may be true."
    )
