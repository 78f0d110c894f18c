"""Similarity of vectors. Knows no requests."""

import numpy as np

from addnorm.service.arithmetic import dots, row_sums
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.manifest import Similarity


def similarities(function: Similarity, vector: Floats, others: Floats) -> Floats:
    """vector `[w]` and others `[n, w]` -> `[n]`, the higher the more alike, as
    sentence-transformers has them: distances are negative. For cosines, all vectors are of length
    1, and none is beyond 1. Each one's bits depend on its two vectors only."""
    if function in ("cosine", "dot"):
        sums = dots(others, vector)
    elif function == "manhattan":
        sums = -row_sums(np.abs(others - vector))
    else:
        sums = -np.sqrt(row_sums((others - vector) * (others - vector)))
    likeness: Floats = sums[:, 0]
    return likeness.clip(-1, 1) if function == "cosine" else likeness
