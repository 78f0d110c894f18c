"""Names of any labels in texts, whatever the protocol: texts and labels -> sequences, and their
logits -> the names in each text.

The labels stand before each text, so they influence each other's scores, as their author has it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.name_spans import Name, Range, names
from addnorm.service.asking.tasks.tagging import Entity, join_overlapping
from addnorm.service.engine.batch import Batch, Ints, Padding, offsets_of
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.outputs.name_logits import NO_TOKEN, NameLogits, Places
from addnorm.service.engine.tokenizer import PROBE, Text
from addnorm.service.engine.windows import Windows, overlap_in
from addnorm.service.errors import InvalidInput, TooManyWindows
from addnorm.service.wire.texts.json_answers import Finish
from addnorm.service.wire.texts.texts import (
    TextsToTokenize,
    WindowOptions,
    check_rule,
    check_single,
    check_size,
    json_bytes,
)
from addnorm.service.wire.tools import Tools

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")  # gliner's WhitespaceTokenSplitter
NAME_BYTES = 100  # of a name as JSON, about, beside its text and its label
Label = Annotated[str, Field(min_length=1, max_length=1000)]
LabelsToFind = Annotated[list[Label], Field(fail_fast=True)]


class ExtractOptions(WindowOptions):
    labels: LabelsToFind | None = Field(
        None,
        min_length=1,
        description="Kinds of names, in words, such as `person`. They are put before each text, so"
        " the scores depend on all of them and on their order. By default the model's own.",
    )
    threshold: float = Field(
        0.5, ge=0, lt=1, description="Only names with a higher score are in the answer."
    )
    flat: bool = Field(
        True, description="Whether no two names overlap; else one may lie within another."
    )


@dataclass(frozen=True)
class Row:
    """One text, or a window of it, behind the labels: its token ids, none if it has no words; its
    words; where both stand."""

    ids: Ints
    words: Sequence[Range]
    places: Places

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Words:
    """The words of a text, with their token ids; of each token the word that it belongs to."""

    ranges: Sequence[Range]
    ids: Ints
    word_of_token: Ints

    def __len__(self) -> int:
        return len(self.ids)


async def extract(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ExtractOptions
) -> Finish:
    """The names in each text, in its order. No text is truncated."""
    check_rule(options.windows, None, "each name is found where it stands")
    texts = tools.texts.in_windows(texts, options.windows, ask, cuts_hide=True)
    return await _extract(ask, tools, texts, options)


async def _extract(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ExtractOptions
) -> Finish:
    bundle, wish = texts.model.bundle, replace(texts.wish, can_cut=False)
    texts = texts._replace(wish=wish, truncate=False)
    check_single(texts.wish.field, texts.texts)
    rules = bundle.manifest.extraction
    labels = list(dict.fromkeys(options.labels or bundle.manifest.labels or ()))
    if rules is None or not labels:
        raise InvalidInput(
            f"labels is missing, and {bundle.ref} has none by default: send labels to /v1/extract,"
            " or export it with --labels FILE",
            param="labels",
        )
    tools.texts.tokenizer(texts)
    reader = Reader(texts, labels, tools.texts.settings.max_windows)
    ask.batch, ask.padding, rows, counts = await tools.texts.tokenize_with(
        texts, reader.read, ask, reader.join
    )
    if texts.windows:
        ask.windows = Windows((), counts)
        ask.num_windows = ask.windows.num_split

    def finish(ask: Ask) -> Iterator[Any]:
        windows, logits = iter(rows), iter(ask.value(NameLogits).rows)
        choice = labels, rules.kind, options.threshold, options.flat
        for text, count in zip(texts.texts, counts, strict=True):
            yield join_names(
                [
                    names(str(text), row.words, next(logits), *choice) if row.words else []
                    for row in islice(windows, count)
                ],
                options.flat,
            )
            checkpoint()

    ask.outputs = (NameLogits([row.places for row in rows if row.words]),)
    num_words = sum(len(row.words) for row in rows)
    ask.answer_bytes = NAME_BYTES * num_words + 2 * json_bytes(map(str, texts.texts))
    return finish


async def tag(
    ask: Ask, tools: Tools, texts: TextsToTokenize, ignored_labels: frozenset[str]
) -> Finish:
    """Names of the model's own labels, as a tagger's entities."""
    find = await _extract(ask, tools, texts, ExtractOptions())

    def finish(ask: Ask) -> Iterator[Any]:
        for names_of_text in find(ask):
            yield [
                Entity(name.label, name.score, name.text, name.start, name.end)
                for name in names_of_text
                if name.label not in ignored_labels
            ]

    return finish


class Reader:
    """Reads texts behind labels."""

    def __init__(self, texts: TextsToTokenize, labels: Sequence[str], max_windows: int) -> None:
        """max_windows: of a text. InvalidInput for a label without tokens, or with the token that
        stands before labels, and if there are too many."""
        manifest, tokenizer = texts.model.bundle.manifest, texts.model.tokenizer
        assert manifest.extraction
        assert tokenizer
        self._rules = rules = manifest.extraction
        self._texts, self._library, self._max_windows = texts, tokenizer.library, max_windows
        self._limit = manifest.limits.max_text_tokens
        check_size("labels", sum(map(len, labels)), "characters", tokenizer.max_characters)
        words = [word for label in labels for word in (rules.label_token, label)]
        encoding = self._library.encode(
            [*words, rules.text_token], is_pretokenized=True, add_special_tokens=False
        )
        words_with_tokens = {*encoding.word_ids}
        for index, label in enumerate(labels):
            if 2 * index + 1 not in words_with_tokens or rules.label_token in label:
                reason = f"it has no tokens, or {rules.label_token}, which stands before labels"
                raise InvalidInput(f"labels[{index}] is {label[:60]!r}: {reason}", param="labels")
        probe = self._library.encode([PROBE], is_pretokenized=True)
        of_text = [place for place, part in enumerate(probe.sequence_ids) if part is not None]
        first_ids, last_ids = probe.ids[: of_text[0]], probe.ids[of_text[-1] + 1 :]
        self._before = np.array([*first_ids, *encoding.ids], np.int64)
        self._labels = np.flatnonzero(self._before == rules.label_id) + rules.label_offset
        self._after = np.array(last_ids, np.int64)
        check_size("labels", len(self._before), "tokens", self._limit - 2, "send fewer")

    def read(self, texts: Sequence[Text]) -> list[Words]:
        ranges = [[match.span() for match in WORD.finditer(str(text))] for text in texts]
        words = [WORD.findall(str(text)) for text in texts]
        encodings = self._library.encode_batch(
            words, is_pretokenized=True, add_special_tokens=False
        )
        return [
            Words(spans, *(np.array(part, np.int64) for part in (encoding.ids, encoding.word_ids)))
            for spans, encoding in zip(ranges, encodings, strict=True)
        ]

    def join(self, texts: list[Words]) -> tuple[Batch, Padding, list[Row], list[int]]:
        """The rows of all texts, and their number of each. InvalidInput for a text that is too
        long, and for a word."""
        rows, counts = list[Row](), list[int]()
        for index, words in enumerate(texts):
            parts = self._windows(index, words)
            rows += [self._row(words, start, stop) for start, stop in parts]
            counts.append(len(parts))
            checkpoint()
        lengths, ids = np.array(list(map(len, rows))), np.concatenate([row.ids for row in rows])
        batch = Batch(ids, offsets_of(lengths[lengths > 0]), None)
        return batch, Padding(lengths, None), rows, counts

    def _windows(self, index: int, words: Words) -> list[Range]:
        """The first word of each window, and one past its last."""
        texts, max_words = self._texts, self._rules.max_words
        num_words, num_around = len(words.ranges), len(self._before) + len(self._after)
        room = self._limit - num_around
        if num_words <= max_words and len(words) <= room:
            return [(0, num_words)]
        place, ref = texts.place(index), texts.model.bundle.ref
        if not texts.windows:
            size = num_words, "words", max_words
            if num_words <= max_words:
                size = len(words) + num_around, "tokens with labels", self._limit
            num, unit, limit = size
            raise InvalidInput(
                f"{place} has {num} {unit}, {num - limit} more than {ref} takes ({limit}): shorten"
                ' it, or send "windows": {}, which reads all of it',
                param=texts.wish.field,
            )
        # tokens of all words before each
        before = np.searchsorted(words.word_of_token, np.arange(num_words + 1))
        overlap, parts, start = overlap_in(room, texts.windows.overlap), list[Range](), 0
        while True:
            stop = int(np.searchsorted(before, before[start] + room, side="right")) - 1
            stop = min(stop, start + max_words, num_words)
            parts.append((start, stop))
            if stop == num_words:
                return parts
            # the last words that have so many tokens together
            after = int(np.searchsorted(before, before[stop] - overlap, side="right")) - 1
            if after <= start:
                raise InvalidInput(
                    f"windows.overlap is {overlap}, but a window has room for {room} tokens and"
                    f" {max_words} words beside the labels: {place} needs a smaller one",
                    param="windows.overlap",
                )
            start = after
            if len(parts) == self._max_windows:
                raise TooManyWindows(
                    f"{place} has {num_words} words, which are more than {self._max_windows}"
                    f" windows of {ref} (ADDNORM_MAX_WINDOWS): send it in parts",
                    param=texts.wish.field,
                )

    def _row(self, words: Words, start: int, stop: int) -> Row:
        """The words start to stop, behind the labels."""
        first, last = np.searchsorted(words.word_of_token, (start, stop))
        # gliner counts the words that have tokens, so those behind one without move up, and the
        # last have none
        firsts = np.flatnonzero(np.diff(words.word_of_token[first:last], prepend=-1))
        places = np.full(stop - start, NO_TOKEN, np.int64)
        places[: len(firsts)] = firsts + len(self._before)
        ids = np.concatenate([self._before, words.ids[first:last], self._after])
        is_empty = start == stop
        return Row(
            ids[:0] if is_empty else ids, words.ranges[start:stop], Places(places, self._labels)
        )


def join_names(windows: Sequence[list[Name]], flat: bool) -> Sequence[Name]:
    """The names of the windows of one text, each once. flat: of those that overlap the longest
    stays, of equally long ones the likeliest."""
    if len(windows) == 1:
        return windows[0]
    if flat:
        return join_overlapping(windows)
    likeliest = dict[tuple[int, int, str], Name]()
    for name in chain.from_iterable(windows):
        key = name.start, name.end, name.label
        if key not in likeliest or name.score > likeliest[key].score:
            likeliest[key] = name
    return sorted(likeliest.values(), key=lambda name: name.start)
