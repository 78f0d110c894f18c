"""How alike vectors are. Knows no requests."""

from addnorm.service.arithmetic import dots
from addnorm.service.runtime.batch import Floats


def cosines(vector: Floats, others: Floats) -> Floats:
    """vector `[w]` and others `[n, w]`, all of length 1 -> cosines `[n]`. Each one's bits depend on
    its two vectors only. None is beyond 1."""
    return dots(others, vector)[:, 0].clip(-1, 1)
