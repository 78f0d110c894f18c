"""`python -m addnorm.load.bench.accuracy BUNDLE TEXT...`: accuracy and speed of int8 on sentences.

Mean-pooled vectors of the texts' sentences against fp32: cosine, and how often the nearest
neighbour stays the same. Then useful tokens per second of both engines on the standard load (32
sequences, mean length 30, longest 100, in micro-batches of about 256 tokens) on one thread, in
turns. Needs a bundle with fp32, int8 and a tokenizer.
"""

import argparse
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.batch import Batch, Floats, Ints
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.engine import Engine

TOKEN_BUDGET = 256
ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m addnorm.load.bench.accuracy", description=__doc__
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    options = parser.parse_args()
    bundle = bundles.read(options.bundle)
    fp32, int8 = (Engine(bundle, precision, "cpu") for precision in ("fp32", "int8"))
    found = tokenize(
        bundle, [sentence for path in options.texts for sentence in sentences(path.read_text())]
    )
    print(f"{bundle.ref}: {len(found)} sentences, {sum(map(len, found))} tokens")
    print(agreement(pooled(fp32, found), pooled(int8, found)))
    print(speed(fp32, int8, standard_load(bundle)))


def sentences(text: str) -> Iterator[str]:
    """The prose of a Markdown text: no code, headings or tables; five words or more."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[#\-*|0-9])", text):
        if not paragraph.lstrip().startswith(("#", "|")):
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                letters = sum(map(str.isalpha, sentence))
                if len(sentence.split()) >= 5 and letters > 0.6 * len(sentence):
                    yield sentence.strip("*-# ")


def tokenize(bundle: Bundle, texts: list[str]) -> list[Ints]:
    """Token ids of each distinct text, cut as the server cuts them."""
    tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(bundle.manifest.limits.max_text_tokens)
    return [
        np.array(item.ids, np.int64) for item in tokenizer.encode_batch(list(dict.fromkeys(texts)))
    ]


def micro_batches(found: list[Ints]) -> Iterator[list[int]]:
    """Indices of sequences of near-equal length, about TOKEN_BUDGET tokens together."""
    batch: list[int] = []
    for index in sorted(range(len(found)), key=lambda index: len(found[index])):
        if batch and sum(len(found[i]) for i in batch) + len(found[index]) > TOKEN_BUDGET:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def pooled(engine: Engine, found: list[Ints]) -> Floats:
    """Mean over each sequence's tokens, length 1. `[num_sequences, d_model]`."""
    vectors = np.empty((len(found), engine.d_model), np.float32)
    for batch in micro_batches(found):
        together = Batch.of([found[i] for i in batch])
        rows = engine.run(together).activations
        for index, (start, end) in zip(batch, pairwise(together.offsets), strict=True):
            vectors[index] = rows[start:end].mean(0)
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def agreement(expected: Floats, got: Floats) -> str:
    cosines = (expected * got).sum(1)
    same = np.mean(_nearest(expected) == _nearest(got))
    shown = f"cosine: mean {cosines.mean():.5f}, lowest {cosines.min():.5f}"
    return f"{shown}; same nearest neighbour: {same:.1%}"


def _nearest(vectors: Floats) -> Ints:
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    nearest: Ints = similarity.argmax(1)
    return nearest


def standard_load(bundle: Bundle) -> list[Ints]:
    """32 sequences of seeded ids, lengths drawn about a mean of 30, the longest 100."""
    draws = np.random.default_rng(0)
    lengths = np.minimum(draws.gamma(2.0, 14.0, 31) + 2, 100)
    lengths = np.append(
        np.clip(np.rint(lengths * (32 * 30 - 100) / lengths.sum()), 1, 100), 100
    ).astype(int)
    return [draws.integers(0, bundle.manifest.limits.vocab_size, length) for length in lengths]


def speed(fp32: Engine, int8: Engine, found: list[Ints]) -> str:
    """Wall time in turns, so that a busy machine slows both; CPU time, which depends on it less."""
    batches = [Batch.of([found[i] for i in batch]) for batch in micro_batches(found)]
    spent = np.array(
        [[_spend(engine, batches) for engine in (fp32, int8)] for _ in range(ROUNDS + 1)]
    )[1:]
    wall, cpu = np.median(spent[:, 0] / spent[:, 1], axis=0)
    tokens_per_s = sum(map(len, found)) / np.median(spent[:, :, 0], axis=0)
    return "tokens/s: fp32 {:.0f}, int8 {:.0f}; ratio {:.2f}, of CPU time {:.2f}".format(
        *tokens_per_s, wall, cpu
    )


def _spend(engine: Engine, batches: list[Batch]) -> tuple[float, float]:
    """Seconds of wall and of CPU time."""
    wall, cpu = time.perf_counter(), time.thread_time()
    for batch in batches:
        engine.run(batch)
    return time.perf_counter() - wall, time.thread_time() - cpu


if __name__ == "__main__":
    main()
