"""Responses as JSON, in the words of any dialect: one place for all vectors, one for all rankings.
What is added here is in the answers of all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import Scored, best
from addnorm.service.asking.tasks.similarity import similarities
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Pooled
from addnorm.service.wire.codec.negotiation import written
from addnorm.service.wire.codec.payload import Payload, base64_of

Shape = Callable[[Ask], Any]  # outputs -> the answer as JSON has it
# the outputs -> a result for each text, in the order sent; each is made when it is asked for, so
# that not all are held
Finish = Callable[[Ask], Iterator[Any]]


@dataclass(frozen=True)
class JsonAnswer:
    """Encodes a response. times: headers from the seconds of the stages, where the dialect has
    such. words: the answer that has the vectors that `shape` made; None: that is the answer."""

    shape: Shape
    times: Callable[[Ask], Mapping[str, str]] | None = None
    words: Callable[[Ask, Any], Any] | None = None

    def __call__(self, ask: Ask) -> Payload:
        shaped = self.shape(ask)
        whole = self.words(ask, shaped) if self.words else shaped
        return Payload(written(whole, ask.num_bytes), times=self.times)


def pooled(ask: Ask) -> Any:
    return ask.value(Pooled).joined


def in_base64(ask: Ask) -> list[str]:
    return list(map(base64_of, pooled(ask)))


def compared(model: Model) -> JsonAnswer:
    """How alike the first vector is with each of the others, as the model's authors compare."""

    def shape(ask: Ask) -> Any:
        vectors = pooled(ask)
        return similarities(model.bundle.manifest.similarity, vectors[0], vectors[1:])

    return JsonAnswer(shape)


class Ranking(NamedTuple):
    """The texts of one query. entry: of a text, from its index and its score. num_best: None: all.
    in_order: as sent, instead of the best first. nulls: texts without a score are there too, last;
    else they are left out."""

    num_texts: int
    entry: Callable[[int, Any], dict[str, Any]]
    num_best: int | None = None
    in_order: bool = False
    nulls: bool = False

    def entries(
        self, results: list[Scored | None], order: Sequence[int] | None
    ) -> list[dict[str, Any]]:
        """order: of those without a score; None: as sent."""
        scores: list[Any] = [each and each.score for each in results]
        logits: list[Any] = [each and each.logit for each in results]
        chosen: Sequence[int] = range(len(scores))
        if not self.in_order:
            scored = [index for index in chosen if scores[index] is not None]
            ranks = best([logits[index] for index in scored])
            left = [index for index in order or chosen if scores[index] is None]
            chosen = [*(scored[rank] for rank in ranks), *(left if self.nulls else ())]
        return [self.entry(index, scores[index]) for index in chosen[: self.num_best]]


def ranked(finish: Finish, words: Callable[..., Any], *rankings: Ranking) -> JsonAnswer:
    """The scores of `text_tasks.score_pairs`. words: the answer, from the response and the entries
    of each ranking."""

    def shape(ask: Ask) -> Any:
        scores = finish(ask)
        entries = [one.entries(list(islice(scores, one.num_texts)), ask.order) for one in rankings]
        return words(ask, *entries)

    return JsonAnswer(shape)


def usage(ask: Ask) -> dict[str, int]:
    """OpenAI's count of tokens, which others took over."""
    num_tokens = ask.batch.num_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
