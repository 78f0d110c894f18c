"""The six tasks of `huggingface_hub.InferenceClient(model="http://HOST/hf/NAME")`, on one path.

The client posts `{"inputs", "parameters"}` whatever the task, so the model and the body say which
task is meant. Source: huggingface_hub's client.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.asking.tasks.tagging import Aggregation
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Pooled
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import Strict, into_body
from addnorm.service.wire.dialect_errors import HUGGING_FACE_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, Route, parts_of
from addnorm.service.wire.texts import text_tasks
from addnorm.service.wire.texts.json_answers import Finish, JsonAnswer, likeness
from addnorm.service.wire.texts.sequences import Strings, to_tokenize, vectors
from addnorm.service.wire.texts.text_tasks import (
    ClassifyOptions,
    FillMaskOptions,
    Labels,
    TagOptions,
    ZeroShotOptions,
)
from addnorm.service.wire.texts.texts import PROMPT_NAME, Wish, source_or_sentence
from addnorm.service.wire.tools import Tools


class Sentences(Strict):
    source_sentence: str
    sentences: Strings


class TextPair(Strict):
    """Two texts, as transformers' pipeline for classification takes them."""

    text: str
    text_pair: str | None = None

    def as_text(self) -> Text:
        return self.text if self.text_pair is None else (self.text, self.text_pair)


Pairs = Annotated[list[TextPair], Field(fail_fast=True)]
Inputs = str | Strings | Sentences | TextPair | Pairs
KINDS = TypeAdapter[Inputs](Inputs)


def _inputs(value: Any) -> Inputs:
    try:
        return KINDS.validate_python(value, strict=True)
    except ValidationError:
        raise PydanticCustomError(
            "inputs_kind",
            "Input should be a text, text with text_pair, a list of either, or source_sentence with"
            " sentences",
        ) from None


class HubTagOptions(TagOptions):
    stride: int | None = Field(
        None, ge=0, lt=2**31, description="The overlap of windows, in tokens."
    )

    def window_rule(self) -> WindowRule | None:
        if self.stride is not None and self.windows:
            raise InvalidInput("windows and stride are both set: send one of them", param="stride")
        return self.windows if self.stride is None else WindowRule(overlap=self.stride)

    @property
    def overlap_field(self) -> str:
        return "windows.overlap" if self.stride is None else "stride"


class TaskParameters(ClassifyOptions, HubTagOptions, FillMaskOptions, ZeroShotOptions):
    """Parameters of all tasks; which of them a task knows is checked once the task is known."""

    top_k: int | None = Field(None, ge=1)
    aggregation_strategy: Aggregation = Field(
        "simple",
        description="As in /v1/tag, but `simple` by default, as Hugging Face's API has it.",
    )
    candidate_labels: Labels = Field([], description="Makes it a zero-shot classification.")


OF_FEATURES = ("normalize", "dimensions", "encoding_format")
BESIDE_PARAMETERS = frozenset((*OF_FEATURES, "truncate", "prompt_name"))


class HuggingFaceRequest(Strict):
    """What is beside `parameters` may stand in there too, as in the hub's own API."""

    model: str | None = Field(None, description="The path's name wins.")
    inputs: Annotated[Inputs, PlainValidator(_inputs, Inputs)]
    parameters: TaskParameters | None = None
    prompt_name: str | None = PROMPT_NAME
    truncate: bool | None = Field(
        None, description="Whether texts that are too long are cut, instead of rejected."
    )
    normalize: bool | None = Field(
        None, description="This and the next two ask for vectors, whatever the model is made for."
    )
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        return into_body(value, BESIDE_PARAMETERS)


EXAMPLES: dict[str, Any] = {
    "a vector": {"inputs": "Pads are dropped.", "normalize": True},
    "entities": {
        "inputs": "Ada lives in London.",
        "parameters": {"aggregation_strategy": "simple"},
    },
}
# what a model does with plain texts -> the options that this knows, and how it is done
BY_TASK: dict[str, tuple[type[Strict], Any]] = {
    "classify": (ClassifyOptions, text_tasks.classify),
    "tag": (HubTagOptions, text_tasks.tag),
    "extract": (HubTagOptions, text_tasks.tag),  # rejects a model without labels of its own
    "fill_mask": (FillMaskOptions, text_tasks.fill_masks),
}


