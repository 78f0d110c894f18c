"""Tasks over texts, whatever the protocol: texts and options -> what is asked, and how its outputs
become one result for each text. A cascade's first stage, which says what a reranker scores, is an
ask of its own.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import classification, fill_mask, tagging
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.asking.tasks.max_sim import max_sims
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.asking.tasks.tagging import Aggregation
from addnorm.service.engine.batch import Batch, Floats, Ints, Padding
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Logits, LogitsAt, Output, Pooled, TokenVectors
from addnorm.service.engine.outputs.per_token import counted
from addnorm.service.errors import DeadlineNotMet, InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts import extraction
from addnorm.service.wire.texts.json_answers import Finish, Unscored, compared
from addnorm.service.wire.texts.sequences import Strings, add_type_prompt
from addnorm.service.wire.texts.texts import (
    TextsToTokenize,
    check_single,
    check_size,
    json_bytes,
    text_with_label,
)

MAX_LABEL_CHARACTERS = 1000  # of a candidate label; a hypothesis is cut to what the model takes
MAX_TEMPLATE_CHARACTERS = 1000
MAX_TARGETS = 1000  # that are to be candidates of a mask
MAX_TARGET_CHARACTERS = 256  # a target is one token
MAX_CANDIDATES = 100  # of a mask
DEFAULT_CANDIDATES = 5  # as transformers has it
LABEL_BYTES = 60  # of a label and its score as JSON, about, beside the label's own
ENTITY_BYTES = 150  # of an entity, beside the text's own
PIECE_TARGETS = 32  # tokenized in one piece
TIME_SHARE = 0.5  # of the time of an ask that ends in time
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARACTERS)]
Labels = Annotated[list[Label], Field(fail_fast=True)]
Target = Annotated[str, Field(max_length=MAX_TARGET_CHARACTERS)]
Targets = Annotated[list[Target], Field(fail_fast=True)]


Compare = Callable[[Ask], dict[int, classification.Scored]]  # of the pairs that are there


class RerankOptions(Strict):
    max_time_ms: int | None = Field(
        None,
        gt=0,
        description="The answer has what is scored after so many milliseconds. By default as the"
        " header `x-max-time-ms` or the alias says, else there is no such limit.",
    )

    max_chunks_per_doc: int | None = Field(
        None,
        ge=0,
        description="Cohere's and SiliconFlow's: documents are one chunk here, so more is rejected"
        " where one is longer than the model takes.",
    )
    overlap_tokens: int | None = Field(
        None, ge=0, description="SiliconFlow's, of chunks: as max_chunks_per_doc."
    )

    def unscored(self, as_asked: Unscored) -> Unscored:
        """as_asked: what this dialect has for a text without a score, where the body asks for an
        end in time. Header and alias may come from an operator, and the caller know neither."""
        return "number" if self.max_time_ms is None else as_asked

    def check_chunks(self, texts: TextsToTokenize, num_cut: int) -> None:
        """InvalidInput if texts that were cut would be scored in chunks elsewhere."""
        if not num_cut:
            return
        bundle = texts.model.bundle
        for name, limit in (("max_chunks_per_doc", 1), ("overlap_tokens", 0)):
            sent = getattr(self, name)
            if sent is not None and sent > limit:
                raise InvalidInput(
                    f"{name} is {sent}, but {num_cut} of {texts.field} are longer than"
                    f" {bundle.ref} takes ({bundle.manifest.limits.max_text_tokens} tokens), so"
                    " they would be truncated, not scored in chunks: shorten them, or leave"
                    f" {name} out",
                    param=name,
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


async def want_vectors(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    dimensions: int | None = None,
    normalize: bool | None = None,
) -> None:
    """A vector for each text. normalize: None: as the model's authors do it."""
    if normalize is None:
        normalize = texts.model.bundle.manifest.normalize
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    ask.outputs, ask.field = (Pooled(normalize=normalize, dimensions=dimensions),), texts.field


async def score_pairs(
    ask: Ask,
    tools: Tools,
    texts: TextsToTokenize,
    function: Function | None,
    options: RerankOptions,
    answer_bytes: int = 0,
) -> Finish:
    """The `Scored` of each pair, for a model that can rerank; None of one that the time
    did not suffice for, or that the first stage of the alias put behind those that it keeps.

    answer_bytes: of what the protocol adds to the scores.
    """
    all_texts, num, alias, max_time_ms = texts, len(texts.texts), ask.alias, options.max_time_ms
    if max_time_ms is None and ask.max_time_s == math.inf:  # no field, no header
        max_time_ms = alias.max_time_ms
    if max_time_ms is not None:
        ask.max_time_s = max_time_ms / 1000
    chosen: Sequence[int] = range(num)
    if alias.first:
        ask.order = await order_by_likeness(alias.first, texts, ask, tools)
        chosen = ask.order[: alias.keep]
        pairs = [texts.texts[index] for index in chosen]
        texts = texts._replace(
            texts=pairs, named=lambda at, part: all_texts.place(chosen[at], part)
        )
    if ask.max_time_s < math.inf:
        texts = tools.texts.in_time(texts, ask)
    compare: Compare = partial(_scores_of_pairs, function)
    output: Output[Any] = Logits()
    if texts.model.bundle.compares_tokens:
        compare = await _read_apart(ask, tools, texts)
        output = TokenVectors(texts.model.bundle.manifest.normalize)
    else:
        ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
    options.check_chunks(texts, len(ask.cut))

    def finish(ask: Ask) -> Iterator[Any]:
        scores: list[classification.Scored | None] = [None] * num
        pair_scores = compare(ask)
        for at, score in pair_scores.items():
            scores[chosen[at]] = score
        if ask.in_time or alias.first:
            ask.scored, ask.num_late = (len(pair_scores), num), len(chosen) - len(pair_scores)
        return iter(scores)

    _want(ask, texts, output, LABEL_BYTES * num + answer_bytes)
    return finish


