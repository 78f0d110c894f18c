"""Seeded streams of requests: what callers send, padded grids or texts. Knows no server.

A stream is a bounded list of distinct requests in a drawn order, so that each answer is known
beforehand. Or it draws the sequences of its requests, which are all new, from a pool of distinct
ones: with repeats by Zipf's law, or without any. Then it ends with its last request: sent again, it
would repeat more than it says.
"""

import json
import pydoc_data.topics
import random
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Batch, Tokens
from addnorm.service.engine.manifest import Limits

SIGMA = 0.6  # of the logarithm of lengths: real text has a long tail
NUM_VARIANTS = 4  # distinct sequences of one length: the same ones are co-batched with many others
SWEEP_LONGEST = (60, 100, 200, 350, 500)  # 50 to 94 % padding
MIN_DRAWN = 1000  # sequences at once
MIN_NEW = 0.001  # of these: if fewer are new, there are hardly any others


@dataclass(frozen=True)
class Profile:
    """The shape of a stream's requests. Lengths in tokens."""

    min_sequences: int
    max_sequences: int
    mean_length: int
    max_length: int
    output: str = "pooled"
    # every request has one sequence of max_length, and max_sequences * mean_length tokens
    exact: bool = False
    num_requests: int = 128  # distinct ones


PROFILES = {
    "small": Profile(1, 4, 30, 128),
    # the batch of "Why Not Batch Normalization?": 960 real tokens in 3,200 cells, 70 % padding
    "big": Profile(32, 32, 30, 100, exact=True, num_requests=12),
    "hidden": Profile(1, 4, 30, 128, output="activations", num_requests=48),
    "long": Profile(1, 4, 120, 512, num_requests=48),
    "one-512": Profile(1, 1, 512, 512, exact=True, num_requests=4),
    "tiny": Profile(1, 1, 4, 8),
    "same": Profile(1, 1, 4, 8, num_requests=1),  # one request again and again
    **{f"longest-{n}": Profile(32, 32, 30, n, exact=True, num_requests=6) for n in SWEEP_LONGEST},
}


@dataclass(frozen=True, eq=False)
class Request:
    """One caller's sequences, and the body that carries them."""

    sequences: tuple[Tokens, ...]
    output: str
    body: bytes

    @classmethod
    def encode(
        cls, sequences: tuple[Tokens, ...], output: str, fields: dict[str, Any] | None = None
    ) -> Self:
        """fields: of the body (model, precision)."""
        batch = Batch.of(sequences)
        grid = batch.grid()
        cells = {batch.field: grid.input_ids.tolist(),
                 "attention_mask": grid.attention_mask.tolist()}  # fmt: skip
        body = json.dumps({**cells, "outputs": [output], **(fields or {})}).encode()
        return cls(sequences, output, body)

    @property
    def num_tokens(self) -> int:
        """Real ones: pads are no use to anyone."""
        return sum(map(len, self.sequences))

    @property
    def width(self) -> int:
        return max(map(len, self.sequences))


@dataclass(frozen=True)
class Stream:
    """Distinct requests, and an endless order of them drawn from `seed`."""

    requests: list[Request]
    seed: int
    once: bool = False  # each request is sent once, as they stand, and then the stream ends
    path: str = "/v1/infer"

    def indices(self) -> Iterator[int]:
        """Every request once in a drawn order, then again in another."""
        if self.once:
            yield from range(len(self.requests))
            return
        for turn in count():
            yield from (
                np.random.default_rng([self.seed, turn]).permutation(len(self.requests)).tolist()
            )

    @property
    def num_tokens(self) -> float:
        """Real tokens of a request, on average."""
        return sum(request.num_tokens for request in self.requests) / len(self.requests)

    def parts(self, size: int) -> "list[Stream]":
        """The stream cut into streams of so many requests each."""
        starts = range(0, len(self.requests), size)
        return [replace(self, requests=self.requests[i : i + size]) for i in starts]


def make(
    profile: Profile, limits: Limits, seed: int = 0, fields: dict[str, Any] | None = None
) -> Stream:
    """The profile's stream within the model's limits. fields: of each body (model, precision)."""
    profile = replace(profile, max_length=min(profile.max_length, limits.max_positions))
    draws = np.random.default_rng(seed)
    requests = []
    for _ in range(profile.num_requests):
        num = int(draws.integers(profile.min_sequences, profile.max_sequences, endpoint=True))
        sequences = []
        for length in (_exact if profile.exact else log_normal_lengths)(profile, num, draws):
            generator = np.random.default_rng([seed, length, int(draws.integers(NUM_VARIANTS))])
            sequences.append(_tokens(limits, length, generator))
        requests.append(Request.encode(tuple(sequences), profile.output, fields))
    return Stream(requests, seed)


