"""Logits of names of any labels -> names in a text. Knows no requests.

Source: gliner's SpanDecoder and TokenDecoder, with one label for a span.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from addnorm.service.arithmetic import exp
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
    spans = find(_sigmoid(logits), threshold)
    chosen = choose(spans.firsts, spans.lasts, len(words), flat)
    chosen.sort(key=lambda place: int(spans.firsts[place]))
    result = []
    for place in chosen:
        (start, _), (_, end) = words[spans.firsts[place]], words[spans.lasts[place]]
        label, score = labels[spans.labels[place]], spans.scores[place]
        result.append(Name(label, score, start, end, text[start:end]))
    return result


def _sigmoid(logits: Floats) -> Floats:
    """Computes in float32, as gliner does: of equal scores, as 1 often is, the first one counts."""
    small = exp(-np.abs(logits))
    scores: Floats = np.where(logits < 0, small, np.float32(1)) / (1 + small)
    return scores


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
    """The places of distinct spans that are chosen, one after the other, unless they overlap one
    that was chosen before. flat: else they may lie within it, or around it."""
    chosen, is_taken = list[int](), np.zeros(num_words, bool)
    # of chosen spans: for each word the last word of those that begin there, and the first word of
    # those that end there
    furthest, earliest = np.arange(num_words), np.arange(num_words)
    for place, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        if place % PIECE_SPANS == 0:
            checkpoint()
        if flat:
            overlaps = is_taken[first : last + 1].any()
        else:
            from_left = earliest[first:last] < first
            overlaps = from_left.any() or (furthest[first + 1 : last + 1] > last).any()
        if not overlaps:
            chosen.append(place)
            is_taken[first : last + 1] = True
            furthest[first] = max(furthest[first], last)
            earliest[last] = min(earliest[last], first)
    return chosen
