"""Seeded texts of prose. Knows no server."""

import pydoc_data.topics
import random
import re


def prose(number: int, seed: int = 0) -> list[str]:
    """Pieces of Python's own documentation: from a few words to long paragraphs."""
    words = _documentation()
    starts = [i + 1 for i, word in enumerate(words[:-300]) if word.endswith(".")]
    draws = random.Random(seed)
    return [
        " ".join(words[start : start + _num_words(draws)])
        for start in draws.choices(starts, k=number)
    ]


def _documentation() -> list[str]:
    """The words of its paragraphs, without headings, code and grammar."""
    paragraphs = "\n\n".join(pydoc_data.topics.topics.values()).split("\n\n")
    return " ".join(
        part for part in paragraphs if re.match("[A-Z]", part) and "***" not in part
    ).split()


def _num_words(draws: random.Random) -> int:
    """Log-normal, as lengths of texts are: half have fewer than 18, one of twenty more than 80."""
    return min(max(2, round(draws.lognormvariate(2.9, 0.9))), 200)
