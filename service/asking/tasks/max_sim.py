"""MaxSim, the score of late interaction: for each vector of a query its largest product with a
vector of the document, added up (Khattab and Zaharia, arXiv:2004.12832, section 3.3).

Its products are exact: see `WholeNumbers`.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from addnorm.service.arithmetic import row_sums
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.whole_numbers import WholeNumbers, products

PIECE_TOKENS = 4096  # of documents that are compared in one step: about a millisecond


def max_sims(query: Floats, documents: Sequence[Floats], is_mean: bool = False) -> Floats:
    """The MaxSim of a query `[q, w]` with each document `[d, w]`, `[num_documents]`; 0 where one of
    them has no vector. All are float32 and finite.

    is_mean: the sum is divided by q.
    """
    scores = np.zeros(len(documents), np.float32)
    if not len(query):
        return scores
    query_numbers, query_exponent = WholeNumbers.of(query)
    places, num_tokens = list[int](), 0
    for place, document in enumerate(documents):
        places += [place] if len(document) else []
        num_tokens += len(document)
        if num_tokens >= PIECE_TOKENS or place == len(documents) - 1:
            piece = [WholeNumbers.of(documents[at]) for at in places]
            if piece:
                sums = _sums(query_numbers, piece, query_exponent)
                scores[places] = sums / len(query) if is_mean else sums
            places, num_tokens = [], 0
            checkpoint()
    return scores


def _sums(
    query: NDArray[np.float64], documents: Sequence[WholeNumbers], query_exponent: int
) -> NDArray[np.float64]:
    """The sum of largest products with each document. None of them is empty."""
    lengths = [len(document.numbers) for document in documents]
    cosines = products(query, np.concatenate([document.numbers for document in documents]))
    starts = [0, *accumulate(lengths)][:-1]
    largest = np.maximum.reduceat(cosines, starts, axis=1)  # [q, num_documents]
    exponents = np.array([document.exponent for document in documents]) + query_exponent
    sums: NDArray[np.float64] = row_sums(np.ascontiguousarray(largest.T))[:, 0]
    scores: NDArray[np.float64] = np.ldexp(sums, exponents)
    return scores
