"""Tasks over texts, whatever the protocol: texts and options -> a request, and how its outputs
become one result for each text."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.outputs import Logits
from addnorm.service.inference.request import InferenceRequest, InferenceResponse
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.openapi import Strict
from addnorm.service.protocols.codec.texts import TextsToTokenize
from addnorm.service.runtime.tokenizer import num_characters
from addnorm.service.scheduling.cooperative import Steps
from addnorm.service.tasks import classification, fill_mask, tagging
from addnorm.service.tasks.classification import Function
from addnorm.service.tasks.pieces import Pieces
from addnorm.service.tasks.tagging import Aggregation

LABEL_BYTES = 60  # of a label and its score as JSON, about
ENTITY_BYTES = 150  # of an entity
MAX_CANDIDATES = 100  # of a mask
DEFAULT_CANDIDATES = 5  # as transformers has it
Strings = Annotated[list[str], Field(fail_fast=True)]


class TextTask(NamedTuple):
    """finish: the outputs -> a result for each text, in the order sent."""

    request: InferenceRequest
    finish: Callable[[InferenceResponse], Steps[list[Any]]]


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
    targets: Strings | None = Field(
        None,
        min_length=1,
        description="Only these tokens are candidates; by default the whole vocabulary.",
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=MAX_CANDIDATES,
        description=f"Candidates of each mask; {DEFAULT_CANDIDATES} by default.",
    )


class ZeroShotOptions(Strict):
    candidate_labels: Strings = Field(min_length=1)
    hypothesis_template: str = Field(
        classification.TEMPLATE, description="With {} in place of the label."
    )
    multi_label: bool = Field(
        False, description="Whether each label is scored by itself, so that several may be true."
    )


async def score_pairs(
    raw: RawRequest,
    tools: Tools,
    texts: TextsToTokenize,
    function: Function | None,
    precision: str | None = None,
    answer_bytes: int = 0,
) -> TextTask:
    """The score of each pair `np.float32`, for a model that can rerank. answer_bytes: of what the
    protocol adds to the scores."""
    batch, padding = await tools.texts.batch(texts, raw.deadline)

    def finish(response: InferenceResponse) -> Steps[list[Any]]:
        yield
        scores = classification.probabilities(response.outputs["logits"], function)
        return list(scores[:, 0])

    request = InferenceRequest(
        texts.model,
        batch,
        padding,
        (Logits(),),
        precision,
        field=texts.field,
        answer_bytes=LABEL_BYTES * len(batch) + answer_bytes,
    )
    return TextTask(request, finish)


async def classify(
    raw: RawRequest,
    tools: Tools,
    texts: TextsToTokenize,
    options: ClassifyOptions,
    precision: str | None = None,
) -> TextTask:
    """The labels of each text or pair, likeliest first."""
    labels = _labels(texts)
    function = options.function_to_apply
    if function is None and texts.model.bundle.manifest.multi_label:
        function = "sigmoid"
    batch, padding = await tools.texts.batch(texts, raw.deadline)

    def finish(response: InferenceResponse) -> Steps[list[Any]]:
        results = []
        logits = response.outputs["logits"]
        for scores in classification.probabilities(logits, function):
            results.append(classification.ranked(scores, labels, options.top_k))
            yield
        return results

    request = InferenceRequest(
        texts.model,
        batch,
        padding,
        (Logits(),),
        precision,
        field=texts.field,
        answer_bytes=LABEL_BYTES * len(labels) * len(batch),
    )
    return TextTask(request, finish)


async def zero_shot(
    raw: RawRequest,
    tools: Tools,
    texts: TextsToTokenize,
    options: ZeroShotOptions,
    precision: str | None = None,
) -> TextTask:
    """The candidate labels of each text, likeliest first, by a model that was trained to find
    entailment."""
    bundle = texts.model.bundle
    entailment = classification.entailment_index(bundle.manifest.labels, bundle.ref)
    candidates = options.candidate_labels
    hypotheses = list(classification.hypotheses(candidates, options.hypothesis_template))
    pairs = [(text, hypothesis) for text in _single_texts(texts) for hypothesis in hypotheses]
    batch, padding = await tools.texts.batch(texts._replace(texts=pairs), raw.deadline)

    def finish(response: InferenceResponse) -> Steps[list[Any]]:
        results = []
        logits = response.outputs["logits"]
        for start in range(0, len(logits), len(candidates)):
            own = logits[start : start + len(candidates)]
            results.append(
                classification.zero_shot(own, candidates, entailment, options.multi_label)
            )
            yield
        return results

    request = InferenceRequest(
        texts.model,
        batch,
        padding,
        (Logits(),),
        precision,
        field=texts.field,
        answer_bytes=LABEL_BYTES * len(pairs),
    )
    return TextTask(request, finish)


async def tag(
    raw: RawRequest,
    tools: Tools,
    texts: TextsToTokenize,
    options: TagOptions,
    precision: str | None = None,
) -> TextTask:
    """The tags or entities of each text, in the order of the text."""
    labels, plain = _labels(texts), _single_texts(texts)
    batch, padding, encodings = await tools.texts.encoded(texts, raw.deadline)
    pieces = Pieces.of(tools.texts.tokenizer(texts).library)

    def finish(response: InferenceResponse) -> Steps[list[Any]]:
        results = []
        for text, encoding, logits in zip(
            plain, encodings, response.outputs["logits"], strict=True
        ):
            results.append(
                tagging.tagged(
                    text,
                    encoding,
                    classification.probabilities(logits, "softmax"),
                    labels,
                    pieces,
                    options.aggregation_strategy,
                    options.ignore_labels,
                )
            )
            yield
        return results

    request = InferenceRequest(
        texts.model,
        batch,
        padding,
        (Logits(),),
        precision,
        field=texts.field,
        answer_bytes=ENTITY_BYTES * batch.num_tokens,
    )
    return TextTask(request, finish)


async def fill_masks(
    raw: RawRequest,
    tools: Tools,
    texts: TextsToTokenize,
    options: FillMaskOptions,
    precision: str | None = None,
) -> TextTask:
    """The candidates of each mask of each text, likeliest first."""
    pieces = Pieces.of(tools.texts.tokenizer(texts).library)
    batch, padding = await tools.texts.batch(texts, raw.deadline)
    ids = np.split(batch.tokens, batch.offsets[1:-1])
    masks = [
        fill_mask.mask_positions(own.tolist(), pieces, f"{texts.field}[{index}]")
        for index, own in enumerate(ids)
    ]
    targets = None if options.targets is None else fill_mask.target_ids(options.targets, pieces)
    top_k = options.top_k or DEFAULT_CANDIDATES
    positions = [
        start + position
        for start, own in zip(batch.offsets.tolist(), masks, strict=False)
        for position in own
    ]

    def finish(response: InferenceResponse) -> Steps[list[Any]]:
        rows = iter(response.outputs["logits"])
        results = []
        for own_ids, own_masks in zip(ids, masks, strict=True):
            filled = []
            for position in own_masks:
                likeliest = fill_mask.likeliest(next(rows), top_k, targets)
                filled.append(
                    fill_mask.filled(
                        own_ids.tolist(), position, *likeliest, pieces, len(own_masks) == 1
                    )
                )
                yield
            results.append(filled)
        return results

    text_bytes = sum(
        num_characters(text) * len(own) for text, own in zip(texts.texts, masks, strict=True)
    )
    logits = Logits(np.array(positions, np.int64))
    bundle = texts.model.bundle
    request = InferenceRequest(
        texts.model,
        batch,
        padding,
        (logits,),
        precision,
        field=texts.field,
        # beside the answer: the logits, all of which are held
        answer_bytes=top_k * (text_bytes + ENTITY_BYTES * len(positions))
        + 4 * len(positions) * bundle.width("logits"),
    )
    return TextTask(request, finish)


def _labels(texts: TextsToTokenize) -> Sequence[str]:
    bundle = texts.model.bundle
    return classification.label_names(bundle.manifest.labels, bundle.width("logits"))


def _single_texts(asked: TextsToTokenize) -> list[str]:
    """InvalidInput for a pair."""
    singles = [text for text in asked.texts if isinstance(text, str)]
    if len(singles) == len(asked.texts):
        return singles
    index = next(i for i, text in enumerate(asked.texts) if not isinstance(text, str))
    raise InvalidInput(f"{asked.field}[{index}] is a pair: send single texts", param=asked.field)
