"""Tells token ids that a tokenizer may give a text, by the special tokens around it."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

PROBE = "a"


class Ends(NamedTuple):
    """Ids of the special tokens before and after a text, or a pair of texts."""

    first: tuple[int, ...]
    last: tuple[int, ...]


def ends_of(tokenizer: Tokenizer) -> tuple[Ends, ...]:
    """First and last special tokens of a text, and those of a pair if they are others.

    Texts without a special token at one end are left out: one low id tells too little, as in
    OpenAI's vocabulary every text that begins with "#" begins with id 2.
    """
    encodings = tokenizer.encode(PROBE), tokenizer.encode(PROBE, PROBE)
    found = dict.fromkeys(map(_ends, encodings))
    return tuple(ends for ends in found if ends.first and ends.last)


def _ends(encoding: Encoding) -> Ends:
    places = [at for at, text in enumerate(encoding.sequence_ids) if text is not None]
    if not places:
        return Ends((), ())  # the tokenizer makes no token of the probe
    ids = tuple(encoding.ids)
    return Ends(ids[: places[0]], ids[places[-1] + 1 :])


def has_ends(ids: Sequence[int], known: tuple[Ends, ...]) -> bool:
    """The ids begin and end as one of them says."""
    return any(
        len(ids) >= len(first) + len(last)
        and tuple(ids[: len(first)]) == first
        and tuple(ids[-len(last) :]) == last
        for first, last in known
    )
