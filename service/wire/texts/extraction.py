"""Names of any labels in texts, whatever the protocol: texts and labels -> sequences, and their
logits -> the names in each text.

The labels stand before each text, so they influence each other's scores, as their author has it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from tokenizers import Encoding

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.name_spans import Range, names
from addnorm.service.asking.tasks.tagging import Entity
from addnorm.service.engine.batch import Batch, Ints, Padding, offsets_of
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.outputs.name_logits import NO_TOKEN, NameLogits, Places
from addnorm.service.engine.tokenizer import PROBE, Text
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts.json_answers import Finish
from addnorm.service.wire.texts.texts import TextsToTokenize, check_single, check_size, json_bytes

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")  # gliner's WhitespaceTokenSplitter
NAME_BYTES = 100  # of a name as JSON, about, beside its text and its label
Label = Annotated[str, Field(min_length=1, max_length=1000)]
LabelsToFind = Annotated[list[Label], Field(fail_fast=True)]


class ExtractOptions(Strict):
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
    """One text behind the labels: its token ids, none if it has no words; its words; where both
    stand."""

    ids: Ints
    words: Sequence[Range]
    places: Places

    def __len__(self) -> int:
        return len(self.ids)


async def extract(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ExtractOptions
) -> Finish:
    """The names in each text, in its order. No text is truncated."""
    bundle, texts = texts.model.bundle, texts._replace(truncate=False, can_cut=False)
    check_single(texts.field, texts.texts)
    rules = bundle.manifest.extraction
    labels = list(dict.fromkeys(options.labels or bundle.manifest.labels or ()))
    if rules is None or not labels:
        raise InvalidInput(
            f"labels is missing, and {bundle.ref} has none by default: send labels to /v1/extract,"
            " or export it with --labels FILE",
            param="labels",
        )
    tools.texts.tokenizer(texts)
    reader = Reader(texts, labels)
    ask.batch, ask.padding, rows = await tools.texts.tokenize_with(
        texts, reader.read, ask, reader.join
    )

    def finish(ask: Ask) -> Iterator[Any]:
        logits = iter(ask.value(NameLogits).rows)
        choice = labels, rules.kind, options.threshold, options.flat
        for text, row in zip(texts.texts, rows, strict=True):
            yield names(str(text), row.words, next(logits), *choice) if row.words else []
            checkpoint()

    ask.outputs = (NameLogits([row.places for row in rows if row.words]),)
    ask.field, num_words = texts.field, sum(len(row.words) for row in rows)
    ask.answer_bytes = NAME_BYTES * num_words + 2 * json_bytes(map(str, texts.texts))
    return finish


async def tag(
    ask: Ask, tools: Tools, texts: TextsToTokenize, ignored_labels: frozenset[str]
) -> Finish:
    """Names of the model's own labels, as a tagger's entities."""
    find = await extract(ask, tools, texts, ExtractOptions())

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

    def __init__(self, texts: TextsToTokenize, labels: Sequence[str]) -> None:
        """InvalidInput for a label without tokens, or with the token that stands before labels, and
        if there are too many."""
        manifest, tokenizer = texts.model.bundle.manifest, texts.model.tokenizer
        assert manifest.extraction
        assert tokenizer
        self._rules = rules = manifest.extraction
        self._texts, self._library = texts, tokenizer.library
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

    def read(self, texts: Sequence[Text]) -> list[Row]:
        ranges = [[match.span() for match in WORD.finditer(str(text))] for text in texts]
        words = [WORD.findall(str(text)) for text in texts]
        encodings = self._library.encode_batch(
            words, is_pretokenized=True, add_special_tokens=False
        )
        return list(map(self._row, ranges, encodings))

    def _row(self, words: Sequence[Range], encoding: Encoding) -> Row:
        # gliner counts the words that have tokens, so those behind one without move up, and the
        # last have none
        firsts = np.flatnonzero(np.diff(np.array(encoding.word_ids, np.int64), prepend=-1))
        places = np.full(len(words), NO_TOKEN, np.int64)
        places[: len(firsts)] = firsts + len(self._before)
        ids = np.concatenate([self._before, np.array(encoding.ids, np.int64), self._after])
        return Row(ids if words else ids[:0], words, Places(places, self._labels))

    def join(self, rows: list[Row]) -> tuple[Batch, Padding, list[Row]]:
        """InvalidInput for a text that is too long."""
        texts, ref = self._texts, self._texts.model.bundle.ref
        for index, row in enumerate(rows):
            of_words = "words", len(row.words), self._rules.max_words
            for unit, size, limit in (of_words, ("tokens with labels", len(row), self._limit)):
                if size > limit:
                    raise InvalidInput(
                        f"{texts.place(index)} has {size} {unit}, {size - limit} more than {ref}"
                        f" takes ({limit}): shorten it, or send it in parts",
                        param=texts.field,
                    )
        lengths, ids = np.array(list(map(len, rows))), np.concatenate([row.ids for row in rows])
        return Batch(ids, offsets_of(lengths[lengths > 0]), None), Padding(lengths, None), rows
