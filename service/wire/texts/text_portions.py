"""Parts of the work on texts: which are taken at once, what becomes of their tokens, and ids back
to texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson

from addnorm.service.engine.batch import Batch, Padding, from_lists
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.tokenizing.tokenizer import Tokenizer, Tokens
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.negotiation import fragment

PIECE_TEXTS = 256  # tokenized in one piece, however short: takes 2 ms where all tokens are shown
PIECE_IDS = 4096  # turned into texts in one piece: takes about 5 ms; a longer row alone
Item = TypeVar("Item")


@dataclass(frozen=True)
class Shown:
    """One text's tokens as JSON, made off the event loop: a thousand texts take a while."""

    num_tokens: int
    fields: dict[str, orjson.Fragment]

    def __len__(self) -> int:
        return self.num_tokens


def portions(items: Sequence[Item], sizes: list[int], most: int) -> Iterator[Sequence[Item]]:
    """Consecutive ones: at most PIECE_TEXTS, their sizes together at most `most`; a larger one
    alone."""
    start = total = 0
    for end, size in enumerate(sizes):
        if (total and total + size > most) or end - start == PIECE_TEXTS:
            yield items[start:end]
            start, total = end, 0
        total += size
    yield items[start:]


def batched(found: Sequence[Tokens]) -> tuple[Batch, Padding]:
    types = None
    if any(tokens.types for tokens in found):
        types = [tokens.types or [0] * len(tokens) for tokens in found]
    return from_lists([tokens.ids for tokens in found], token_type_ids=types)


def decoded_ids(
    field: str, rows: Sequence[Sequence[int]], skip_special_tokens: bool, of: Tokenizer, ref: str
) -> list[orjson.Fragment]:
    texts = list[orjson.Fragment]()
    for portion in portions(rows, list(map(len, rows)), PIECE_IDS):
        for row in portion:
            _check_ids(field, row, of, ref)
        # for several rows the library gives Python's global lock to others
        made = of.library.decode_batch(portion, skip_special_tokens=skip_special_tokens)
        texts += map(fragment, made)
        checkpoint()
    return texts


def _check_ids(field: str, row: Sequence[int], of: Tokenizer, ref: str) -> None:
    if row and not 0 <= min(row) <= max(row) < of.num_ids:
        outside = next(token for token in row if not 0 <= token < of.num_ids)
        raise InvalidInput(
            f"{field} has {outside}: ids of tokens of {ref} are 0 to {of.num_ids - 1}", param=field
        )
