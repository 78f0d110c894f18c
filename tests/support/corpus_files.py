"""Rows of short texts, as tables and as files of each format; what jobs of them are done with."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from addnorm.corpus import embedder
from addnorm.service.server.wiring import Service
from tests.support.texts import WORDS


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@contextmanager
def opened_once() -> Iterator[Callable[..., Service]]:
    """Opens each bundle once: loading one takes longer than embedding a file."""
    services = dict[Path, Service]()

    def opened(bundle: Path, **settings: Any) -> Service:
        if bundle not in services:
            services[bundle] = embedder.open_service(bundle, **settings)
        return replace(services[bundle], to_close=())

    yield opened
    for service in services.values():
        service.close()


def table(num_rows: int, seed: int = 0) -> pa.Table:
    """Mixed lengths, repeats, an empty text, and columns to carry over."""
    words = [word for word in WORDS if word.isalpha()]
    draws = np.random.default_rng(seed)
    texts = [" ".join(draws.choice(words, int(draws.integers(1, 9)))) for _ in range(num_rows)]
    texts[num_rows // 2] = ""
    return pa.table(
        {
            "id": [f"{row:05}" for row in range(num_rows)],
            "text": texts,
            "language": ["en" if row % 3 else "de" for row in range(num_rows)],
        }
    )


def write(rows: pa.Table, path: Path) -> Path:
    """Writes rows in the format that the file's name says."""
    if path.suffix == ".parquet":
        pq.write_table(rows, path, row_group_size=300)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows.column_names)
            writer.writeheader()
            writer.writerows(rows.to_pylist())
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return path
