"""The result of an earlier job, of which the vectors of equal texts are taken over.

A text is known by its digest, a column of every result. So the earlier texts are not needed.
"""

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from addnorm.corpus.errors import CorpusError
from addnorm.corpus.parts import Plan, differences, plan_of
from addnorm.corpus.storage import Location, in_one_line, read_batches
from addnorm.service.engine.batch import Ints
from addnorm.service.engine.tokenizer import Text

DIGEST_BYTES = 16
DIGEST_TYPE = pa.binary(DIGEST_BYTES)
BATCH_ROWS = 4096  # read at once
Digests = NDArray[np.bytes_]  # [n] of DIGEST_BYTES


def digest_column(vector_column: str) -> str:
    """The name of the column of digests beside a column of vectors."""
    return f"{vector_column}_of_text"


def digests_of(texts: Sequence[Text]) -> Digests:
    """The digest of each text, or of each pair of texts."""
    return np.array([*map(_digest, texts)], f"S{DIGEST_BYTES}")


def _digest(text: Text) -> bytes:
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in [text] if isinstance(text, str) else text:
        content = part.encode()
        found.update(len(content).to_bytes(8) + content)
    return found.digest()


class EarlierJob:
    """Its digests are in memory, 24 bytes a row. Its vectors are copied to a file without a name,
    since rows in another order are read from anywhere in it."""

    def __init__(self, digests: Digests, path: Location | None = None, column: str = "") -> None:
        self._path, self._column = path, column
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]
        self._is_used = np.zeros(len(digests), np.bool_)
        self._batches, self._starts = list[Any](), np.zeros(1, np.int64)

    @classmethod
    def none(cls) -> Self:
        return cls(digests_of([]))

    @classmethod
    def read(cls, path: Location, plan: Plan) -> tuple[Self, list[str]]:
        """plan: of the job that goes on from it. With it all that makes vectors other ones: where
        this is not empty, no row is known. CorpusError if no job wrote the file, or one still
        does."""
        parts = replace(path, path=f"{path.path}.parts")
        with in_one_line(f"--from {path} cannot be read"):
            if not path.exists() and parts.exists():
                raise CorpusError(
                    f"--from {path}: another job still writes it ({parts}): let it end"
                )
            if not path.exists():
                raise CorpusError(f"--from {path}: there is no such file")
            file = path.open_parquet(page_checksum_verification=True)
        found = plan_of(path)
        if found is None:
            raise CorpusError(f"--from {path}: no job of addnorm embed made it")
        if changed := differences(found, {name: plan[name] for name in ("options", "fingerprint")}):
            return cls.none(), changed
        column = str(found.get("columns", {}).get("vector"))
        for name in (column, digest_column(column)):
            if name not in file.schema_arrow.names:
                raise CorpusError(f"--from {path} has no column {name!r}: embed it again")
        if (type_ := file.schema_arrow.field(digest_column(column)).type) != DIGEST_TYPE:
            raise CorpusError(
                f"--from {path}: column {digest_column(column)!r} is {type_}, not {DIGEST_TYPE}"
            )
        with in_one_line(f"--from {path} cannot be read"):
            read = [
                np.array(batch.column(0).to_pylist(), f"S{DIGEST_BYTES}")
                for batch in read_batches(file, BATCH_ROWS, [digest_column(column)])
            ]
        return cls(np.concatenate(read), path, column), []

    def find(self, digests: Digests) -> Ints:
        """The row of each text, or -1 where it has none."""
        places = np.searchsorted(self._sorted, digests)
        found = np.full(len(digests), -1, np.int64)
        inside = np.flatnonzero(places < len(self._sorted))
        known = inside[self._sorted[places[inside]] == digests[inside]]
        found[known] = self._order[places[known]]
        self._is_used[places[known]] = True  # of rows with one text, the first
        return found

    @property
    def num_gone(self) -> int:
        """Rows whose text was not found again."""
        firsts = np.searchsorted(self._sorted, self._sorted)
        return int(np.count_nonzero(~self._is_used[firsts]))

    @contextmanager
    def open(self, folder: str | None) -> Iterator[None]:
        """Within it, vectors can be taken. folder: where the copy is made; None: TMPDIR."""
        if self._path is None or not self._is_used.any():
            yield
            return
        with TemporaryFile(dir=folder) as copy:
            with in_one_line(f"--from {self._path} cannot be copied"):
                file = self._path.open_parquet(page_checksum_verification=True)
                field = file.schema_arrow.field(self._column)
                with pa.ipc.new_file(copy, pa.schema([field])) as writer:
                    for batch in read_batches(file, BATCH_ROWS, [self._column]):
                        writer.write_batch(batch)
                copy.flush()
            mapped = mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)
            opened = pa.ipc.open_file(pa.py_buffer(mapped))
            self._batches = [
                opened.get_batch(i).column(0) for i in range(opened.num_record_batches)
            ]
            self._starts = np.cumsum([0, *map(len, self._batches)])
            try:
                yield
            finally:
                self._batches = []

    def take(self, rows: Ints) -> pa.Array:
        """The vectors of rows that it has."""
        within = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(within, kind="stable")
        taken = [
            self._batches[index].take(pa.array(rows[within == index] - self._starts[index]))
            for index in np.unique(within)
        ]
        return pa.concat_arrays(taken).take(pa.array(np.argsort(order, kind="stable")))
