"""Probabilities of each token's labels -> tagged tokens or entities. Knows no requests.

Source: transformers' TokenClassificationPipeline. `word` is the tokenizer's rendering, as there;
what the text itself says is text[start:end].
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from tokenizers import Encoding

from addnorm.service.arithmetic import row_sums
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.windows import Window

Aggregation = Literal["none", "simple", "first", "average", "max"]
Item = TypeVar("Item")
PlacedItem = TypeVar("PlacedItem", bound="Placed")
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


class TokenPlaces(NamedTuple):
    """The tokens of a text, or of a window of it, each with its characters of the text."""

    ids: Sequence[int]
    offsets: Sequence[Sequence[int]]  # first character, and one past the last
    is_special: Sequence[int]  # whether no text has the token
    shift: int = 0  # to the places of the window's tokens among all of the text

    @classmethod
    def of_encoding(cls, encoding: Encoding) -> "TokenPlaces":
        return cls(encoding.ids, encoding.offsets, encoding.special_tokens_mask)

    @classmethod
    def of_window(cls, window: Window) -> "TokenPlaces":
        offsets, is_special = window.offsets.tolist(), window.is_special.tolist()
        return cls(window.cells[:, 0].tolist(), offsets, is_special, window.shift)


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
    places: TokenPlaces,
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
    tokens = list(_tokens(text, places, scores, pieces))
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


class Placed(Protocol):
    """A tag, an entity or a name."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def score(self) -> np.float32: ...


def join_overlapping(parts: Sequence[Sequence[PlacedItem]]) -> Sequence[PlacedItem]:
    """The tags, entities or names of the windows of one text. Of those that overlap the longest
    stays, of equally long ones the likeliest."""
    if len(parts) == 1:
        return parts[0]
    items = sorted((item for part in parts for item in part), key=lambda item: item.start)
    joined = list[PlacedItem]()
    for item in items:
        last = joined[-1] if joined else None
        if last is None or not last.start <= item.start < last.end:
            joined.append(item)
        elif (item.end - item.start, item.score) > (last.end - last.start, last.score):
            joined[-1] = item
    return joined


def _tokens(text: str, places: TokenPlaces, scores: Floats, pieces: Pieces) -> Iterator[_Token]:
    """All but special tokens."""
    ids, offsets, are_special, shift = places
    for index, (token, (start, end), is_special) in enumerate(
        zip(ids, offsets, are_special, strict=True)
    ):
        if is_special:
            continue
        word = pieces.id_to_token(token) or ""
        if token == pieces.unknown_id:
            word, is_subword = text[start:end], False
        elif pieces.mark_subwords:
            is_subword = len(word) != end - start
        else:
            is_subword = start > 0 and " " not in text[start - 1 : start + 1]
        yield _Token(index + shift, scores[index], word, start, end, is_subword)


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
