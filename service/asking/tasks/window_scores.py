"""Scores of the windows of one text -> the scores of the text. Knows no requests."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from addnorm.service.arithmetic import weighted_mean
from addnorm.service.asking.tasks.classification import AnyFloats, Span
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.engine.windows import Window
from addnorm.service.errors import InvalidInput


class Joining(NamedTuple):
    """The way from windows' scores to a text's. `label`: the index of the one that decides; None:
    each label by itself. Not with `is_mean`, which is the mean of all windows."""

    is_mean: bool = False
    label: int | None = None

    @classmethod
    def of_labels(
        cls, rule: WindowRule, labels: Sequence[str], are_independent: bool, subject: str
    ) -> "Joining":
        """The joining that a rule means for these labels. are_independent: several may be true.
        subject: whose labels they are. InvalidInput for a label that is not among them, and for a
        largest score if no label decides."""
        if rule.label is not None and rule.label not in labels:
            raise InvalidInput(
                f"windows.label is {rule.label[:60]!r}: {subject} has"
                f" {', '.join(map(repr, labels))}"[:600],
                param="windows.label",
            )
        if rule.take == "mean":
            return cls(is_mean=True)
        if rule.label is not None:
            return cls(label=labels.index(rule.label))
        if are_independent or len(labels) <= 2:
            return cls(label=None if are_independent else len(labels) - 1)
        if rule.take == "max":
            raise InvalidInput(
                f"windows.take is 'max', but {subject} has {len(labels)} labels and none decides:"
                ' name it in windows.label, or send "mean"',
                param="windows.take",
            )
        return cls(is_mean=True)


class TextScores(NamedTuple):
    """Scores of one text. logits: to sort by. spans: of the window that decided each label; None:
    no single one did, or the text is one window."""

    scores: Floats  # [labels]
    logits: AnyFloats  # [labels]
    spans: Sequence[Span | None] | None = None


def join(
    scores: Floats,
    logits: AnyFloats,
    chances: Floats,
    windows: Sequence[Window],
    joining: Joining,
) -> TextScores:
    """Scores and logits of each window `[windows, labels]` -> those of the text.

    chances: `[windows, labels]`, which decide: probabilities, also where the scores are none.
    windows: of a text that is not split there may be none.
    """
    if len(scores) == 1:
        return TextScores(scores[0], logits[0])
    if joining.is_mean:
        weights = np.array([window.weight for window in windows])
        mean = weighted_mean(scores, weights)
        return TextScores(mean, mean)
    spans = [window.span for window in windows]
    if joining.label is not None:
        window = _highest(chances[:, joining.label], logits[:, joining.label])
        return TextScores(scores[window], logits[window], [spans[window]] * scores.shape[1])
    columns = range(scores.shape[1])
    deciding = [_highest(chances[:, label], logits[:, label]) for label in columns]
    return TextScores(
        scores[deciding, columns], logits[deciding, columns], [spans[window] for window in deciding]
    )


def beside(parts: Sequence[TextScores]) -> TextScores:
    """Scores of some labels of one text each, side by side."""
    scores, logits = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    spans = [span for part in parts for span in part.spans or [None] * len(part.scores)]
    return TextScores(scores, logits, spans)


def _highest(chances: Floats, logits: AnyFloats) -> int:
    """The first of the highest. Of many chances that are 1 to float32, by the logits."""
    pairs = list(zip(chances.tolist(), logits.tolist(), strict=True))
    return max(range(len(pairs)), key=pairs.__getitem__)