def _scores_of_pairs(function: Function | None, ask: Ask) -> dict[int, classification.Scored]:
    """Scores that the model itself makes of each pair."""
    logits = ask.value(Logits).joined
    pair_scores = classification.probabilities(logits, function)[:, 0]
    there = range(len(logits)) if ask.there is None else ask.there
    scores = map(classification.Scored, pair_scores, logits[:, 0])
    return dict(zip(there, scores, strict=True))


async def _read_apart(ask: Ask, tools: Tools, texts: TextsToTokenize) -> Compare:
    """Reads pairs for a model that compares tokens: the queries, each once, before the documents.
    Scores are their MaxSim."""
    firsts = dict[str, int]()  # the first pair of each query
    for at, pair in enumerate(texts.texts):
        firsts.setdefault(pair[0], at)
    queries, places = list(firsts), list(firsts.values())
    read_first = texts._replace(
        texts=queries, named=lambda at, _: texts.place(places[at], 0), enough=math.inf
    )
    read_then = texts._replace(
        texts=[pair[1] for pair in texts.texts], named=lambda at, _: texts.place(at, 1)
    )
    query_batch, _ = await tools.texts.tokenize(read_first.of_type("query"), ask)
    document_batch, _ = await tools.texts.tokenize(read_then.of_type("document"), ask)
    sequences = [(query_batch, at) for at in range(len(query_batch))]
    sequences += [(document_batch, at) for at in range(len(document_batch))]
    ask.batch = Batch.joined(sequences)
    ask.padding = Padding(ask.batch.lengths, None)
    numbers = {query: number for number, query in enumerate(queries)}
    return partial(_max_sims, [numbers[pair[0]] for pair in texts.texts], len(queries))


def _max_sims(
    query_of_pair: Sequence[int], num_queries: int, ask: Ask
) -> dict[int, classification.Scored]:
    """The sequences are queries, then the documents of the pairs."""
    manifest = ask.model.bundle.manifest
    rows = ask.value(TokenVectors).rows
    there = range(len(rows)) if ask.there is None else ask.there
    vectors = dict[int, Floats]()
    for index, place in enumerate(there):
        rules = manifest.input_types["query" if place < num_queries else "document"]
        (vectors[place],) = counted(rows[index], ask.batch.sequence(index), rules)
    pairs_of_query = defaultdict[int, list[int]](list)
    for place in there[bisect_left(there, num_queries) :]:
        pairs_of_query[query_of_pair[place - num_queries]].append(place - num_queries)
    scores = dict[int, classification.Scored]()
    for query, pairs in pairs_of_query.items():
        if query in vectors:
            documents = [vectors[num_queries + pair] for pair in pairs]
            sums = max_sims(vectors[query], documents, manifest.mean_max_sim)
            scores |= zip(pairs, map(classification.Scored, sums, sums), strict=True)
    return scores


async def classify(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ClassifyOptions
) -> Finish:
    """The labels of each text or pair, likeliest first."""
    labels = _labels(texts)
    function = options.function_to_apply or texts.model.bundle.manifest.score_function
    ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = ask.value(Logits).joined
        for scores, row in zip(classification.probabilities(logits, function), logits, strict=True):
            yield classification.rank_labels(scores, row, labels, options.top_k)

    _want(ask, texts, Logits(), len(ask.batch) * _label_bytes(labels))
    return finish


async def zero_shot(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ZeroShotOptions
) -> Finish:
    """The candidate labels of each text, likeliest first, by a model that was trained to find
    entailment."""
    bundle = texts.model.bundle
    entailment = classification.entailment_index(bundle.manifest.labels, bundle.ref)
    candidates = options.candidate_labels
    tools.texts.check_pairs(texts, "candidate_labels", len(candidates))
    check_single(texts.field, texts.texts)
    hypotheses = list(classification.hypotheses(candidates, options.hypothesis_template))
    full_texts = map(str, texts.whole(texts.texts))
    pairs = [(text, hypothesis) for text in full_texts for hypothesis in hypotheses]
    place = text_with_label(texts.field, len(candidates))
    pair_texts = texts._replace(texts=pairs, named=place)
    ask.batch, ask.padding = await tools.texts.tokenize(pair_texts, ask)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = ask.value(Logits).joined
        for start in range(0, len(logits), len(candidates)):
            label_logits = logits[start : start + len(candidates)]
            yield classification.zero_shot(
                label_logits, candidates, entailment, options.multi_label
            )

    _want(ask, texts, Logits(), len(texts.texts) * _label_bytes(candidates))
    return finish


