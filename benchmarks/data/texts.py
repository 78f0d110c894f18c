"""Seeded texts of words that are one token each. Knows no server."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from addnorm.load.stream import PROFILES, log_normal_lengths

ROW_GROUP = 10_000


def words_of(checkpoint: Path) -> list[str]:
    """Words that the checkpoint's tokenizer makes one token of, wherever they stand."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    words = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha())
    encoded = tokenizer.encode_batch([f"{word} {word}" for word in words], add_special_tokens=False)
    return [word for word, encoding in zip(words, encoded, strict=True) if len(encoding) == 2]


def write(path: Path, num_rows: int, bundle: Path, profile: str = "small") -> Path:
    """A Parquet file of texts of words of one token each, as long as in a profile of the load
    streams: `small` has 30 on average, `tiny` 4."""
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
