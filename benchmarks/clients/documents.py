"""Ten thousand documents to index, and what a sample must give."""

import itertools
import random
from typing import Any

import numpy as np

from benchmarks.clients.rows import MODEL, Site, post
from benchmarks.data.made_text import Maker

NUMBER, SEED = 10_000, 7
SAMPLE = range(0, NUMBER, 95)


def made_documents() -> list[str]:
    """All different, mostly of one to five sentences."""
    sentences, lengths = Maker(SEED).marked_sentences(), random.Random(SEED)
    texts = []
    for number in range(NUMBER):
        count = 1 + min(int(lengths.expovariate(0.8)), 4)
        body = " ".join(sentence.text for sentence in itertools.islice(sentences, count))
        texts.append(f"Document {number}. {body}")
    return texts


def sample_vectors(site: Site) -> Any:
    """Each text of the sample alone."""
    texts = made_documents()
    bodies = [{"model": MODEL, "input": texts[index]} for index in SAMPLE]
    answers = [post(site, "/v1/embeddings", **body)["data"] for body in bodies]
    return np.array([answer[0]["embedding"] for answer in answers], np.float32)
