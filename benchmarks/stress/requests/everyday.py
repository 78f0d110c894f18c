"""Seeded requests of everyday sizes, each of another shape. Knows no server."""

import json
from collections.abc import Iterator

import numpy as np

from addnorm.service.runtime.manifest import Limits


def bodies(limits: Limits, precisions: list[str], num_requests: int) -> Iterator[bytes]:
    """1 to 6 sequences each, mostly short; one in fifty is as long as the model allows."""
    draws = np.random.default_rng(0)
    for _ in range(num_requests):
        longest = limits.max_positions if draws.random() < 0.02 else min(48, limits.max_positions)
        lengths = draws.integers(1, longest + 1, draws.integers(1, 7))
        ids = np.where(
            np.arange(lengths.max()) < lengths[:, None], draws.integers(0, limits.vocab_size), 0
        )
        body = {
            "input_ids": ids.tolist(),
            "attention_mask": (np.arange(lengths.max()) < lengths[:, None]).astype(int).tolist(),
            "outputs": [
                str(draws.choice(["pooled", "activations", "norm_stats"], p=[0.8, 0.1, 0.1]))
            ],
            "precision": str(draws.choice(precisions)),
        }
        yield json.dumps(body).encode()
