"""Logits of names of any labels -> names in a text. Knows no requests.

Source: gliner's SpanDecoder and TokenDecoder, with one label for a span.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from addnorm.service.asking.tasks.classification import probabilities
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.checkpoint import checkpoint

PIECE_SPANS = 4096  # between two checkpoints
Range = tuple[int, int]  # the first character, and one past the last


@dataclass(frozen=True, slots=True)
class Name:
    label: str
    score: np.float32
    start: int  # characters of the text
    end: int
    text: str


class Spans(NamedTuple):
    """Spans of words that may be names, likeliest first `[n]`: their first and last words, their
    likeliest labels, and the scores of these."""

    firsts: Ints
    lasts: Ints
    labels: Ints
    scores: Floats


def names(
    text: str,
    words: Sequence[Range],
    logits: Floats,
    labels: Sequence[str],
    kind: Literal["spans", "tokens"],
    threshold: float,
    flat: bool,
) -> list[Name]:
    """The names in a text, by their first words. logits: `[labels, words, max_width]`, see
    `Extraction`. flat: none overlaps another; else one may lie within another."""
    find = _likely_spans if kind == "spans" else _spans_of_tokens
    spans = find(probabilities(logits, "sigmoid"), threshold)
    chosen = choose(spans.firsts, spans.lasts, len(words), flat)
    chosen.sort(key=lambda place: int(spans.firsts[place]))
    result = []
    for place in chosen:
        (start, _), (_, end) = words[spans.firsts[place]], words[spans.lasts[place]]
        label, score = labels[spans.labels[place]], spans.scores[place]
        result.append(Name(label, score, start, end, text[start:end]))
    return result


def _likely_spans(scores: Floats, threshold: float) -> Spans:
    """scores: `[labels, words, max_width]` of spans by their first word."""
    # equal spans exclude each other, so only the likeliest label of each counts
    labels, best = scores.argmax(0), scores.max(0)
    num_words, max_width = best.shape
    ends = np.arange(num_words)[:, None] + np.arange(max_width)
    firsts, widths = np.nonzero((best > threshold) & (ends < num_words))
    return _sorted(firsts, firsts + widths, labels[firsts, widths], best[firsts, widths])


def _spans_of_tokens(scores: Floats, threshold: float) -> Spans:
    """scores: `[labels, words, 3]`: a name begins at a word, ends there, has it within."""
    num_words = scores.shape[1]
    best = np.full((num_words, num_words), -1, np.float32)  # of a span by first and last word
    labels = np.zeros(best.shape, np.int64)
    for label, (begins, ends, within) in enumerate(scores.transpose(0, 2, 1)):
        is_end = ends > threshold
        outside = np.append(np.flatnonzero(within < threshold), num_words)
        for first in np.flatnonzero(begins > threshold).tolist():
            after = int(outside[np.searchsorted(outside, first)])  # the first word not within
            lowest = np.minimum(np.minimum.accumulate(within[first:after]), begins[first])
            lowest = np.where(is_end[first:after], np.minimum(lowest, ends[first:after]), -1)
            is_better = lowest > best[first, first:after]
            best[first, first:after][is_better] = lowest[is_better]
            labels[first, first:after][is_better] = label
        checkpoint()
    firsts, lasts = np.nonzero(best >= 0)
    return _sorted(firsts, lasts, labels[firsts, lasts], best[firsts, lasts])


def _sorted(firsts: Ints, lasts: Ints, labels: Ints, scores: Floats) -> Spans:
    """Equal scores in gliner's order."""
    order = np.lexsort((lasts, labels, firsts, -scores))
    return Spans(firsts[order], lasts[order], labels[order], scores[order])


def choose(firsts: Ints, lasts: Ints, num_words: int, flat: bool) -> list[int]:
    """The places of spans that are chosen, one after the other, unless they overlap one that was
    chosen before. flat: else they may lie within it, or around it."""
    chosen = list[int]()
    overlaps = _overlaps_any(num_words) if flat else _crosses_any(num_words)
    for place, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        if not overlaps(first, last):
            chosen.append(place)
        if place % PIECE_SPANS == 0:
            checkpoint()
    return chosen


def _overlaps_any(num_words: int) -> Callable[[int, int], bool]:
    """Of one span after the other: whether it has a word of one for which this was false."""
    is_taken = np.zeros(num_words, bool)

    def overlaps(first: int, last: int) -> bool:
        words = is_taken[first : last + 1]
        if words.any():
            return True
        words[:] = True
        return False

    return overlaps


def _crosses_any(num_words: int) -> Callable[[int, int], bool]:
    """The same, of spans of which neither lies within the other."""
    # for each word the span furthest to the right that begins there, and furthest to the left that
    # ends there, of those that were chosen
    furthest: NDArray[np.int64] = np.arange(num_words) - 1
    earliest: NDArray[np.int64] = np.arange(num_words) + 1
    taken = set[tuple[int, int]]()

    def crosses(first: int, last: int) -> bool:
        # begins before, ends within; begins within, ends behind
        from_left = earliest[first:last] < first
        to_right = furthest[first + 1 : last + 1] > last
        if (first, last) in taken or from_left.any() or to_right.any():
            return True
        taken.add((first, last))
        furthest[first] = max(furthest[first], last)
        earliest[last] = min(earliest[last], first)
        return False

    return crosses
