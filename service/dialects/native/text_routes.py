"""The native routes of tasks over texts: a result for each text, in the order sent."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.native.native_infer import Usage, usage
from addnorm.service.engine.manifest import Precision, Task
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts import extraction, text_tasks
from addnorm.service.wire.texts.extraction import ExtractOptions
from addnorm.service.wire.texts.json_answers import Finish, JsonAnswer
from addnorm.service.wire.texts.sequences import to_tokenize
from addnorm.service.wire.texts.text_tasks import (
    ClassifyOptions,
    FillMaskOptions,
    TagOptions,
    ZeroShotOptions,
)
from addnorm.service.wire.texts.texts import PRECISION, PROMPT_NAME, Texts, Wish
from addnorm.service.wire.tools import Tools


class TextsRequest(Strict):
    model: str | None = Field(
        None, description="`name` or `name/version`; by default the one model made for this."
    )
    texts: Texts
    truncate: bool | None = Field(
        None, description="Whether texts that are too long are cut, instead of rejected."
    )
    prompt_name: str | None = PROMPT_NAME
    precision: Precision | None = PRECISION


class ClassifyRequest(TextsRequest, ClassifyOptions):
    """Texts, and pairs of texts, for models with one row of logits a sequence."""


class TagRequest(TextsRequest, TagOptions):
    """Texts, for models with labels of every token."""


class FillMaskRequest(TextsRequest, FillMaskOptions):
    """Texts with the model's mask token, for masked language models."""


class ZeroShotRequest(TextsRequest, ZeroShotOptions):
    """Texts, for models that tell whether a text entails another."""


class ExtractRequest(TextsRequest, ExtractOptions):
    """Texts, for models that find names of any labels."""

    truncate: Literal[False] | None = Field(None, description="Texts are never truncated here.")


class Labelled(BaseModel):
    label: str
    score: float
    start: int | None = Field(
        None,
        description="First character of the window that decided, of a text read in several; absent"
        " where no single one did.",
    )
    end: int | None = Field(None, description="One past its last character.")


class Tagged(BaseModel):
    entity: str | None = Field(None, description="With aggregation `none`: the token's label.")
    entity_group: str | None = Field(None, description="Else: the label without B- and I-.")
    score: float
    index: int | None = Field(None, description="With aggregation `none`: of the token.")
    word: str = Field(description="As the tokenizer writes it.")
    start: int = Field(description="First character.")
    end: int = Field(description="One past the last character.")


class Filled(BaseModel):
    score: float
    token: int
    token_str: str
    sequence: str = Field(description="The text with this token in place of the mask.")


class _Results(BaseModel):
    model: str
    version: str
    usage: Usage


class ClassifyResponse(_Results):
    results: list[list[Labelled]] = Field(description="Of each text, likeliest first.")


class TagResponse(_Results):
    results: list[list[Tagged]] = Field(description="Of each text, in its order.")


class FillMaskResponse(_Results):
    results: list[list[list[Filled]]] = Field(
        description="Of each mask of each text, likeliest first."
    )


class Named(BaseModel):
    label: str
    score: float
    start: int = Field(description="First character.")
    end: int = Field(description="One past the last character.")
    text: str


class ExtractResponse(_Results):
    results: list[list[Named]] = Field(description="Of each text, in its order.")


class ZeroShotResponse(ClassifyResponse):
    """A `ClassifyResponse` with the candidate labels."""


async def infer(
    task: Task, run: Callable[..., Awaitable[Finish]], body: TextsRequest, ask: Ask, tools: Tools
) -> Encode:
    """run: see `texts/text_tasks.py`. InvalidInput names the field."""
    wish = Wish(
        model=body.model,
        task=task,
        precision=body.precision,
        field="texts",
        texts=body.texts,
        prompt_name=body.prompt_name,
        truncate=body.truncate,
    )
    finish = await run(ask, tools, to_tokenize(wish, ask, tools), body)
    return JsonAnswer(
        lambda ask: {
            "model": ask.model.answered_name,
            "version": str(ask.model.bundle.manifest.version),
            "results": finish(ask),
            "usage": usage(ask),
        }
    )


def _route(
    path: str,
    task: Task,
    body: type[TextsRequest],
    response: type[BaseModel],
    run: Callable[..., Awaitable[Finish]],
    summary: str,
    example: dict[str, Any],
) -> Route:
    return Route(
        path=path,
        name=path.removeprefix("/v1/").replace("-", "_"),
        summary=summary,
        body=body,
        decode=partial(infer, task, run),
        is_ours=True,
        response=response,
        examples={"a text": example},
    )


ROUTES = (
    _route(
        "/v1/classify",
        "classify",
        ClassifyRequest,
        ClassifyResponse,
        text_tasks.classify,
        "The labels of texts",
        {"model": "classifier", "texts": ["Pads are free."], "top_k": 1},
    ),
    _route(
        "/v1/tag",
        "tag",
        TagRequest,
        TagResponse,
        text_tasks.tag,
        "Labels of tokens, or entities, with their characters",
        {"model": "tagger", "texts": ["Ada lives in London."], "aggregation_strategy": "simple"},
    ),
    _route(
        "/v1/fill-mask",
        "fill_mask",
        FillMaskRequest,
        FillMaskResponse,
        text_tasks.fill_masks,
        "Tokens in place of masks",
        {"model": "masked-lm", "texts": ["Pads are [MASK]."], "top_k": 2},
    ),
    _route(
        "/v1/zero-shot",
        "classify",
        ZeroShotRequest,
        ZeroShotResponse,
        text_tasks.zero_shot,
        "Labels that the model was not trained on",
        {
            "model": "classifier",
            "texts": ["Pads are free."],
            "candidate_labels": ["price", "weather"],
        },
    ),
    _route(
        "/v1/extract",
        "extract",
        ExtractRequest,
        ExtractResponse,
        extraction.extract,
        "Names of any labels, with their characters",
        {"texts": ["Ada lives in London."], "labels": ["person", "city"]},
    ),
)
