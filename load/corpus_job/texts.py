"""Made files of short texts. Knows no bundle but its tokenizer."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from addnorm.load.bench.stream import PROFILES, log_normal_lengths
from addnorm.load.rerank.requests import words_of

ROW_GROUP = 10_000


def write(path: Path, num_rows: int, bundle: Path, longest: int = 128) -> Path:
    """Texts of words that are one token each, with lengths as in the profile `small` of `make
    bench`: 30 tokens on average, 70 % padding if batched as they come."""
    draws, words = np.random.default_rng(0), np.array(words_of(bundle))
    lengths = np.clip(log_normal_lengths(PROFILES["small"], num_rows, draws), 1, longest - 2)
    texts = [" ".join(draws.choice(words, length)) for length in lengths.tolist()]
    table = pa.table(
        {
            "id": np.arange(num_rows),
            "text": texts,
            "language": ["en" if row % 3 else None for row in range(num_rows)],
        }
    )
    pq.write_table(table, path, row_group_size=ROW_GROUP)
    return path