def log_normal_lengths(profile: Profile, num: int, draws: np.random.Generator) -> list[int]:
    """Lengths of so many sequences, within the profile's longest."""
    wanted = _log_normal(profile, num, draws).round()
    lengths: list[int] = np.clip(wanted, 1, profile.max_length).astype(int).tolist()
    return lengths


def _log_normal(profile: Profile, num: int, draws: np.random.Generator) -> NDArray[np.float64]:
    return draws.lognormal(np.log(profile.mean_length) - SIGMA**2 / 2, SIGMA, num)


def _exact(profile: Profile, num: int, draws: np.random.Generator) -> list[int]:
    """One is the profile's longest, and on average they are as long as it says."""
    longest, weights = profile.max_length, _log_normal(profile, num, draws)[1:]
    rest = num * profile.mean_length - longest
    lengths = np.clip((weights * rest / weights.sum()).round(), 1, longest - 1).astype(int)
    while missing := rest - lengths.sum():
        step = int(np.sign(missing))
        free = np.flatnonzero((lengths + step >= 1) & (lengths + step < longest))
        lengths[draws.choice(free, min(len(free), abs(int(missing))), replace=False)] += step
    return draws.permutation([longest, *lengths]).tolist()  # type: ignore[no-any-return]


def _tokens(limits: Limits, num: int, draws: np.random.Generator) -> Tokens:
    """Ids, or vectors for a model that takes them."""
    if limits.input_width:
        return draws.standard_normal((num, limits.input_width), np.float32)
    return limits.without_pads(draws.integers(0, limits.vocab_size, num))


class TooFewSequences(ValueError):
    """The model's limits and the profile's lengths allow fewer distinct sequences than wanted."""


def distinct(
    profile: Profile,
    limits: Limits,
    num: int,
    draws: np.random.Generator,
    exclusions: Collection[bytes] = (),
) -> list[Tokens]:
    """So many sequences of the profile's lengths, no two of them equal and none of `exclusions`."""
    sequences: dict[bytes, Tokens] = {}
    longest = min(profile.max_length, limits.max_positions)
    while len(sequences) < num:
        num_before = len(sequences)
        num_drawn = max(MIN_DRAWN, num - num_before)
        lengths = log_normal_lengths(replace(profile, max_length=longest), num_drawn, draws)
        ends = np.cumsum(lengths)
        tokens = _tokens(limits, int(ends[-1]), draws)
        for sequence in np.split(tokens, ends[:-1]):
            if (key := sequence.tobytes()) not in exclusions:
                sequences.setdefault(key, sequence)
        if len(sequences) < num and len(sequences) - num_before < MIN_NEW * num_drawn:
            raise TooFewSequences(
                f"found {len(sequences):,} distinct sequences of at most {longest} tokens from a"
                f" vocabulary of {limits.vocab_size:,}; {num:,} are needed: lower the number"
            )
    return list(islice(sequences.values(), num))


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
        raise ValueError(
            f"the exponent of Zipf's law must be finite and at least 0, not {exponent}"
        )
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
    exclusions = {sequence.tobytes() for request in sent for sequence in request.sequences}
    sequences = distinct(profile, limits, sum(sizes), draws, exclusions)
    return _stream(sequences, sizes, profile, seed, fields)


def _sizes(profile: Profile, num_requests: int, draws: np.random.Generator) -> list[int]:
    """Sequences of each request."""
    if profile.exact:
        raise ValueError("this profile sets the lengths of a whole request: choose another")
    sizes: list[int] = draws.integers(
        profile.min_sequences, profile.max_sequences, num_requests, endpoint=True
    ).tolist()
    return sizes


def _stream(
    sequences: list[Tokens],
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


def prose(number: int, seed: int = 0) -> list[str]:
    """Pieces of Python's own documentation: from a few words to long paragraphs."""
    paragraphs = "\n\n".join(pydoc_data.topics.topics.values()).split("\n\n")
    # without headings, code and grammar
    texts = [part for part in paragraphs if re.match("[A-Z]", part) and "***" not in part]
    words = " ".join(texts).split()
    starts = [i + 1 for i, word in enumerate(words[:-300]) if word.endswith(".")]
    draws = random.Random(seed)
    pieces = []
    for start in draws.choices(starts, k=number):
        # log-normal, as lengths of texts are: half have fewer than 18, one of twenty more than 80
        num_words = min(max(2, round(draws.lognormvariate(2.9, 0.9))), 200)
        pieces.append(" ".join(words[start : start + num_words]))
    return pieces
