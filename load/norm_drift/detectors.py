"""What is watched of a window of texts, and how far it is from the reference.

Each text becomes a row of numbers, once. A window's figure is made of the sum of its texts' rows
only, so that many windows are one matrix product. Knows no files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.load.norm_drift.rows import Measured
from addnorm.service.runtime.batch import Ints

Array = NDArray[np.float64]
Values = NDArray[np.floating[Any]] | NDArray[np.integer[Any]] | NDArray[np.bool_]
NUM_BINS = 10  # of a histogram: tenths of the reference, as is usual with PSI
NUM_FREQUENCIES = 12  # buckets: tokens that the reference never has, once, twice or thrice, ...
NUM_IDS = 2**16  # of tokens, at most
SHRINKAGE = 0.1  # of covariances
Rows = Callable[[Measured], Array]  # of n texts `[n, w]`


@dataclass(frozen=True, eq=False)
class Detector:
    """rows: of n texts `[n, w]`. drift: of the means of m windows' rows `[m, w]`, `[m]`: larger the
    further from the reference that it was fitted to."""

    rows: Rows
    drift: Callable[[Array], Array]


def fitted(reference: Measured) -> dict[str, Detector]:
    """Name -> what watches traffic for that which is unlike the reference."""
    return {**_of_norms(reference), **_of_vectors(reference), **_of_tokens(reference)}


def _of_norms(reference: Measured) -> dict[str, Detector]:
    """Histograms of all tokens' statistics, a column for each norm's mean and rstd; or means of
    each text."""
    edges = inner_edges(reference.norms)

    def histograms(of: Measured) -> Array:
        return counts(of.norms, edges, of.text_of_token, len(of)).reshape(len(of), -1)

    expected = histograms(reference).sum(0).reshape(-1, NUM_BINS)

    def each(rows: Array) -> Array:
        return psi(rows.reshape(len(rows), -1, NUM_BINS), expected)

    def means(of: Measured) -> Array:
        return per_text(of, of.norms)

    return {
        "norms: largest PSI": Detector(histograms, lambda rows: each(rows).max(1)),
        "norms: mean PSI": Detector(histograms, lambda rows: each(rows).mean(1)),
        "norms: largest shift": shift(reference, means),
        "norms: Mahalanobis": mahalanobis(reference, means),
    }


def _of_vectors(reference: Measured) -> dict[str, Detector]:
    mean = reference.vectors.mean(0, dtype=np.float64)
    axis, deviation = mean / np.linalg.norm(mean), reference.vectors.std(0, dtype=np.float64)

    def cosines(of: Measured) -> Array:
        return np.asarray(of.vectors @ axis[:, None])

    def distances(of: Measured) -> Array:
        scaled = (of.vectors - mean) / deviation
        return np.asarray(np.linalg.norm(scaled, axis=1, keepdims=True))

    return {
        "vectors: cosine of means": Detector(
            _vectors, lambda rows: 1 - rows @ axis / np.linalg.norm(rows, axis=1)
        ),
        "vectors: mean cosine": shift(reference, cosines),
        "vectors: mean distance": shift(reference, distances),
        "vectors: Mahalanobis": mahalanobis(reference, _vectors),
    }


def _of_tokens(reference: Measured) -> dict[str, Detector]:
    """What can be had without the model."""
    seen = np.bincount(reference.tokens, minlength=NUM_IDS)

    def unseen(of: Measured) -> Array:
        return per_text(of, seen[of.tokens, None] == 0)

    return {
        "tokens: mean length": shift(reference, _lengths),
        "tokens: mean 1 / length": shift(reference, _inverse_lengths),
        "tokens: PSI of lengths": psi_of(reference, _lengths),
        "tokens: number a word": shift(reference, _per_word),
        "tokens: PSI of frequencies": _psi_of_frequencies(reference, seen),
        "tokens: share of unseen": shift(reference, unseen),
    }


def _psi_of_frequencies(reference: Measured, seen: Ints) -> Detector:
    """seen: how often the reference has each token id."""
    bucket = np.minimum(np.log2(1 + seen).astype(np.int64), NUM_FREQUENCIES - 1)
    edges = np.arange(NUM_FREQUENCIES - 1.0)[:, None]

    def histograms(of: Measured) -> Array:
        found = counts(bucket[of.tokens, None], edges, of.text_of_token, len(of))
        return found.reshape(len(of), -1)

    expected = histograms(reference).sum(0)
    return Detector(histograms, lambda rows: psi(rows, expected))


def _vectors(of: Measured) -> Array:
    return of.vectors.astype(np.float64)


def _lengths(of: Measured) -> Array:
    return of.lengths[:, None].astype(np.float64)


def _inverse_lengths(of: Measured) -> Array:
    return 1 / _lengths(of)


def _per_word(of: Measured) -> Array:
    return (of.lengths / of.num_words)[:, None]


def shift(reference: Measured, of_texts: Rows) -> Detector:
    """The largest distance of a window's means from the reference's, in standard deviations."""
    rows = of_texts(reference)
    mean, deviation = rows.mean(0), np.maximum(rows.std(0), 1e-9)
    return Detector(of_texts, lambda means: np.abs((means - mean) / deviation).max(1))


def mahalanobis(reference: Measured, of_texts: Rows) -> Detector:
    """The distance of a window's means from the reference's, all columns together.

    The covariance is shrunk by a tenth towards its diagonal: there may be few texts for a column.
    """
    rows = of_texts(reference)
    mean, covariance = rows.mean(0), np.cov(rows.T)
    covariance[~np.eye(len(mean), dtype=bool)] *= 1 - SHRINKAGE
    inverse = np.linalg.inv(covariance)
    return Detector(
        of_texts, lambda means: np.einsum("mi,mi->m", (means - mean) @ inverse, means - mean)
    )


def psi_of(reference: Measured, of_texts: Rows) -> Detector:
    """PSI of the texts' values, the mean over columns."""
    edges = inner_edges(of_texts(reference))

    def histograms(of: Measured) -> Array:
        return counts(of_texts(of), edges, np.arange(len(of)), len(of)).reshape(len(of), -1)

    expected = histograms(reference).sum(0).reshape(-1, NUM_BINS)
    return Detector(
        histograms, lambda rows: psi(rows.reshape(len(rows), -1, NUM_BINS), expected).mean(1)
    )