async def infer(body: HuggingFaceRequest, ask: Ask, tools: Tools) -> Encode:
    """InvalidInput names the field."""
    ref = ask.names["model"]
    if "version" in ask.names:
        name, colon, prompt = ref.partition(":")
        ref = f"{name}/{ask.names['version']}{colon}{prompt}"
    model, _ = ask.find_model_and_prompt(tools.models, ref, body.prompt_name)
    texts = _texts(body.inputs)
    wish = Wish(
        model=ref,
        field="inputs",
        texts=texts,
        prompt_name=body.prompt_name,
        truncate=body.truncate,
        # sentence-transformers cuts texts, transformers' pipelines for the other tasks do not
        cuts=True,
        normalize=body.normalize,
        dimensions=body.dimensions,
        in_base64=body.encoding_format == "base64",
    )
    parameters = body.parameters or TaskParameters()
    if isinstance(body.inputs, Sentences):
        _check_parameters(parameters, Strict, "similarity")
        for name in OF_FEATURES:
            if getattr(body, name) is not None:
                raise InvalidInput(f"{name} is set, but has no effect for similarity", param=name)
        if not body.inputs.sentences:
            raise InvalidInput("inputs.sentences is empty: send at least one text", param="inputs")
        wish = replace(wish, named=source_or_sentence, output=Pooled.for_comparison)
        return await vectors(wish, ask, tools, shape=likeness)
    options_type, run = _task(body, model, texts)
    _check_parameters(parameters, options_type, f"the task of {model.bundle.ref}")
    if run is None:
        return await vectors(wish, ask, tools)
    finish = await run(ask, tools, to_tokenize(replace(wish, cuts=False), ask, tools), parameters)
    # transformers answers a list of one text by one object too, in this task
    is_one = isinstance(body.inputs, str | TextPair) or (
        run is text_tasks.zero_shot and len(texts) == 1
    )
    return JsonAnswer(partial(_results, finish, is_one, run))


def _check_parameters(parameters: TaskParameters, options_type: type[Strict], purpose: str) -> None:
    """InvalidInput for a parameter that would have no effect, unless it is as by default."""
    fields = type(parameters).model_fields
    changed_names = {name for name in fields if getattr(parameters, name) != fields[name].default}
    for name in sorted(changed_names - set(options_type.model_fields)):
        raise InvalidInput(
            f"parameters.{name} is set, but has no effect for {purpose}; known are"
            f" {', '.join(options_type.model_fields) or 'none'}",
            param="parameters",
        )


def _texts(inputs: Inputs) -> list[Text]:
    if isinstance(inputs, Sentences):
        return [inputs.source_sentence, *inputs.sentences]
    entries = inputs if isinstance(inputs, list) else [inputs]
    return [entry.as_text() if isinstance(entry, TextPair) else entry for entry in entries]


def _task(body: HuggingFaceRequest, model: Model, texts: list[Text]) -> tuple[type[Strict], Any]:
    """The options that the task meant knows, and how it is done; None: feature extraction."""
    if any(getattr(body, name) is not None for name in OF_FEATURES):
        return Strict, None
    if body.parameters and body.parameters.candidate_labels:
        return ZeroShotOptions, text_tasks.zero_shot
    tasks = (BY_TASK[task] for task in model.bundle.tasks if task in BY_TASK)
    options_and_run = next(tasks, (Strict, None))
    if options_and_run[1] is text_tasks.fill_masks and body.parameters is None:
        # Python's client sends parameters with every task but this one, JavaScript's with none
        mask = Pieces.from_tokenizer(model.tokenizer.library).mask if model.tokenizer else None
        if not (mask and all(mask[1] in text for text in texts)):
            return Strict, None
    return options_and_run


def _results(finish: Finish, is_one: bool, run: Callable[..., Any], ask: Ask) -> Any:
    """One text: its own result. The client takes the first of the lists of a classification."""
    answers = finish(ask)
    if run is text_tasks.fill_masks:
        answers = map(_of_masks, answers)
    return next(answers) if is_one and run is not text_tasks.classify else answers


def _of_masks(masks: Iterator[Any]) -> Any:
    """One mask: its own candidates."""
    first, second = next(masks), list(islice(masks, 1))
    return chain([first], second, masks) if second else first


async def health(request: Request, model: str) -> dict[str, str]:
    # what `InferenceClient.health_check` asks of a model
    parts_of(request).models.meant(model)
    return {"status": "ok"}


PROTOCOL = Protocol(
    tag="Hugging Face",
    reference="https://huggingface.co/docs/huggingface_hub/package_reference/inference_client",
    routes=(
        *(
            Route(
                path=path,
                name=name,
                summary="Classification, tagging, masks, zero-shot labels, similarity or vectors,"
                " as huggingface_hub's client asks for them",
                body=HuggingFaceRequest,
                decode=infer,
                examples=EXAMPLES,
            )
            for path, name in (
                ("/hf/{model}/{version:int}", "hugging_face_version"),
                ("/hf/{model:path}", "hugging_face"),  # names may have slashes
            )
        ),
        PlainRoute(
            "/hf/{model:path}/health",
            health,
            "Whether the model is served, as huggingface_hub's client asks",
            {404: {"model": HUGGING_FACE_ERRORS.body, "description": "No such model."}},
            "hugging_face_health",
        ),
    ),
    errors=HUGGING_FACE_ERRORS,
)
