"""Ten thousand documents to index, some too long for the model, and what a sample must give."""

import itertools
import random
from typing import Any

import numpy as np

from benchmarks.clients.rows import MODEL, Site, posted
from benchmarks.data.made_text import Maker

NUMBER, EACH_LONG, SENTENCES_OF_LONG, SEED = 10_000, 50, 30, 7
CUTS = f"{MODEL}:truncate"  # for clients that send long texts and have no field for it
SAMPLE = range(0, NUMBER, 95)  # every tenth of it is long


def made_documents() -> list[str]:
    """All different, mostly of one to five sentences. Each fiftieth has over 256 tokens."""
    sentences, lengths = Maker(SEED).marked(), random.Random(SEED)
    texts = []
    for number in range(NUMBER):
        count = 1 + int(lengths.expovariate(0.8)) if number % EACH_LONG else SENTENCES_OF_LONG
        said = " ".join(each.text for each in itertools.islice(sentences, count))
        texts.append(f"Document {number}. {said}")
    return texts


def sampled(site: Site) -> Any:
    """Each text of the sample alone, cut where it is too long."""
    texts = made_documents()
    bodies = [{"model": MODEL, "input": texts[index], "truncate": True} for index in SAMPLE]
    answers = [posted(site, "/v1/embeddings", **body)["data"] for body in bodies]
    return np.array([answer[0]["embedding"] for answer in answers], np.float32)
