"""How far the answers of two versions are apart. Knows values, no models."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from addnorm.service.arithmetic import dots, lengths
from addnorm.service.inference.outputs import Logits, Output, Pooled
from addnorm.service.inference.outputs.values import Dense, Value
from addnorm.service.runtime.batch import Floats

COSINE, SCORE = "cosine", "score"  # of vectors; of scores, the largest absolute difference
Values = Mapping[type[Output[Any]], Value]
Compared = dict[str, Floats]  # what can be compared of an answer, by the measure; a row a sequence


def comparable(values: Values) -> Compared:
    """Vectors in numbers, and the logits that sequences have. Empty if there are none."""
    found = ((COSINE, values.get(Pooled)), (SCORE, values.get(Logits)))
    return {
        measure: value.joined
        for measure, value in found
        if isinstance(value, Dense) and value.joined.ndim == 2 and value.joined.dtype.kind == "f"
    }


def differences(ours: Compared, theirs: Compared) -> dict[str, list[float]]:
    """A difference for each sequence, by the measure. ValueError if the shapes differ."""
    made: dict[str, list[float]] = {}
    for measure, left in ours.items():
        right = theirs.get(measure)
        if right is None or right.shape != left.shape:
            raise ValueError(f"{measure}: shapes {left.shape} and {getattr(right, 'shape', None)}")
        compare = _cosines if measure == COSINE else _largest
        made[measure] = compare(left.astype(np.float64), right.astype(np.float64)).tolist()
    return made


def _cosines(left: Floats, right: Floats) -> Floats:
    """1 where both are zero, as of rows of pads only."""
    product = dots(left, right)[:, 0]
    scale = (lengths(left) * lengths(right))[:, 0]
    both_zero = ~left.any(axis=1) & ~right.any(axis=1)
    made = np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    cosines: Floats = np.clip(np.where(both_zero, 1.0, made), -1.0, 1.0)
    return cosines


def _largest(left: Floats, right: Floats) -> Floats:
    largest: Floats = np.abs(left - right).max(axis=1)
    return largest
