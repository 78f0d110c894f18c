"""Streams from a pool of distinct sequences: repeats by Zipf's law, or none at all.

Each request is new; what repeats is its sequences. A stream is made in advance and ends with its
last request: sent again, it would repeat more than it says.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.load.measure.stream import Profile, Request, Stream, log_normal_lengths
from addnorm.service.runtime.batch import Ints
from addnorm.service.runtime.manifest import Limits

MIN_DRAWN = 1000  # sequences at once
MIN_NEW = 0.001  # of these: if fewer are new, there are hardly any others


class TooFewSequences(ValueError):
    """The model's limits and the profile's lengths allow fewer distinct sequences than wanted."""


def distinct(
    profile: Profile,
    limits: Limits,
    num: int,
    draws: np.random.Generator,
    known: Collection[bytes] = (),
) -> list[Ints]:
    """So many sequences, no two of them equal and none of `known`, of the profile's lengths."""
    found: dict[bytes, Ints] = {}
    longest = min(profile.max_length, limits.max_positions)
    while len(found) < num:
        num_before = len(found)
        num_drawn = max(MIN_DRAWN, num - num_before)
        lengths = log_normal_lengths(replace(profile, max_length=longest), num_drawn, draws)
        ends = np.cumsum(lengths)
        tokens = limits.without_pads(draws.integers(0, limits.vocab_size, ends[-1]))
        for sequence in np.split(tokens, ends[:-1]):
            if (key := sequence.tobytes()) not in known:
                found.setdefault(key, sequence)
        if len(found) < num and len(found) - num_before < MIN_NEW * num_drawn:
            raise TooFewSequences(
                f"found {len(found):,} distinct sequences of at most {longest} tokens from a "
                f"vocabulary of {limits.vocab_size:,}; {num:,} are wanted: ask for fewer"
            )
    return list(islice(found.values(), num))


def zipf_ranks(
    exponent: float, num_distinct: int, num: int, draws: np.random.Generator
) -> NDArray[np.int64]:
    """`num` draws from 0 .. num_distinct - 1; i has a probability in proportion to (i + 1)^-s."""
    weights = np.arange(1, num_distinct + 1, dtype=np.float64) ** -exponent
    below = np.cumsum(weights)
    ranks: NDArray[np.int64] = np.searchsorted(below, draws.random(num) * below[-1], side="right")
    return ranks


def zipf(
    profile: Profile,
    limits: Limits,
    num_requests: int,
    exponent: float,
    num_distinct: int,
    seed: int = 0,
    fields: dict[str, Any] | None = None,
) -> Stream:
    """Every sequence of every request is drawn from `num_distinct` ones by Zipf's law."""
    if not 0 <= exponent < np.inf:
        raise ValueError(f"the exponent of Zipf's law is 0 or more and finite, not {exponent}")
    draws = np.random.default_rng([seed, 1])
    sizes = _sizes(profile, num_requests, draws)
    pool = distinct(profile, limits, num_distinct, draws)
    chosen = zipf_ranks(exponent, num_distinct, sum(sizes), draws)
    return _stream([pool[rank] for rank in chosen], sizes, profile, seed, fields)


def unique(
    profile: Profile,
    limits: Limits,
    num_requests: int,
    seed: int = 0,
    fields: dict[str, Any] | None = None,
    sent: Iterable[Request] = (),
) -> Stream:
    """No sequence is in the stream twice, or in the requests that were sent before it."""
    draws = np.random.default_rng([seed, 2])
    sizes = _sizes(profile, num_requests, draws)
    known = {sequence.tobytes() for request in sent for sequence in request.sequences}
    sequences = distinct(profile, limits, sum(sizes), draws, known)
    return _stream(sequences, sizes, profile, seed, fields)


def _sizes(profile: Profile, num_requests: int, draws: np.random.Generator) -> list[int]:
    """Sequences of each request."""
    if profile.exact:
        raise ValueError("this profile sets the lengths of a whole request: take another")
    sizes: list[int] = draws.integers(
        profile.min_sequences, profile.max_sequences, num_requests, endpoint=True
    ).tolist()
    return sizes


def _stream(
    sequences: list[Ints],
    sizes: list[int],
    profile: Profile,
    seed: int,
    fields: dict[str, Any] | None,
) -> Stream:
    ends = np.cumsum([0, *sizes]).tolist()
    requests = [
        Request.encode(tuple(sequences[start:end]), profile.output, fields)
        for start, end in pairwise(ends)
    ]
    return Stream(requests, seed, once=True)