def per_text(of: Measured, values: Values) -> Array:
    """Means over each text's tokens `[t, k]` -> `[n, k]`."""
    return np.add.reduceat(values, of.offsets[:-1], dtype=np.float64) / of.lengths[:, None]


def psi(shares: Array, expected: Array) -> Array:
    """Population stability index of histograms `[..., bins]`: counts or shares of both.

    An empty bin counts as a share of 1e-4.
    """
    p, q = (
        np.maximum(each / np.maximum(each.sum(-1, keepdims=True), 1e-12), 1e-4)
        for each in (shares, expected)
    )
    return np.asarray(((p - q) * np.log(p / q)).sum(-1))


def inner_edges(values: Values, num_bins: int = NUM_BINS) -> Array:
    """Of bins that hold equal shares of the values `[n, k]` -> `[num_bins - 1, k]`."""
    return np.quantile(values, np.arange(1, num_bins) / num_bins, axis=0)


def counts(values: Values, edges: Array, texts: Ints, num_texts: int) -> Array:
    """How many values `[t, k]` of each text fall into each bin -> `[num_texts, k, bins]`."""
    num_bins = len(edges) + 1
    return np.stack(
        [
            np.bincount(
                texts * num_bins + np.searchsorted(edges[:, column], values[:, column]),
                minlength=num_texts * num_bins,
            ).reshape(num_texts, num_bins)
            for column in range(values.shape[1])
        ],
        axis=1,
    ).astype(np.float64)


def threshold(null: Array, false_alarms: float) -> float:
    """Exceeded by at most this share of the null's figures."""
    ordered = np.sort(null)
    return float(ordered[len(ordered) - 1 - int(false_alarms * len(ordered))])
