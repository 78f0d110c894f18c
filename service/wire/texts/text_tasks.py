"""Tasks over texts, whatever the protocol: texts and options -> what is asked, and how its outputs
become one result for each text. `reranking.py` has those of pairs."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import classification, fill_mask, tagging
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.asking.tasks.tagging import Aggregation, TokenPlaces
from addnorm.service.asking.tasks.window_scores import Joining, TextScores, beside, join
from addnorm.service.engine.batch import Batch, Floats, Ints
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.engine.outputs import Logits, LogitsAt
from addnorm.service.engine.windows import Window
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts import extraction
from addnorm.service.wire.texts.json_answers import Finish
from addnorm.service.wire.texts.sequences import Strings
from addnorm.service.wire.texts.texts import (
    TextsToTokenize,
    WindowOptions,
    check_rule,
    check_single,
    check_size,
    json_bytes,
    text_with_label,
)
from addnorm.service.wire.tools import Tools

MAX_LABEL_CHARACTERS = 1000  # of a candidate label; a hypothesis is cut to what the model takes
MAX_TEMPLATE_CHARACTERS = 1000
MAX_TARGETS = 1000  # that are to be candidates of a mask
MAX_TARGET_CHARACTERS = 256  # a target is one token
MAX_CANDIDATES = 100  # of a mask
DEFAULT_CANDIDATES = 5  # as transformers has it
LABEL_BYTES = 60  # of a label and its score as JSON, about, beside the label's own
ENTITY_BYTES = 150  # of an entity, beside the text's own
PIECE_TARGETS = 32  # tokenized in one piece
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARACTERS)]
Labels = Annotated[list[Label], Field(fail_fast=True)]
Target = Annotated[str, Field(max_length=MAX_TARGET_CHARACTERS)]
Targets = Annotated[list[Target], Field(fail_fast=True)]


class ClassifyOptions(WindowOptions):
    function_to_apply: Function | None = Field(
        None,
        description="From logits to scores: by default sigmoid for one label, or where several may"
        " be true, else softmax.",
    )
    top_k: int | None = Field(
        None, ge=1, description="Only the likeliest so many labels; all by default."
    )


class TagOptions(WindowOptions):
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


class ZeroShotOptions(WindowOptions):
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


async def classify(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ClassifyOptions
) -> Finish:
    """The labels of each text or pair, likeliest first."""
    labels = _labels(texts)
    score = await label_scores(ask, tools, texts, options)

    def finish(ask: Ask) -> Iterator[Any]:
        for scores, logits, spans in score(ask):
            yield classification.rank_labels(scores, logits, labels, options.top_k, spans)

    ask.outputs, ask.answer_bytes = (Logits(),), len(texts.texts) * _label_bytes(labels)
    return finish


async def label_scores(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ClassifyOptions
) -> Callable[[Ask], Iterator[TextScores]]:
    """The scores of all labels of each text or pair, which are read here."""
    manifest, labels = texts.model.bundle.manifest, _labels(texts)
    function = options.function_to_apply or manifest.score_function
    texts = tools.texts.in_windows(texts, options.window_rule(), ask, cuts_hide=True)
    joining = Joining()
    if texts.windows:
        # labels that compete do so by whatever function: else each could hide another's window
        are_independent = manifest.score_function is not None and function != "softmax"
        joining = Joining.of_labels(texts.windows, labels, are_independent, texts.model.bundle.ref)
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)

    def score(ask: Ask) -> Iterator[TextScores]:
        logits = ask.value(Logits).joined
        scores = classification.probabilities(logits, function)
        if not ask.windows:
            return map(TextScores, scores, logits)
        chances = scores
        if function == "none":
            chances = classification.probabilities(logits, manifest.score_function)
        return (
            join(scores[at], logits[at], chances[at], ask.windows.windows[at], joining)
            for at in ask.windows.of_texts()
        )

    return score


async def zero_shot(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ZeroShotOptions
) -> Finish:
    """The candidate labels of each text, likeliest first, by a model that was trained to find
    entailment."""
    bundle = texts.model.bundle
    entailment = classification.entailment_index(bundle.manifest.labels, bundle.ref)
    candidates = options.candidate_labels
    texts = tools.texts.in_windows(texts, options.window_rule(), ask, cuts_hide=True)
    tools.texts.check_pairs(texts, "candidate_labels", len(candidates))
    check_single(texts.wish.field, texts.texts)
    hypotheses = list(classification.hypotheses(candidates, options.hypothesis_template))
    full_texts = map(str, texts.whole(texts.texts))
    pairs = [(text, hypothesis) for text in full_texts for hypothesis in hypotheses]
    place = text_with_label(texts.wish.field, len(candidates))
    joining, aligned = Joining(), [len(candidates)] * len(texts.texts)
    if texts.windows:
        rule = known_label(texts.windows, options.windows, candidates)
        joining = Joining.of_labels(rule, candidates, options.multi_label, "candidate_labels")
        if options.multi_label and joining.label is None:  # no label changes another's windows
            aligned = [1] * len(pairs)
    pair_texts = texts._replace(texts=pairs, named=place, split_part=0, aligned=aligned)
    ask.batch, ask.padding = await tools.texts.tokenize(pair_texts, ask)

    def score(ask: Ask) -> Iterator[TextScores]:
        for windows, logits in by_window(ask, aligned):
            numbers = (
                classification.zero_shot(label_logits, entailment, options.multi_label)
                for label_logits in logits
            )
            scores, order = map(np.stack, zip(*numbers, strict=True))
            yield join(scores, order, scores, windows, joining)

    def finish(ask: Ask) -> Iterator[Any]:
        results = score(ask)
        for _ in texts.texts:
            num_groups = len(aligned) // len(texts.texts)
            result = beside(list(islice(results, num_groups)))
            yield classification.rank_labels(
                result.scores, result.logits, candidates, spans=result.spans
            )

    ask.outputs, ask.answer_bytes = (Logits(),), len(texts.texts) * _label_bytes(candidates)
    return finish


def known_label(rule: WindowRule, sent: WindowRule | None, labels: Sequence[str]) -> WindowRule:
    """The rule for labels of the request, which an operator's may not know: his does not count
    then."""
    is_sent = sent is not None and sent.label is not None
    return rule if is_sent or rule.label in labels else rule.model_copy(update={"label": None})


def by_window(ask: Ask, aligned: Sequence[int]) -> Iterator[tuple[Sequence[Window], Floats]]:
    """The logits of neighbouring pairs, so many of each text, which have its windows in common:
    `[windows, pairs, labels]`, and these windows. None are named if texts are not split."""
    logits, first = ask.value(Logits).joined, 0
    places = list(ask.windows.of_texts()) if ask.windows else []
    for num_pairs in aligned:
        last = first + num_pairs - 1
        if ask.windows:
            block = logits[places[first].start : places[last].stop]
            split_logits = block.reshape(num_pairs, -1, logits.shape[1]).swapaxes(0, 1)
            yield ask.windows.windows[places[first]], split_logits
        else:
            yield (), logits[None, first : last + 1]
        first = last + 1


async def tag(ask: Ask, tools: Tools, texts: TextsToTokenize, options: TagOptions) -> Finish:
    """The tags or entities of each text, in the order of the text."""
    check_single(texts.wish.field, texts.texts)
    rule, ignored = options.window_rule(), frozenset(options.ignore_labels)
    check_rule(rule, None, "each token is tagged where it stands")
    texts = tools.texts.in_windows(texts, rule, ask, cuts_hide=True)
    texts = texts._replace(overlap_field=options.overlap_field)
    if texts.model.bundle.manifest.extraction:
        return await extraction.tag(ask, tools, texts, ignored)
    labels = _labels(texts)
    full_texts = read_texts = list(map(str, texts.whole(texts.texts)))
    if texts.windows:
        ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
        assert ask.windows
        windows = list(map(TokenPlaces.of_window, ask.windows.windows))
        places_by_text = [windows[at] for at in ask.windows.of_texts()]
    else:
        ask.batch, ask.padding, encodings = await tools.texts.tokenize_with_offsets(texts, ask)
        places_by_text = [[TokenPlaces.of_encoding(encoding)] for encoding in encodings]
        ends = (max((end for _, end in encoding.offsets), default=0) for encoding in encodings)
        read_texts = [text[:end] for text, end in zip(full_texts, ends, strict=True)]
    pieces = Pieces.from_tokenizer(tools.texts.tokenizer(texts).library)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = iter(ask.value(Logits).rows)
        for text, windows in zip(full_texts, places_by_text, strict=True):
            yield tagging.join_overlapping(
                [
                    tagging.tag_tokens(
                        text,
                        places,
                        classification.probabilities(next(logits), "softmax"),
                        labels,
                        pieces,
                        options.aggregation_strategy,
                        ignored,
                    )
                    for places in windows
                ]
            )

    kept_bytes = json_bytes(read_texts)
    ask.outputs, ask.answer_bytes = (
        (Logits(),),
        ENTITY_BYTES * ask.batch.num_tokens + 2 * kept_bytes,
    )
    return finish


async def fill_masks(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: FillMaskOptions
) -> Finish:
    """The candidates of each mask of each text, likeliest first: a list for each mask."""
    top_k = options.top_k or DEFAULT_CANDIDATES
    check_size("top_k", top_k, "candidates of each mask", MAX_CANDIDATES, "ask for less")
    pieces = Pieces.from_tokenizer(tools.texts.tokenizer(texts).library)
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    sent = options.targets or []
    num_texts = len(ask.batch) + len(sent)
    num_characters = ask.batch.num_tokens + sum(map(len, sent))
    about = texts.wish.field, ask.batch, sent, pieces
    masks = await tools.texts.run(num_texts, num_characters, ask, _masks, *about)

    def finish(ask: Ask) -> Iterator[Any]:
        rows = iter(ask.value(LogitsAt).joined)
        for own_ids, positions in zip(masks.ids, masks.positions, strict=True):
            text = fill_mask.MaskedText(own_ids, positions, pieces)
            yield (
                text.fill(place, *fill_mask.likeliest(next(rows), top_k, masks.targets))
                for place in positions
            )

    num_masks, width = len(masks.places), texts.model.bundle.width("logits")
    num_each = min(top_k, len(masks.targets or range(width)))
    # beside the response: the logits, all of which are held
    answer_bytes = num_each * (masks.text_bytes + ENTITY_BYTES * num_masks) + 4 * num_masks * width
    ask.outputs, ask.answer_bytes = (LogitsAt(tokens=masks.places),), answer_bytes
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
    for index, sequence_ids in enumerate(ids):
        positions.append(
            mask_places := fill_mask.mask_positions(sequence_ids, pieces, f"{field}[{index}]")
        )
        text_bytes += len(mask_places) * json_bytes(
            pieces.texts([sequence_ids.tolist()], len(mask_places) == 1)
        )
        checkpoint()
    target_ids = dict[int, None]()
    for start in range(0, len(targets), PIECE_TARGETS):
        portion = targets[start : start + PIECE_TARGETS]
        target_ids |= dict.fromkeys(fill_mask.target_ids(portion, pieces))
        checkpoint()
    starts = zip(batch.offsets.tolist(), positions, strict=False)
    places = np.array(
        [start + place for start, row_positions in starts for place in row_positions], np.int64
    )
    return _Masks(ids, positions, places, list(target_ids) or None, text_bytes)


def _label_bytes(labels: Sequence[str]) -> int:
    """Bytes of the labels of one text as JSON, with their scores."""
    return LABEL_BYTES * len(labels) + json_bytes(labels)


def _labels(texts: TextsToTokenize) -> Sequence[str]:
    bundle = texts.model.bundle
    return classification.label_names(bundle.manifest.labels, bundle.width("logits"))
