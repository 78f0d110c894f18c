"""Probabilities of each token's labels -> tagged tokens or entities. Knows no requests.

Source: transformers' TokenClassificationPipeline. `word` is the tokenizer's rendering, as there;
what the text itself says is text[start:end].
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from tokenizers import Encoding

from addnorm.service.arithmetic import row_sums
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.engine.batch import Floats

Aggregation = Literal["none", "simple", "first", "average", "max"]
Item = TypeVar("Item")
IGNORED = ("O",)  # the label of what is no entity


@dataclass(frozen=True, slots=True)
class Tag:
    """A token's."""

    entity: str
    score: np.float32
    index: int  # of the token
    word: str
    start: int  # characters of the text
    end: int


@dataclass(frozen=True, slots=True)
class Entity:
    """Neighbouring tokens or words with the same label."""

    entity_group: str  # the label without B- or I-
    score: np.float32
    word: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Token:
    index: int
    scores: Floats  # [labels]
    word: str
    start: int
    end: int
    is_subword: bool


def tag_tokens(
    text: str,
    encoding: Encoding,
    scores: Floats,
    labels: Sequence[str],
    pieces: Pieces,
    aggregation: Aggregation = "none",
    ignore_labels: Collection[str] = IGNORED,
) -> list[Tag] | list[Entity]:
    """Tags for "none", else entities, in the order of the text.

    scores: probabilities `[tokens, labels]`, special tokens included. ignore_labels: these are left
    out; of entities, labels without B- and I-. Each is looked for once a token: a set is quicker.
    """
    tokens = list(_tokens(text, encoding, scores, pieces))
    if aggregation in ("none", "simple"):
        tags = [_tag(token, token.scores, labels) for token in tokens]
    else:
        choose, tags = WORD_SCORES[aggregation], []
        words = _split(tokens, lambda _, token: not token.is_subword)
        for word in words:  # as one token: its first token, with the characters of all
            word_text = pieces.join([token.word for token in word])
            word_token = replace(word[0], word=word_text, end=word[-1].end)
            tags.append(_tag(word_token, choose(word), labels))
    if aggregation == "none":
        return [tag for tag in tags if tag.entity not in ignore_labels]
    groups = _split(
        tags,
        lambda last, tag: tag.entity.startswith("B-") or _group_of(tag) != _group_of(last),
    )
    entities = (
        Entity(
            # for labels such as "X-PER" more than _group_of removes, as transformers has it
            group[0].entity.split("-", 1)[-1],
            _mean(np.array([[tag.score for tag in group]]))[0],
            pieces.join([tag.word for tag in group]),
            group[0].start,
            group[-1].end,
        )
        for group in groups
    )
    return [entity for entity in entities if entity.entity_group not in ignore_labels]


def _tokens(text: str, encoding: Encoding, scores: Floats, pieces: Pieces) -> Iterator[_Token]:
    """All but special tokens."""
    places = zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask, strict=True)
    for index, (token, (start, end), is_special) in enumerate(places):
        if is_special:
            continue
        word = pieces.id_to_token(token) or ""
        if token == pieces.unknown_id:
            word, is_subword = text[start:end], False
        elif pieces.mark_subwords:
            is_subword = len(word) != end - start
        else:
            is_subword = start > 0 and " " not in text[start - 1 : start + 1]
        yield _Token(index, scores[index], word, start, end, is_subword)


def _split(elements: Iterable[Item], begins: Callable[[Item, Item], bool]) -> Iterator[list[Item]]:
    """Neighbours together. begins: whether a new part begins between two of them."""
    part: list[Item] = []
    for element in elements:
        if part and begins(part[-1], element):
            yield part
            part = []
        part.append(element)
    if part:
        yield part


def _mean(scores: Floats) -> Floats:
    """The mean of each row, `[n, w]` -> `[n]`."""
    return row_sums(scores)[:, 0] / np.float32(scores.shape[1])


# the scores that a word gets from its tokens
WORD_SCORES: dict[Aggregation, Callable[[Sequence[_Token]], Floats]] = {
    "first": lambda word: word[0].scores,
    "average": lambda word: _mean(np.stack([token.scores for token in word], 1)),
    "max": lambda word: max(word, key=lambda token: float(token.scores.max())).scores,
}


def _tag(token: _Token, scores: Floats, labels: Sequence[str]) -> Tag:
    """The likeliest label of a token, or of a word."""
    best = int(scores.argmax())
    return Tag(labels[best], scores[best], token.index, token.word, token.start, token.end)


def _group_of(tag: Tag) -> str:
    return tag.entity[2:] if tag.entity.startswith(("B-", "I-")) else tag.entity
