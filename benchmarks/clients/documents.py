"""Ten thousand documents to index, and what a sample must give."""

import itertools
import random
from typing import Any

import numpy as np

from benchmarks.clients.rows import MODEL, Site, posted
from benchmarks.data.made_text import Maker

NUMBER, SEED = 10_000, 7
SAMPLE = range(0, NUMBER, 95)


def made_documents() -> list[str]:
    """All different, mostly of one to five sentences."""
    sentences, lengths = Maker(SEED).marked(), random.Random(SEED)
    texts = []
    for number in range(NUMBER):
        count = 1 + min(int(lengths.expovariate(0.8)), 4)
        said = " ".join(each.text for each in itertools.islice(sentences, count))
        texts.append(f"Document {number}. {said}")
    return texts


def sampled(site: Site) -> Any:
    """Each text of the sample alone."""
    texts = made_documents()
    bodies = [{"model": MODEL, "input": texts[index]} for index in SAMPLE]
    answers = [posted(site, "/v1/embeddings", **body)["data"] for body in bodies]
    return np.array([answer[0]["embedding"] for answer in answers], np.float32)
