"""Logits of sequences -> probabilities, sorted labels, zero-shot labels. Knows no requests.

Source: transformers' TextClassificationPipeline and ZeroShotClassificationPipeline.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from addnorm.service.arithmetic import exp, row_sums
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.manifest import ENTAILMENT
from addnorm.service.errors import InvalidInput

Span = tuple[int, int]  # first character, and one past the last
AnyFloats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Function = Literal["softmax", "sigmoid", "none"]
TEMPLATE = "This example is {}."  # a hypothesis
PLACE = "{}"  # of the label in it


@dataclass(frozen=True, slots=True)
class Labelled:
    label: str
    score: np.float32


@dataclass(frozen=True, slots=True)
class LabelledPart(Labelled):
    """start, end: characters of the part of the text that has the label with this score."""

    start: int
    end: int


def label_names(labels: Sequence[str] | None, width: int) -> tuple[str, ...]:
    """width: number of labels. Without names they are called as transformers calls them."""
    return tuple(labels) if labels else tuple(f"LABEL_{index}" for index in range(width))


def probabilities(logits: Floats, function: Function | None = None) -> Floats:
    """Logits `[n, labels]` -> scores `[n, labels]`. A row's bits do not depend on the others.

    function: by default sigmoid for one label, else softmax.
    """
    function = function or ("sigmoid" if logits.shape[1] == 1 else "softmax")
    if function == "none":
        return logits
    values = logits.astype(np.float64)  # which no float32 overflows by itself
    if function == "sigmoid":
        small = exp(-np.abs(values))
        scores: Floats = (np.where(values < 0, small, 1) / (1 + small)).astype(np.float32)
        return scores
    values = exp(values - values.max(1, keepdims=True))
    return (values / row_sums(values)).astype(np.float32)


class Scored(NamedTuple):
    """The score of a pair, and the logit that it was made of. Sort by the logit: above 16.6 all
    sigmoids are 1 in float32. span: of the document's part that has it; None: all of it."""

    score: np.float32
    logit: np.float32
    span: Span | None = None


def rank_labels(
    scores: Floats,
    logits: AnyFloats,
    labels: Sequence[str],
    top_k: int | None = None,
    spans: Sequence[Span | None] | None = None,
) -> list[Labelled]:
    """Scores `[labels]` of one text, highest first; equal ones in the order of the labels.

    logits: `[labels]`, that the scores were made of. top_k: how many; all if None or if there are
    fewer. spans: of each label, the characters that have the score; None: all of them.
    """
    ranked = list[Labelled]()
    for index in best(logits, top_k):
        entry = labels[index], scores[index]
        span = spans and spans[index]
        ranked.append(LabelledPart(*entry, *span) if span else Labelled(*entry))
    return ranked


def best(logits: Sequence[np.float32] | AnyFloats, top_k: int | None = None) -> list[int]:
    """Indices of the logits, highest first; equal ones in their order. top_k: see `rank_labels`.
    Not of scores, many of which are 0 or 1 to float32."""
    order: list[int] = np.argsort(-np.array(logits), kind="stable")[:top_k].tolist()
    return order


def entailment_index(labels: Sequence[str] | None, model: str = "the model") -> int:
    """InvalidInput if no label's name says entailment: the model cannot do zero-shot."""
    for index, label in enumerate(labels or ()):
        if label.lower().startswith(ENTAILMENT):
            return index
    label_list = f"its labels are {', '.join(map(repr, labels))}" if labels else "it has none"
    raise InvalidInput(
        f"{model} cannot do zero-shot classification: it needs a label that begins with"
        f" {ENTAILMENT!r}, but {label_list}",
        param="model",
    )


def hypotheses(candidates: Sequence[str], template: str = TEMPLATE) -> Iterator[str]:
    """The template with each candidate label. InvalidInput unless it has one place for it."""
    if template.count(PLACE) != 1 or set("{}") & set(template.replace(PLACE, "")):
        raise InvalidInput(
            f"hypothesis_template is {template[:60]!r}: it must have {PLACE} once, at the place"
            " of the label, and no other braces",
            param="hypothesis_template",
        )
    return (template.replace(PLACE, label) for label in candidates)


def zero_shot(
    logits: Floats, entailment: int, multi_label: bool = False
) -> tuple[Floats, AnyFloats]:
    """Logits `[candidates, labels]` of (text, hypothesis) pairs -> scores of the candidates, and
    numbers to sort them by, `[candidates]`.

    entailment: the index of its label. multi_label: each candidate by itself, entailment against
    contradiction, instead of all against each other. One candidate is always by itself.
    """
    if multi_label or len(logits) == 1:
        contradiction = -1 if entailment == 0 else 0  # as transformers guesses it
        scores = probabilities(logits[:, [contradiction, entailment]], "softmax")[:, 1]
        against = logits[:, contradiction].astype(np.float64)
        return scores, logits[:, entailment] - against
    scores = probabilities(logits[None, :, entailment], "softmax")[0]
    return scores, logits[:, entailment]
