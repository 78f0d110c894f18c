"""Digests of all arithmetic around the graph on fixed inputs, which every processor must repeat.

    python -m tests.support.arithmetic_digests > tests/golden/arithmetic.json

It needs neither torch nor pytest, so it also runs on an emulated processor.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace

from addnorm.corpus.comparison import compare
from addnorm.service import arithmetic
from addnorm.service.asking.tasks import classification, fill_mask, similarity, tagging
from addnorm.service.asking.tasks.max_sim import max_sims
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.asking.tasks.tagging import TokenPlaces
from addnorm.service.engine import heads
from addnorm.service.engine.batch import Floats, Rows
from addnorm.service.engine.clusters import join_clusters
from addnorm.service.engine.manifest import Clusters, Pooling
from addnorm.service.engine.outputs import sparse
from addnorm.service.engine.outputs.pooled import to_dtype
from addnorm.service.engine.outputs.values import Dense, VectorDType

Make = Callable[[], Any]
WIDTHS = (1, 2, 3, 5, 8, 31, 128, 383, 384, 4096, 4097, 9001)


def numbers(*shape: int, scale: float = 8.0) -> Floats:
    """Float32 of both signs below scale. They are made of whole numbers: those of a normal
    distribution would differ by processor."""
    draws = np.random.default_rng(shape[-1])
    whole = draws.integers(-(2**23), 2**23, shape)
    return (whole / 2**23 * scale).astype(np.float32)


def zeros() -> Floats:
    """0 and -0, `[4, 40]`."""
    signs = np.random.default_rng(0).integers(0, 2, (4, 40)) * 2 - 1
    return np.copysign(np.float32(0), signs.astype(np.float32))


def functions() -> dict[str, Make]:
    """What `service/arithmetic.py` has."""
    below = -np.abs(numbers(20_000, scale=90))
    above = np.ldexp(np.abs(numbers(20_000)), np.arange(20_000) % 120 - 60)
    return {
        "exp of float32": lambda: arithmetic.exp(below),
        "exp of float64": lambda: arithmetic.exp(below * np.float64(8)),
        "log": lambda: arithmetic.log(above.astype(np.float64)),
        "log1p": lambda: arithmetic.log1p(above),
        "row sums": lambda: [arithmetic.row_sums(numbers(7, width)) for width in WIDTHS],
        "dots": lambda: [arithmetic.dots(numbers(7, w), numbers(1, w)[0]) for w in WIDTHS],
        "lengths": lambda: [arithmetic.lengths(numbers(7, width)) for width in WIDTHS],
        "log-sum-exp": lambda: [arithmetic.log_sum_exp(numbers(13, w)) for w in WIDTHS],
    }


def pooled(pooling: Pooling, rows: Floats) -> Floats:
    offsets = np.array([0, 1, 3, 6, 23, 64, len(rows)])
    return heads.pooled(Rows(rows, rows, rows), offsets[:-1], offsets[1:], pooling)


def unit_vectors() -> list[Floats]:
    return [heads.unit(numbers(9, 384, scale=scale)) for scale in (1e-20, 1.0, 3e38)]


class Head:
    """Stands for an engine whose head gives these logits."""

    def head_rows(self, output: str) -> int:
        return 8

    def head(self, output: str, rows: Floats) -> Floats:
        return rows


def logprobs() -> list[Any]:
    """Log-probabilities of one token at each row, and of the likeliest."""
    rows = heads.HeadRows(numbers(20, 5003), np.arange(20))
    return list(heads.token_logprobs(Head(), rows, np.arange(20) * 7, 5))  # type: ignore[arg-type]


def entities() -> list[Any]:
    """Scores of words of several tokens, and of entities of several words."""
    model = WordPiece({"a": 0, "##b": 1, "##c": 2, "[UNK]": 3}, unk_token="[UNK]")
    tokenizer, text = Tokenizer(model), "abcb a abbbbbbc ab acc"
    tokenizer.pre_tokenizer = Whitespace()
    places, labels = TokenPlaces.of_encoding(tokenizer.encode(text)), ("O", "B-X", "I-X")
    scores = classification.probabilities(numbers(len(places.ids), 3))
    pieces = Pieces.from_tokenizer(tokenizer)
    tags = tagging.tag_tokens(text, places, scores, labels, pieces, "average", ())
    return [tag.score for tag in tags]


def small(dtype: VectorDType) -> NDArray[Any]:
    vectors = numbers(50, 101, scale=1.2)
    return to_dtype(vectors, dtype, [[-1.0] * 101, [0.9] * 101])


def comparison() -> list[Any]:
    figures = compare(numbers(40, 384), numbers(40, 384) + numbers(40, 384, scale=1e-3))
    return [figures.smallest_cosine, figures.mean_cosine, figures.shortest, figures.longest]


def places() -> dict[str, Make]:
    """Where answers are made of what the graph gave."""
    rows, labels = numbers(70, 384), numbers(60, 9)
    mixed = np.vstack([rows[:64, :40], zeros(), zeros()])
    makers: dict[str, Make] = {
        "unit length": unit_vectors,
        "log-probabilities": logprobs,
        "softmax of labels": lambda: classification.probabilities(labels, "softmax"),
        "sigmoid of labels": lambda: classification.probabilities(labels, "sigmoid"),
        "candidates of a mask": lambda: fill_mask.likeliest(numbers(1, 5003)[0], 9),
        "entities": entities,
        "cosines": lambda: similarity.similarities("cosine", *_unit_pair()),
        "sparse vectors": lambda: sparse.entries(numbers(1, 5003)[0], 200),
        "float16": lambda: Dense(numbers(30, 101, scale=60_000)).halved("pooled").joined,
        "mean of windows": lambda: arithmetic.weighted_mean(rows, np.arange(1, 71)),
        "MaxSim": lambda: max_sims(numbers(9, 128), [numbers(n, 128)[n // 2 :] for n in (3, 70)]),
        "joined vectors": lambda: join_clusters(heads.unit(numbers(60, 96)), Clusters(factor=2.0)),
        "figures of a stored index": comparison,
    }
    for pooling in get_args(Pooling):
        makers[f"pooling: {pooling}"] = lambda pooling=pooling: pooled(pooling, rows)
        makers[f"zeros, pooling: {pooling}"] = lambda pooling=pooling: pooled(pooling, mixed)
    for dtype in get_args(VectorDType):
        makers[f"vectors in {dtype}"] = lambda dtype=dtype: small(dtype)
    return makers


def _unit_pair() -> tuple[Floats, Floats]:
    vectors = heads.unit(numbers(60, 384))
    return vectors[0], vectors


def digest(made: Any) -> str:
    """The first 16 hexadecimal digits of the sha256 of all bits, shapes and dtypes."""
    sha256 = hashlib.sha256()
    for part in made if isinstance(made, list | tuple) else [made]:
        array = np.ascontiguousarray(part)
        sha256.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return sha256.hexdigest()[:16]


def digests() -> dict[str, str]:
    with np.errstate(over="ignore"):
        return {name: digest(make()) for name, make in {**functions(), **places()}.items()}


if __name__ == "__main__":
    print(json.dumps(digests(), indent=1))
