"""Seeded texts of prose. Knows no server."""

import pydoc_data.topics
import random
import re


def prose(number: int, seed: int = 0) -> list[str]:
    """Pieces of Python's own documentation: from a few words to long paragraphs."""
    paragraphs = "\n\n".join(pydoc_data.topics.topics.values()).split("\n\n")
    # without headings, code and grammar
    kept = [part for part in paragraphs if re.match("[A-Z]", part) and "***" not in part]
    words = " ".join(kept).split()
    starts = [i + 1 for i, word in enumerate(words[:-300]) if word.endswith(".")]
    draws = random.Random(seed)
    found = []
    for start in draws.choices(starts, k=number):
        # log-normal, as lengths of texts are: half have fewer than 18, one of twenty more than 80
        num_words = min(max(2, round(draws.lognormvariate(2.9, 0.9))), 200)
        found.append(" ".join(words[start : start + num_words]))
    return found
