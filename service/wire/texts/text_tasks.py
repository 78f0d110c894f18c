"""Tasks over texts, whatever the protocol: texts and options -> what is asked, and how its outputs
become one result for each text."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import classification, fill_mask, tagging
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.engine.batch import Batch, Ints
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.outputs import Logits, LogitsAt, Output
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.texts import first_stage
from addnorm.service.wire.texts.json_answers import Finish
from addnorm.service.wire.texts.task_options import (
    DEFAULT_CANDIDATES,
    MAX_CANDIDATES,
    ClassifyOptions,
    FillMaskOptions,
    TagOptions,
    ZeroShotOptions,
)
from addnorm.service.wire.texts.texts import (
    TextsToTokenize,
    check_single,
    check_size,
    json_bytes,
    text_with_label,
)

LABEL_BYTES = 60  # of a label and its score as JSON, about, beside the label's own
ENTITY_BYTES = 150  # of an entity, beside the text's own
PIECE_TARGETS = 32  # tokenized in one piece


async def score_pairs(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    function: Function | None,
    precision: str | None = None,
    answer_bytes: int = 0,
    max_time_ms: int | None = None,
) -> Finish:
    """The score of each pair `np.float32`, for a model that can rerank; None of one that the time
    did not suffice for, or that the first stage of the alias put behind those that it keeps.

    answer_bytes: of what the protocol adds to the scores. max_time_ms: None: by header or alias.
    """
    whole, num, alias = texts, len(texts.texts), ask.alias
    if max_time_ms is None and ask.max_time_s == math.inf:  # no field, no header
        max_time_ms = alias.max_time_ms
    if max_time_ms is not None:
        ask.max_time_s = max_time_ms / 1000
    chosen: Sequence[int] = range(num)
    if alias.first:
        ask.order = await first_stage.order(alias.first, texts, ask, tools)
        chosen = ask.order[: alias.keep]
        pairs = [texts.texts[index] for index in chosen]
        texts = texts._replace(texts=pairs, named=lambda at, part: whole.place(chosen[at], part))
    if ask.max_time_s < math.inf:
        texts = tools.texts.in_time(texts, ask, precision or ask.precision)
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)

    def finish(ask: Ask) -> Iterator[Any]:
        found = classification.probabilities(ask.value(Logits).joined, function)[:, 0]
        scores: list[Any] = [None] * num
        for at, score in zip(range(num) if ask.there is None else ask.there, found, strict=False):
            scores[chosen[at]] = score
        if ask.in_time or alias.first:
            ask.scored = len(found), num
        return iter(scores)

    num_bytes = LABEL_BYTES * num + answer_bytes
    _want(ask, texts, Logits(), precision, num_bytes)
    return finish


async def classify(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    options: ClassifyOptions,
    precision: str | None = None,
) -> Finish:
    """The labels of each text or pair, likeliest first."""
    labels = _labels(texts)
    function = options.function_to_apply or texts.model.bundle.manifest.score_function
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = ask.value(Logits).joined
        for scores in classification.probabilities(logits, function):
            yield classification.ranked(scores, labels, options.top_k)

    answer_bytes = len(ask.batch) * _label_bytes(labels)
    _want(ask, texts, Logits(), precision, answer_bytes)
    return finish


async def zero_shot(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    options: ZeroShotOptions,
    precision: str | None = None,
) -> Finish:
    """The candidate labels of each text, likeliest first, by a model that was trained to find
    entailment."""
    bundle = texts.model.bundle
    entailment = classification.entailment_index(bundle.manifest.labels, bundle.ref)
    candidates = options.candidate_labels
    tools.texts.check_pairs(texts, "candidate_labels", len(candidates))
    check_single(texts.field, texts.texts)
    hypotheses = list(classification.hypotheses(candidates, options.hypothesis_template))
    whole = map(str, texts.whole(texts.texts))
    pairs = [(text, hypothesis) for text in whole for hypothesis in hypotheses]
    named = text_with_label(texts.field, len(candidates))
    made = texts._replace(texts=pairs, named=named)
    ask.batch, ask.padding = await tools.texts.tokenize(made, ask)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = ask.value(Logits).joined
        for start in range(0, len(logits), len(candidates)):
            own = logits[start : start + len(candidates)]
            yield classification.zero_shot(own, candidates, entailment, options.multi_label)

    answer_bytes = len(texts.texts) * _label_bytes(candidates)
    _want(ask, texts, Logits(), precision, answer_bytes)
    return finish


async def tag(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    options: TagOptions,
    precision: str | None = None,
) -> Finish:
    """The tags or entities of each text, in the order of the text."""
    check_single(texts.field, texts.texts)
    labels, ignored = _labels(texts), frozenset(options.ignore_labels)
    ask.batch, ask.padding, encodings = await tools.texts.tokenize_with_offsets(texts, ask)
    pieces = Pieces.of(tools.texts.tokenizer(texts).library)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = ask.value(Logits).rows
        for text, encoding, own in zip(texts.texts, encodings, logits, strict=True):
            yield tagging.tagged(
                f"{texts.prompt}{text}",
                encoding,
                classification.probabilities(own, "softmax"),
                labels,
                pieces,
                options.aggregation_strategy,
                ignored,
            )

    whole = zip(map(str, texts.whole(texts.texts)), encodings, strict=True)
    ends = ((text, max((end for _, end in one.offsets), default=0)) for text, one in whole)
    kept_bytes = json_bytes(text[:end] for text, end in ends)
    answer_bytes = ENTITY_BYTES * ask.batch.num_tokens + 2 * kept_bytes
    _want(ask, texts, Logits(), precision, answer_bytes)
    return finish


async def fill_masks(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    options: FillMaskOptions,
    precision: str | None = None,
) -> Finish:
    """The candidates of each mask of each text, likeliest first: a list for each mask."""
    top_k = options.top_k or DEFAULT_CANDIDATES
    check_size("top_k", top_k, "candidates of each mask", MAX_CANDIDATES, "ask for less")
    pieces = Pieces.of(tools.texts.tokenizer(texts).library)
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    sent = options.targets or []
    num_texts = len(ask.batch) + len(sent)
    num_characters = ask.batch.num_tokens + sum(map(len, sent))
    about = texts.field, ask.batch, sent, pieces
    masks = await tools.texts.run(num_texts, num_characters, ask, _masks, *about)

    def finish(ask: Ask) -> Iterator[Any]:
        rows = iter(ask.value(LogitsAt).joined)
        for own_ids, positions in zip(masks.ids, masks.positions, strict=True):
            text = fill_mask.MaskedText(own_ids, positions, pieces)
            yield (
                text.filled(place, *fill_mask.likeliest(next(rows), top_k, masks.targets))
                for place in positions
            )

    num_masks, width = len(masks.places), texts.model.bundle.width("logits")
    num_each = min(top_k, len(masks.targets or range(width)))
    # beside the response: the logits, all of which are held
    answer_bytes = num_each * (masks.text_bytes + ENTITY_BYTES * num_masks) + 4 * num_masks * width
    output = LogitsAt(tokens=masks.places)
    _want(ask, texts, output, precision, answer_bytes)
    return finish


class _Masks(NamedTuple):
    """ids, positions: of each text, and of its masks; places: of all masks among the tokens of the
    batch. text_bytes: of the texts as JSON, each as often as it has masks."""

    ids: list[Ints]
    positions: list[list[int]]
    places: Ints
    targets: list[int] | None
    text_bytes: int


def _masks(field: str, batch: Batch, targets: Sequence[str], pieces: Pieces) -> _Masks:
    ids = np.split(batch.tokens, batch.offsets[1:-1])
    positions, text_bytes = list[list[int]](), 0
    for index, own in enumerate(ids):
        positions.append(found := fill_mask.mask_positions(own, pieces, f"{field}[{index}]"))
        text_bytes += len(found) * json_bytes(pieces.texts([own.tolist()], len(found) == 1))
        checkpoint()
    known = dict[int, None]()
    for start in range(0, len(targets), PIECE_TARGETS):
        some = targets[start : start + PIECE_TARGETS]
        known |= dict.fromkeys(fill_mask.target_ids(some, pieces))
        checkpoint()
    starts = zip(batch.offsets.tolist(), positions, strict=False)
    places = np.array([start + place for start, own in starts for place in own], np.int64)
    return _Masks(ids, positions, places, list(known) or None, text_bytes)


def _label_bytes(labels: Sequence[str]) -> int:
    """Bytes of the labels of one text as JSON, with their scores."""
    return LABEL_BYTES * len(labels) + json_bytes(labels)


def _labels(texts: TextsToTokenize) -> Sequence[str]:
    bundle = texts.model.bundle
    return classification.label_names(bundle.manifest.labels, bundle.width("logits"))


def _want(
    ask: Ask, texts: TextsToTokenize, output: Output[Any], precision: str | None, answer_bytes: int
) -> None:
    ask.outputs, ask.precision = (output,), precision or ask.precision
    ask.field, ask.answer_bytes = texts.field, answer_bytes
