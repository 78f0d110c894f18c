"""The road from pairs of texts to rankings, whatever the protocol. A cascade's first stage, which
says what a reranker scores, is an ask of its own.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import classification
from addnorm.service.asking.tasks.classification import Function
from addnorm.service.asking.tasks.max_sim import max_sims
from addnorm.service.engine.batch import Batch, Floats, Padding
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.engine.outputs import Logits, Output, Pooled, TokenVectors
from addnorm.service.engine.outputs.per_token import counted
from addnorm.service.errors import DeadlineNotMet, InvalidInput
from addnorm.service.wire.codec.validation import agreed
from addnorm.service.wire.texts.json_answers import JsonAnswer, Ranking, Unscored, likeness, ranked
from addnorm.service.wire.texts.sequences import to_tokenize
from addnorm.service.wire.texts.text_tasks import LABEL_BYTES
from addnorm.service.wire.texts.texts import TextsToTokenize, WindowOptions, Wish, check_rule
from addnorm.service.wire.tools import Tools

TIME_SHARE = 0.5  # of the time of an ask that ends in time
# of the sequences that are there: pairs, or windows of pairs
Compare = Callable[[Ask], dict[int, classification.Scored]]


class RerankOptions(WindowOptions):
    max_time_ms: int | None = Field(
        None,
        gt=0,
        description="The answer has what is scored after so many milliseconds. By default as the"
        " header `x-max-time-ms` or the alias says, else there is no such limit.",
    )

    max_chunks_per_doc: int | None = Field(
        None,
        ge=0,
        description="Cohere's and SiliconFlow's: a document that is longer than the model takes is"
        " read in up to so many windows, and the rest is cut.",
    )
    overlap_tokens: int | None = Field(
        None, ge=0, lt=2**31, description="SiliconFlow's: the overlap of windows."
    )

    def window_rule(self) -> WindowRule | None:
        others = {
            "max_chunks_per_doc": self.max_chunks_per_doc,
            "overlap_tokens": self.overlap_tokens,
        }
        for name, value in others.items():
            if value is not None and self.windows:
                raise InvalidInput(f"windows and {name} are both set: send one of them", param=name)
        check_rule(self.windows, "max", "a document has the score of its best window")
        if self.overlap_tokens or (self.max_chunks_per_doc or 0) > 1:
            return WindowRule(overlap=self.overlap_tokens)
        return self.windows

    @property
    def overlap_field(self) -> str:
        return "windows.overlap" if self.overlap_tokens is None else "overlap_tokens"

    def unscored(self, as_asked: Unscored) -> Unscored:
        """as_asked: what this dialect has for a text without a score, where the body asks for an
        end in time. Header and alias may come from an operator, and the caller know neither."""
        return "number" if self.max_time_ms is None else as_asked


class BestOptions(RerankOptions):
    top_n: int | None = Field(
        None, ge=0, description="Only the best so many; all by default, and for 0."
    )
    top_k: int | None = Field(None, ge=0, description="`top_n`, as Voyage and others call it.")
    raw_scores: bool = Field(
        False, description="Whether scores are the model's own numbers, instead of 0 to 1."
    )

    @property
    def num_best(self) -> int | None:
        """InvalidInput if the two differ."""
        return agreed(top_n=self.top_n, top_k=self.top_k) or None

    @property
    def function(self) -> Function:
        return "none" if self.raw_scores else "sigmoid"


async def pairs(
    wish: Wish,
    options: RerankOptions,
    function: Function,
    ask: Ask,
    tools: Tools,
    words: Callable[..., Any],
    *rankings: Ranking,
    answer_bytes: int = 0,
) -> JsonAnswer:
    """The rankings of the wish's pairs by a model that can rerank. Without a score are those that
    the time did not suffice for, and those that the first stage of the alias put behind the ones
    that it keeps. InvalidInput names the field.

    words: the answer, from the response and the entries of each ranking. answer_bytes: of what the
    dialect adds to the scores.
    """
    wish = replace(wish, task="rerank", takes_prompt=False)
    texts = tools.texts.in_windows(to_tokenize(wish, ask, tools), options.window_rule(), ask)
    texts = texts._replace(
        split_part=1,
        most_windows=options.max_chunks_per_doc or None,
        overlap_field=options.overlap_field,
    )
    all_texts, num, alias, max_time_ms = texts, len(texts.texts), ask.alias, options.max_time_ms
    if max_time_ms is None and ask.max_time_s == math.inf:  # no field, no header
        max_time_ms = alias.max_time_ms
    if max_time_ms is not None:
        ask.max_time_s = max_time_ms / 1000
    chosen: Sequence[int] = range(num)
    if alias.first:
        ask.order = await order_by_likeness(alias.first, texts, ask, tools)
        chosen = ask.order[: alias.keep]
        texts = texts._replace(
            texts=[texts.texts[index] for index in chosen],
            named=lambda at, part: all_texts.place(chosen[at], part),
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

    def finish(ask: Ask) -> Iterator[Any]:
        scores: list[classification.Scored | None] = [None] * num
        pair_scores = _of_best_windows(ask, compare(ask))
        if ask.in_time and not pair_scores:
            raise tools.answers.gate.too_late(ask, "of no document all would be there")
        for at, score in pair_scores.items():
            scores[chosen[at]] = score
        if ask.in_time or alias.first:
            ask.scored, ask.num_late = (len(pair_scores), num), len(chosen) - len(pair_scores)
        return iter(scores)

    ask.outputs, ask.answer_bytes = (output,), LABEL_BYTES * num + answer_bytes
    return ranked(finish, words, *rankings)


def _of_best_windows(
    ask: Ask, scores: dict[int, classification.Scored]
) -> dict[int, classification.Scored]:
    """Scores of windows -> that of each pair's best one. A pair has none unless all are there."""
    if ask.windows is None:
        return scores
    pair_scores, ask.num_windows = dict[int, classification.Scored](), 0
    for pair, places in enumerate(ask.windows.of_texts()):
        candidates = [window for window in range(places.start, places.stop) if window in scores]
        if len(candidates) < places.stop - places.start:
            continue
        best, span = max(candidates, key=lambda window: scores[window].logit), None
        if len(candidates) > 1:
            ask.num_windows += len(candidates)
            span = ask.windows.windows[best].span
        pair_scores[pair] = scores[best]._replace(span=span)
    return pair_scores


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
        texts=queries,
        named=lambda at, _: texts.place(places[at], 0),
        enough=math.inf,
        windows=None,
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
    query_of_pair = [numbers[pair[0]] for pair in texts.texts]
    if ask.windows:
        query_of_pair = np.repeat(
            query_of_pair[: len(ask.windows.counts)], ask.windows.counts
        ).tolist()
    return partial(_max_sims, query_of_pair, len(queries))


