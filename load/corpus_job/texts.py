"""Made files of short texts. Knows no bundle but its tokenizer."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from addnorm.load.bench.stream import PROFILES, log_normal_lengths
from addnorm.load.rerank.requests import words_of

ROW_GROUP = 10_000


def write(path: Path, num_rows: int, bundle: Path, profile: str = "small") -> Path:
    """Texts of words that are one token each, with lengths as in a profile of `make bench`: `small`
    has 30 on average, `tiny` 4."""
    draws, words = np.random.default_rng(0), np.array(words_of(bundle))
    lengths = log_normal_lengths(PROFILES[profile], num_rows, draws)
    texts = [" ".join(draws.choice(words, length)) for length in lengths]
    table = pa.table(
        {
            "id": np.arange(num_rows),
            "text": texts,
            "language": ["en" if row % 3 else None for row in range(num_rows)],
        }
    )
    pq.write_table(table, path, row_group_size=ROW_GROUP)
    return path
