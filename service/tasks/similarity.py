"""How alike vectors are. Knows no requests."""

import numpy as np

from addnorm.service.arithmetic import dots, row_sums
from addnorm.service.runtime.batch import Floats
from addnorm.service.runtime.manifest import Similarity


def similarities(function: Similarity, vector: Floats, others: Floats) -> Floats:
    """vector `[w]` and others `[n, w]` -> `[n]`, the higher the more alike, as
    sentence-transformers has them: distances are negative. For cosines, all vectors are of length
    1, and none is beyond 1. Each one's bits depend on its two vectors only."""
    if function in ("cosine", "dot"):
        products: Floats = dots(others, vector)[:, 0]
        if function == "cosine":
            products = products.clip(-1, 1)
        return products
    differences = np.abs(others - vector)
    if function == "manhattan":
        return -row_sums(differences)[:, 0]
    return -np.sqrt(row_sums(differences * differences)[:, 0])
