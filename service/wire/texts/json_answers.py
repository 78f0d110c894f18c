"""Responses as JSON, in the words of any dialect: one place for all vectors, one for all rankings.
What is added here is in the answers of all of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import Scored, Span, best
from addnorm.service.asking.tasks.similarity import similarities
from addnorm.service.engine.outputs import Pooled, PooledSpans, PooledWindows
from addnorm.service.wire.codec.negotiation import written
from addnorm.service.wire.codec.payload import Payload, base64_of

Shape = Callable[[Ask], Any]  # outputs -> the answer as JSON has it
Words = Callable[[Ask, Any], Any]  # the answer that has the vectors of a `Shape`
# the outputs -> a result for each text, in the order sent; each is made when it is asked for, so
# that not all are held
Finish = Callable[[Ask], Iterator[Any]]


@dataclass(frozen=True)
class JsonAnswer:
    """Encodes a response. times: headers from the seconds of the stages, where the dialect has
    such. words: None: what `shape` makes is the answer."""

    shape: Shape
    times: Callable[[Ask], Mapping[str, str]] | None = None
    words: Words | None = None

    def __call__(self, ask: Ask) -> Payload:
        vectors = self.shape(ask)
        body = self.words(ask, vectors) if self.words else vectors
        return Payload(written(body, ask.num_bytes), times=self.times)


def pooled(ask: Ask) -> Any:
    if PooledSpans in ask.values:
        return ask.value(PooledSpans).joined
    if PooledWindows in ask.values:
        return ask.value(PooledWindows).joined
    return ask.value(Pooled).joined


def in_base64(ask: Ask) -> list[str]:
    return list(map(base64_of, pooled(ask)))


def likeness(ask: Ask) -> Any:
    """The likeness of the first vector to each of the others, as the model's authors compare."""
    vectors = pooled(ask)
    return similarities(ask.model.bundle.manifest.similarity, vectors[0], vectors[1:])


# What an answer has for a text without a score. "number": one below all scores, which every client
# of another's API can sort and compare. The others are for requests that asked in a way of ours.
Unscored = Literal["number", "null", "nothing"]


class Ranking(NamedTuple):
    """The texts of one query. entry: of a text, from its index and its score. num_best: None: all.
    in_order: as sent, instead of the best first, then those without a score."""

    num_texts: int
    entry: Callable[[int, Any], dict[str, Any]]
    num_best: int | None = None
    in_order: bool = False
    unscored: Unscored = "number"

    def entries(
        self, pairs: list[Scored | None], order: Sequence[int] | None
    ) -> list[dict[str, Any]]:
        """pairs: of each text, None without a score. order: of those without; None: as sent."""
        scores: list[Any] = [pair and pair.score for pair in pairs]
        logits: list[Any] = [pair and pair.logit for pair in pairs]
        chosen: Sequence[int] = range(len(scores))
        scored = [index for index in chosen if scores[index] is not None]
        without_score = [index for index in order or chosen if scores[index] is None]
        if not self.in_order:
            ranks = best([logits[index] for index in scored])
            chosen = [
                *(scored[rank] for rank in ranks),
                *(() if self.unscored == "nothing" else without_score),
            ]
        if without_score and self.unscored == "number":
            numbers = numbers_below((scores[index] for index in scored), len(without_score))
            for index, number in zip(without_score, numbers, strict=True):
                scores[index] = number
        return [
            self.entry(index, scores[index]) | span_fields((pair := pairs[index]) and pair.span)
            for index in chosen[: self.num_best]
        ]


def span_fields(span: Span | None) -> dict[str, int]:
    """The characters of the window that decided, where a text was read in several."""
    return dict(zip(("start", "end"), span, strict=True)) if span else {}


def numbers_below(scores: Iterable[Any], num: int) -> list[float]:
    """So many numbers below 0 and below all scores, each lower than the one before: who sorts by
    them has the order of the answer, and no probability is negative. Those of float32 stay below,
    however far from 0 the scores are."""
    lowest = min([0.0, *map(float, scores)])
    step = max(1.0, -lowest / 2**16)
    return [lowest - step * (1 + at / num) for at in range(num)]


def ranked(finish: Finish, words: Callable[..., Any], *rankings: Ranking) -> JsonAnswer:
    """Scores as rankings. words: the answer, from the response and the entries of each ranking."""

    def shape(ask: Ask) -> Any:
        scores, entries, start = finish(ask), list[list[dict[str, Any]]](), 0
        for ranking in rankings:
            places, order = range(start, start + ranking.num_texts), ask.order
            if order is not None:
                order = [index - start for index in order if index in places]
            entries.append(ranking.entries(list(islice(scores, ranking.num_texts)), order))
            start = places.stop
        return words(ask, *entries)

    return JsonAnswer(shape)


def usage(ask: Ask) -> dict[str, int]:
    """OpenAI's count of tokens, which others took over."""
    num_tokens = ask.batch.num_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