def _max_sims(
    query_of_pair: Sequence[int], num_queries: int, ask: Ask
) -> dict[int, classification.Scored]:
    """The sequences are queries, then the documents of the pairs, or their windows."""
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
            f"{pairs.wish.field} have {len(queries)} queries: the alias {ask.alias.ref!r} has a"
            " first stage, which takes one query: send one query per request",
            param=pairs.wish.field,
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
                input_type = ("model", kind) if prompt is None else None
                wish = Wish(
                    field=pairs.wish.field, texts=texts, truncate=True, input_type=input_type
                )
                first_texts = TextsToTokenize.of(wish, model, prompt)
                if ask.max_time_s < math.inf:
                    first_texts = tools.texts.in_time(first_texts, first)
                batch, padding = await tools.texts.tokenize(first_texts, first)
                batches, lengths = [*batches, batch], padding.lengths
            query, document_batch = batches
            if not len(query):  # to a table of vectors a text may have no tokens
                return range(len(documents))
            first.batch = Batch.joined(
                [(query, 0), *((document_batch, index) for index in range(len(document_batch)))]
            )
            first.padding = Padding(first.batch.lengths, None)
            first.outputs, first.field = (Pooled.for_comparison(model.bundle),), pairs.wish.field
            first.encode = _likeness
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


def _likeness(ask: Ask) -> Sequence[np.float32]:
    """The likeness of the query to each document that is there. Empty where it is not there."""
    if ask.there and ask.there[0] != 0:
        return ()
    numbers: Sequence[np.float32] = likeness(ask)
    return numbers
