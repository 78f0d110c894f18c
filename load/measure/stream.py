"""Seeded streams of requests: what callers send, padded grids or texts. Knows no server.

A stream is a bounded list of distinct requests in a drawn order, so that each answer is known
beforehand.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from addnorm.service.runtime.batch import Batch, Ints
from addnorm.service.runtime.manifest import Limits

SIGMA = 0.6  # of the logarithm of lengths: real text has a long tail
NUM_VARIANTS = 4  # distinct sequences of one length: the same ones are co-batched with many others
SWEEP_LONGEST = (60, 100, 200, 350, 500)  # 50 to 94 % padding


@dataclass(frozen=True)
class Profile:
    """The shape of a stream's requests. Lengths in tokens."""

    min_sequences: int
    max_sequences: int
    mean_length: int
    max_length: int
    output: str = "pooled"
    exact: bool = (
        False  # every request has one sequence of max_length and max_sequences * mean_length tokens
    )
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

    sequences: tuple[Ints, ...]
    output: str
    body: bytes

    @classmethod
    def encode(
        cls, sequences: tuple[Ints, ...], output: str, fields: dict[str, Any] | None = None
    ) -> Self:
        """fields: of the body (model, precision)."""
        grid = Batch.of(sequences).grid().by_name()
        cells = {name: values.tolist() for name, values in grid.items()}
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
        sequences = tuple(
            _draw(limits, length, int(draws.integers(NUM_VARIANTS)), seed)
            for length in _lengths(profile, draws)
        )
        requests.append(Request.encode(sequences, profile.output, fields))
    return Stream(requests, seed)


def _draw(limits: Limits, length: int, variant: int, seed: int) -> Ints:
    draws = np.random.default_rng([seed, length, variant])
    return limits.without_pads(draws.integers(0, limits.vocab_size, length))


def _lengths(profile: Profile, draws: np.random.Generator) -> list[int]:
    num_sequences = int(draws.integers(profile.min_sequences, profile.max_sequences, endpoint=True))
    if profile.exact:
        wanted = _log_normal(profile, num_sequences, draws)
        return _exact(wanted, profile.max_length, num_sequences * profile.mean_length, draws)
    return log_normal_lengths(profile, num_sequences, draws)


def log_normal_lengths(profile: Profile, num: int, draws: np.random.Generator) -> list[int]:
    """Lengths of so many sequences, within the profile's longest."""
    wanted = _log_normal(profile, num, draws).round()
    lengths: list[int] = np.clip(wanted, 1, profile.max_length).astype(int).tolist()
    return lengths


def _log_normal(profile: Profile, num: int, draws: np.random.Generator) -> NDArray[np.float64]:
    return draws.lognormal(np.log(profile.mean_length) - SIGMA**2 / 2, SIGMA, num)


def _exact(
    wanted: NDArray[np.float64], longest: int, total: int, draws: np.random.Generator
) -> list[int]:
    """Lengths in proportion to `wanted`; one is `longest`, and their sum is `total`."""
    rest = total - longest
    others = wanted[1:]
    lengths = np.clip((others * rest / others.sum()).round(), 1, longest - 1).astype(int)
    while missing := rest - lengths.sum():
        step = int(np.sign(missing))
        free = np.flatnonzero((lengths + step >= 1) & (lengths + step < longest))
        lengths[draws.choice(free, min(len(free), abs(int(missing))), replace=False)] += step
    return draws.permutation([longest, *lengths]).tolist()  # type: ignore[no-any-return]
