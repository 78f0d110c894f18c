"""Confidence of the probabilities of a question's options. Knows no requests.

Source: TypeSafe's System One API, as jevcompat 0.1 pins it down.
"""

from collections.abc import Sequence


def choice_confidence(shares: Sequence[float]) -> float:
    """The likeliest option's distance above a uniform distribution: (max p - 1/n) / (1 - 1/n), so
    0 where all are alike and 1 where one is certain. shares: at least two."""
    uniform = 1 / len(shares)
    return (max(shares) - uniform) / (1 - uniform)


def score_confidence(shares: Sequence[float]) -> float:
    """The nearness of the levels to the likeliest one: 1 - d / u, at least 0. d is their expected
    distance from it, u the mean distance from the middle of as many levels that are all alike.
    shares: at least two; of equal ones the first counts as the likeliest."""
    num = len(shares)
    likeliest = max(range(num), key=shares.__getitem__)
    distance = uniform = 0.0
    for level, share in enumerate(shares):
        distance += share * abs(level - likeliest)
        uniform += abs(level - (num - 1) / 2) / num
    return max(0.0, 1 - distance / uniform)


def expectation(shares: Sequence[float]) -> float:
    """The mean level, from 0."""
    mean = 0.0
    for level, share in enumerate(shares):
        mean += level * share
    return mean
