"""Names of any labels in texts, whatever the protocol: texts and labels -> sequences, and their
logits -> the names in each text.

The labels stand before each text, so they influence each other's scores, as their author has it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from tokenizers import Encoding

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks import extraction
from addnorm.service.asking.tasks.extraction import Name, Range
from addnorm.service.asking.tasks.tagging import Entity
from addnorm.service.engine.batch import Batch, Ints, Padding, offsets_of
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.manifest import Extraction
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs.extraction import NO_TOKEN, NameLogits, Places
from addnorm.service.engine.tokenizer import PROBE, Text
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.decoding import Tools
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts.json_answers import Finish
from addnorm.service.wire.texts.texts import TextsToTokenize, check_single, check_size, json_bytes

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")  # gliner's WhitespaceTokenSplitter
MAX_LABELS = 200  # of a request
MAX_LABEL_CHARACTERS = 1000
THRESHOLD = 0.5  # gliner's default
NAME_BYTES = 100  # of a name as JSON, about, beside its text and its label
Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARACTERS)]
LabelsToFind = Annotated[list[Label], Field(fail_fast=True)]


class ExtractOptions(Strict):
    labels: LabelsToFind | None = Field(
        None,
        min_length=1,
        description="Kinds of names, in words, such as `person`. They are put before each text, so"
        " the scores depend on all of them and on their order. By default the model's own.",
    )
    threshold: float = Field(
        THRESHOLD, ge=0, lt=1, description="Only names with a higher score are in the answer."
    )
    flat: bool = Field(
        True, description="Whether no two names overlap; else one may lie within another."
    )


@dataclass(frozen=True)
class Row:
    """One text behind the labels: its token ids, and where its words are."""

    ids: Ints
    words: Sequence[Range]
    places: Places

    def __len__(self) -> int:
        return len(self.ids)


class Prompt(NamedTuple):
    """The labels before a text: their token ids, behind the special tokens before each text; the
    token of each label among them; ids behind a text."""

    before: Ints
    labels: Ints
    after: Ints


async def extract(
    ask: Ask, tools: Tools, texts: TextsToTokenize, options: ExtractOptions
) -> Finish:
    """The names in each text, in its order."""
    bundle = texts.model.bundle
    check_single(texts.field, texts.texts)
    rules, own_labels = bundle.manifest.extraction, bundle.manifest.labels
    if rules is None:
        raise InvalidInput(f"{bundle.ref} cannot find names of any labels", param="model")
    if options.labels is None and not own_labels:
        raise InvalidInput(
            f"labels is missing, and {bundle.ref} has none by default: send labels to /v1/extract,"
            " or export it with --labels FILE",
            param="labels",
        )
    labels = list(dict.fromkeys(options.labels or own_labels or ()))
    check_size("labels", len(labels), "labels", MAX_LABELS)
    tools.texts.tokenizer(texts)
    prompt = _read_labels(texts.model, rules, labels)
    read = partial(_read_texts, texts.model, prompt)
    join = partial(_joined, texts, rules)
    ask.batch, ask.padding, rows = await tools.texts.tokenize_with(texts, read, ask, join)

    def finish(ask: Ask) -> Iterator[Any]:
        logits = iter(ask.value(NameLogits).rows)
        find = partial(extraction.names, labels=labels, kind=rules.kind)
        for text, row in zip(texts.texts, rows, strict=True):
            names = list[Name]()
            if row.words:
                names = find(
                    str(text), row.words, next(logits),
                    threshold=options.threshold, flat=options.flat,
                )  # fmt: skip
            yield names
            checkpoint()

    ask.outputs = (NameLogits([row.places for row in rows if row.words]),)
    num_words = sum(len(row.words) for row in rows)
    ask.field, ask.answer_bytes = texts.field, NAME_BYTES * num_words
    ask.answer_bytes += 2 * json_bytes(map(str, texts.texts))
    return finish


async def tag(
    ask: Ask, tools: Tools, texts: TextsToTokenize, ignored_labels: frozenset[str]
) -> Finish:
    """Names of the model's own labels, as a tagger's entities. Words are those of the text."""
    texts = texts._replace(can_cut=False, truncate=False)
    find = await extract(ask, tools, texts, ExtractOptions())

    def finish(ask: Ask) -> Iterator[Any]:
        for names in find(ask):
            yield [
                Entity(name.label, name.score, name.text, name.start, name.end)
                for name in names
                if name.label not in ignored_labels
            ]

    return finish


def _read_labels(model: Model, rules: Extraction, labels: Sequence[str]) -> Prompt:
    """InvalidInput if they leave no room for a text, if one has no tokens, or if one has the token
    that stands before labels."""
    assert model.tokenizer
    library, limit = model.tokenizer.library, model.tokenizer.max_characters
    check_size("labels", sum(map(len, labels)), "characters", limit, "send fewer")
    probe = library.encode([PROBE], is_pretokenized=True)
    is_special = np.array([part is None for part in probe.sequence_ids])
    first, last = np.flatnonzero(~is_special)[[0, -1]]
    words = [word for label in labels for word in (rules.label_token, label)]
    encoding = library.encode(
        [*words, rules.text_token], is_pretokenized=True, add_special_tokens=False
    )
    ids = np.array(encoding.ids, np.int64)
    places = np.flatnonzero(ids == rules.label_id)
    has_tokens = {*encoding.word_ids}
    for index, label in enumerate(labels):
        if 2 * index + 1 not in has_tokens or rules.label_token in label:
            reason = "has no tokens" if label.strip() else "is blank"
            if rules.label_token in label:
                reason = f"has {rules.label_token}, which stands before labels"
            raise InvalidInput(f"labels[{index}] {reason}: send other words", param="labels")
    room = model.bundle.manifest.limits.max_text_tokens - len(ids) - (len(probe.ids) - 1)
    if room < 1:
        raise InvalidInput(
            f"labels have {len(ids)} tokens, which leaves no room for a text: {model.bundle.ref}"
            f" takes {model.bundle.manifest.limits.max_text_tokens} with the text: send fewer",
            param="labels",
        )
    special_ids = np.array(probe.ids, np.int64)
    before = np.concatenate([special_ids[:first], ids])
    return Prompt(before, places + int(first) + rules.label_offset, special_ids[last + 1 :])


def _read_texts(model: Model, prompt: Prompt, texts: Sequence[Text]) -> list[Row]:
    assert model.tokenizer
    ranges = [[match.span() for match in WORD.finditer(str(text))] for text in texts]
    words = [
        [str(text)[start:end] for start, end in text_ranges]
        for text, text_ranges in zip(texts, ranges, strict=True)
    ]
    encodings = model.tokenizer.library.encode_batch(
        words, is_pretokenized=True, add_special_tokens=False
    )
    return [_row(prompt, *pair) for pair in zip(ranges, encodings, strict=True)]


def _row(prompt: Prompt, words: Sequence[Range], encoding: Encoding) -> Row:
    if not words:
        nothing = np.empty(0, np.int64)
        return Row(nothing, words, Places(nothing, nothing))
    word_ids = np.array(encoding.word_ids, np.int64)
    firsts = np.flatnonzero(np.diff(word_ids, prepend=-1))
    # gliner counts the words that have tokens, so those behind one without move up, and the last
    # have none
    places = np.full(len(words), NO_TOKEN, np.int64)
    places[: len(firsts)] = firsts + len(prompt.before)
    ids = np.concatenate([prompt.before, np.array(encoding.ids, np.int64), prompt.after])
    return Row(ids, words, Places(places, prompt.labels))


def _joined(
    texts: TextsToTokenize, rules: Extraction, rows: list[Row]
) -> tuple[Batch, Padding, list[Row]]:
    """InvalidInput for a text that is too long."""
    bundle = texts.model.bundle
    limit = bundle.manifest.limits.max_text_tokens
    for index, row in enumerate(rows):
        sizes = (
            ("words", len(row.words), rules.max_words),
            ("tokens with labels", len(row), limit),
        )
        for unit, size, most in sizes:
            if size > most:
                raise InvalidInput(
                    f"{texts.place(index)} has {size} {unit}, {size - most} more than {bundle.ref}"
                    f" takes ({most}): shorten it, or send it in parts",
                    param=texts.field,
                )
    lengths = np.array(list(map(len, rows)))
    ids = np.concatenate([row.ids for row in rows])
    return Batch(ids, offsets_of(lengths[lengths > 0]), None), Padding(lengths, None), rows
