"""How alike vectors are, as sentence-transformers computes it."""

from typing import get_args

import numpy as np
import pytest

from addnorm.service.asking.tasks.similarity import similarities
from addnorm.service.engine.manifest import Similarity

DRAWS = np.random.default_rng(0)
VECTOR, OTHERS = DRAWS.normal(size=7).astype(np.float32), DRAWS.normal(size=(5, 7))
FORMULAS = {
    "cosine": lambda a, b: a @ b,
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.linalg.norm(a - b),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


@pytest.mark.parametrize("function", get_args(Similarity))
def test_each_function_is_its_formula(function: Similarity) -> None:
    vector, others = VECTOR, OTHERS.astype(np.float32)
    if function == "cosine":
        vector = vector / np.linalg.norm(vector)
        others = others / np.linalg.norm(others, axis=1, keepdims=True)
    expected = [FORMULAS[function](vector, other) for other in others.astype(np.float64)]
    scores = similarities(function, vector, others)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    alone = [similarities(function, vector, other[None])[0] for other in others]
    assert scores.tolist() == alone


def test_no_cosine_is_beyond_1() -> None:
    vector = np.full(3, 0.57735032, np.float32)
    assert similarities("cosine", vector, vector[None]) == 1
