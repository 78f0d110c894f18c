"""How alike vectors are. Knows no requests."""

import numpy as np

from addnorm.service.runtime.batch import Floats


def cosines(vector: Floats, others: Floats) -> Floats:
    """vector `[w]` and others `[n, w]`, all of length 1 -> cosines `[n]`. Each one's bits depend on
    its two vectors only: a matrix product would choose its kernel by n. None is beyond 1."""
    products = np.fromiter((np.dot(vector, other) for other in others), np.float32, len(others))
    return products.clip(-1, 1)
