"""Seeded rerank requests: a query and documents of so many tokens. Knows no server.

Documents are words that are one token each, drawn from the model's own vocabulary, so that their
lengths are exact. What the words mean changes no server's speed.
"""

from dataclasses import dataclass

import numpy as np

NUM_DOCUMENTS = 100
QUERY_TOKENS = 10
MEAN_TOKENS = 150  # of a document
SIGMA = 0.7  # of the logarithm of lengths: paragraphs have a long tail
LONGEST = 480  # with the query and the special tokens, a model of 512 positions cuts none
NUM_REQUESTS = 4  # distinct ones of a load


@dataclass(frozen=True)
class Request:
    """What one caller asks."""

    query: str
    documents: tuple[str, ...]


def log_normal(words: list[str], seed: int) -> list[Request]:
    """Documents of mixed lengths."""
    draws = np.random.default_rng([seed, 0])
    return [_request(words, _mixed_lengths(draws), draws) for _ in range(NUM_REQUESTS)]


def equal(words: list[str], seed: int) -> list[Request]:
    """Documents of one length: sorting by length gains nothing."""
    draws = np.random.default_rng([seed, 1])
    lengths = [MEAN_TOKENS] * NUM_DOCUMENTS
    return [_request(words, lengths, draws) for _ in range(NUM_REQUESTS)]


LOADS = {"log-normal": log_normal, "equal": equal}


def _mixed_lengths(draws: np.random.Generator) -> list[int]:
    wanted = draws.lognormal(np.log(MEAN_TOKENS) - SIGMA**2 / 2, SIGMA, NUM_DOCUMENTS)
    lengths: list[int] = np.clip(wanted.round(), 1, LONGEST).astype(int).tolist()
    return lengths


def _request(words: list[str], lengths: list[int], draws: np.random.Generator) -> Request:
    query, *documents = (
        " ".join(draws.choice(words, length)) for length in [QUERY_TOKENS, *lengths]
    )
    return Request(query, tuple(documents))
