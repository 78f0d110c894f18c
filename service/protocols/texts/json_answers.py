"""Responses as JSON, in the words of any dialect: one place for all vectors, one for all rankings.
What is added here is in the answers of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from addnorm.service.engine.outputs import Pooled
from addnorm.service.asking.request import InferenceRequest, InferenceResponse
from addnorm.service.models.model import Model
from addnorm.service.protocols.codec.negotiation import written
from addnorm.service.protocols.codec.payload import Payload, base64_of
from addnorm.service.protocols.texts.text_tasks import TextTask
from addnorm.service.tasks.classification import best
from addnorm.service.tasks.similarity import similarities

Shape = Callable[[InferenceResponse], Any]  # outputs -> the answer as JSON has it


@dataclass(frozen=True)
class JsonAnswer:
    """Encodes a response. times: headers from the seconds of the stages, where the dialect has
    such."""

    shape: Shape
    times: Callable[[InferenceRequest, Mapping[str, float]], Mapping[str, str]] | None = None

    def __call__(self, response: InferenceResponse) -> Payload:
        parts = written(self.shape(response), response.num_bytes)
        return Payload(parts, times=self.times and partial(self.times, response.request))


def pooled(response: InferenceResponse) -> Any:
    return response.value(Pooled).joined


def in_base64(response: InferenceResponse) -> list[str]:
    return list(map(base64_of, pooled(response)))


def embedded(words: Callable[[InferenceResponse, Any], Any], vectors: Shape = pooled) -> JsonAnswer:
    """A vector for each sequence. words: the answer that has them."""
    return JsonAnswer(lambda response: words(response, vectors(response)))


def compared(model: Model) -> JsonAnswer:
    """How alike the first vector is with each of the others, as the model's authors compare."""

    def shape(response: InferenceResponse) -> Any:
        vectors = pooled(response)
        return similarities(model.bundle.manifest.similarity, vectors[0], vectors[1:])

    return JsonAnswer(shape)


class Ranking(NamedTuple):
    """The texts of one query. entry: of a text, from its index and its score. num_best: None: all.
    in_order: as sent, instead of the best first."""

    num_texts: int
    entry: Callable[[int, Any], dict[str, Any]]
    num_best: int | None = None
    in_order: bool = False

    def entries(self, scores: list[Any]) -> list[dict[str, Any]]:
        order = range(len(scores)) if self.in_order else best(scores, self.num_best)
        return [self.entry(index, scores[index]) for index in order]


def ranked(task: TextTask, words: Callable[..., Any], *rankings: Ranking) -> JsonAnswer:
    """The scores of `text_tasks.score_pairs`. words: the answer, from the response and the entries
    of each ranking."""

    def shape(response: InferenceResponse) -> Any:
        scores = task.finish(response)
        entries = [one.entries(list(islice(scores, one.num_texts))) for one in rankings]
        return words(response, *entries)

    return JsonAnswer(shape)


def usage(response: InferenceResponse) -> dict[str, int]:
    """OpenAI's count of tokens, which others took over."""
    num_tokens = response.request.batch.num_tokens
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