async def tag(ask: Ask, tools: Tools, texts: TextsToTokenize, options: TagOptions) -> Finish:
    """The tags or entities of each text, in the order of the text."""
    check_single(texts.field, texts.texts)
    ignored = frozenset(options.ignore_labels)
    if texts.model.bundle.manifest.extraction:
        return await extraction.tag(ask, tools, texts, ignored)
    labels = _labels(texts)
    ask.batch, ask.padding, encodings = await tools.texts.tokenize_with_offsets(texts, ask)
    pieces = Pieces.from_tokenizer(tools.texts.tokenizer(texts).library)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = ask.value(Logits).rows
        for text, encoding, token_logits in zip(texts.texts, encodings, logits, strict=True):
            yield tagging.tag_tokens(
                f"{texts.prompt}{text}",
                encoding,
                classification.probabilities(token_logits, "softmax"),
                labels,
                pieces,
                options.aggregation_strategy,
                ignored,
            )

    full_texts = map(str, texts.whole(texts.texts))
    ends = (max((end for _, end in encoding.offsets), default=0) for encoding in encodings)
    kept_bytes = json_bytes(text[:end] for text, end in zip(full_texts, ends, strict=True))
    _want(ask, texts, Logits(), ENTITY_BYTES * ask.batch.num_tokens + 2 * kept_bytes)
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
    about = texts.field, ask.batch, sent, pieces
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
    _want(ask, texts, LogitsAt(tokens=masks.places), answer_bytes)
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


def _want(ask: Ask, texts: TextsToTokenize, output: Output[Any], answer_bytes: int) -> None:
    ask.outputs, ask.field, ask.answer_bytes = (output,), texts.field, answer_bytes


async def order_by_likeness(
    name: str, pairs: TextsToTokenize, ask: Ask, tools: Tools
) -> Sequence[int]:
    """The indices of pairs of one query and documents, the documents most like the query first.
    Those that the time did not suffice for keep their order, behind the others, as do all if it
    sufficed for none. InvalidInput for several queries.

    It is an ask of its own, of the same caller and deadline. A document is cut to what the first
    model takes.
    """
    tools.texts.tokenizer(pairs)
    queries = {pair[0] for pair in pairs.texts}
    if len(queries) > 1:
        raise InvalidInput(
            f"{pairs.field} have {len(queries)} queries: the alias {ask.alias.ref!r} has a first"
            " stage, which takes one query: send one query per request",
            param=pairs.field,
        )
    first = Ask(ask.id, ask.route, ask.key, ask.started, ask.timeout_s, ask.is_callers)
    first.anew, first.max_time_s = ask.anew, TIME_SHARE * ask.max_time_s
    model, prompt = first.find_model_and_prompt(tools.models, name, None)
    documents = [pair[1] for pair in pairs.texts]
    batches, lengths = list[Batch](), np.empty(0, np.int64)
    ask.check()
    ask.stop = first.leave  # if the caller leaves
    try:
        with tools.answers.gate.admit(first):
            for kind, texts in (("query", list(queries)), ("document", documents)):
                plain = TextsToTokenize.prompted(pairs.field, texts, True, model, prompt)
                to_tokenize = (
                    add_type_prompt(plain, "model", kind, prompt) if prompt is None else plain
                )
                if ask.max_time_s < math.inf:
                    to_tokenize = tools.texts.in_time(to_tokenize, first)
                batch, padding = await tools.texts.tokenize(to_tokenize, first)
                batches, lengths = [*batches, batch], padding.lengths
            query, document_batch = batches
            if not len(query):  # to a table of vectors a text may have no tokens
                return range(len(documents))
            first.batch = Batch.joined(
                [(query, 0), *((document_batch, index) for index in range(len(document_batch)))]
            )
            first.padding = Padding(first.batch.lengths, None)
            first.outputs, first.field = (Pooled.for_comparison(model.bundle),), pairs.field
            first.encode = partial(_likeness, model)
            alike = await tools.answers.answer(first)
    except DeadlineNotMet:
        if not first.in_time:
            raise
        return range(len(documents))
    finally:
        ask.stop = None
        if first.record.statistics:  # nobody reports it
            first.record.statistics.end_request()
    there = range(len(first.batch)) if first.there is None else first.there
    by_likeness = sorted(range(len(alike)), key=lambda place: -alike[place])
    indices = np.flatnonzero(lengths).tolist()  # of documents that have tokens
    best_first = [indices[there[1 + place] - 1] for place in by_likeness]
    return [*best_first, *sorted(set(range(len(documents))) - set(best_first))]


def _likeness(model: Model, ask: Ask) -> Sequence[np.float32]:
    """The likeness of the query to each document that is there. Empty where it is not there."""
    if ask.there and ask.there[0] != 0:
        return ()
    likeness: Sequence[np.float32] = compared(model).shape(ask)
    return likeness
