"""Ranges of characters or of tokens, as callers send them -> the tokens of the batch in each."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from tokenizers import Encoding

from addnorm.service.engine.batch import Ints, Padding
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import InvalidInput
from addnorm.service.wire.texts.texts import TextsToTokenize

Range = Annotated[list[int], Field(min_length=2, max_length=2)]
Ranges = Annotated[list[Annotated[list[Range], Field(fail_fast=True)]], Field(fail_fast=True)]
NOWHERE = -1


class Places(NamedTuple):
    """The places of the tokens of one of the caller's rows, in units of its ranges."""

    of_tokens: Ints  # ascending but for NOWHERE
    size: int  # of the row
    units: str

    def tokens(self) -> tuple[list[int], list[int]]:
        """The places of the tokens that are somewhere, ascending, and the tokens."""
        indices = np.flatnonzero(self.of_tokens != NOWHERE)
        return self.of_tokens[indices].tolist(), indices.tolist()


def in_layout(padding: Padding) -> Iterator[Places]:
    """Ranges of places in the caller's layout. Pads in a range do not count."""
    for row, length in enumerate(padding.lengths.tolist()):
        if padding.mask is None:
            yield Places(np.arange(length), length, "tokens")
        else:
            mask = padding.mask[row]
            yield Places(np.flatnonzero(mask), len(mask), "tokens")


def in_texts(
    texts: Sequence[Text], to_tokenize: TextsToTokenize, encodings: Sequence[Encoding]
) -> Iterator[Places]:
    """Ranges of characters of the texts, not of the prompts that `to_tokenize` has before
    them.

    A token is where its last character is, so of two ranges that touch it is in one. Special
    tokens have no characters.
    """
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInput(
                f"spans is set, but {to_tokenize.wish.field}[{index}] is a pair: spans need single"
                " texts",
                param="spans",
            )
        starts, ends = np.array(encodings[index].offsets).T
        last = ends - 1 - len(to_tokenize.prompt)
        places = np.where(starts < ends, last, NOWHERE)
        end = int(places.max()) + 1
        if to_tokenize.truncate and text[end:].strip():
            yield Places(places, end, "characters that are left once it is cut")
        else:
            yield Places(places, len(text), "characters")


def read(ranges: list[list[list[int]]], rows: Iterator[Places], field: str) -> Spans:
    """InvalidInput names the range that does not fit. field: the caller's name for the rows."""
    token_ranges, lengths, start = list[tuple[int, int]](), list[int](), 0
    for row, places in enumerate(rows):
        row_ranges = ranges[row] if row < len(ranges) else []
        num_tokens = len(places.of_tokens)
        if len(row_ranges) > num_tokens:
            raise InvalidInput(
                f"spans[{row}] has {len(row_ranges)} ranges, the limit is {num_tokens}: one for"
                f" each token of {field}[{row}]",
                param="spans",
            )
        # a range is found by halving, as a row may have one for each of its tokens
        ascending, tokens = places.tokens()
        for index, (begin, end) in enumerate(row_ranges):
            place = f"spans[{row}][{index}] is [{begin}, {end}]"
            if not 0 <= begin < end <= places.size:
                raise InvalidInput(
                    f"{place}: a range of {field}[{row}] is [first, one past the last] of its"
                    f" {places.size} {places.units}",
                    param="spans",
                )
            first, after = bisect_left(ascending, begin), bisect_left(ascending, end)
            if first == after:
                raise InvalidInput(
                    f"{place}: it contains no token of {field}[{row}], not counting special"
                    " tokens and padding",
                    param="spans",
                )
            token_ranges.append((start + tokens[first], start + tokens[after - 1] + 1))
        lengths.append(len(row_ranges))
        start += num_tokens
        checkpoint()
    if len(ranges) != len(lengths):
        raise InvalidInput(
            f"spans has {len(ranges)} lists, {field} has {len(lengths)}: send one list of ranges"
            " for each, which may be empty",
            param="spans",
        )
    return Spans(np.array(token_ranges, np.int64).reshape(-1, 2), np.array(lengths))


def of_chunks(chunks: Sequence[str], rows: Iterator[Places], field: str) -> Spans:
    """The tokens of each chunk of the only row, which is all of them end to end. InvalidInput names
    a chunk without a token."""
    (places,) = rows
    ascending, tokens = places.tokens()
    token_ranges = list[tuple[int, int]]()
    for index, (begin, end) in enumerate(pairwise(accumulate(map(len, chunks), initial=0))):
        first, after = bisect_left(ascending, begin), bisect_left(ascending, end)
        if first == after:
            is_cut = places.size <= begin < end
            reason = "the text is truncated before it" if is_cut else "it has no token of its own"
            raise InvalidInput(
                f"{field}[{index}] has no vector in one text with the other chunks: {reason}; send"
                " it in another request, or together with its neighbour",
                param=field,
            )
        token_ranges.append((tokens[first], tokens[after - 1] + 1))
    return Spans(np.array(token_ranges, np.int64), np.array([len(chunks)]))
