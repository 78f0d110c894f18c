"""Vectors in a file, by the digests of their texts: an earlier job's, or any that are compared.

A job writes the digests beside its vectors, so its texts are not needed.
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
from addnorm.corpus.vectors_file import VectorsFile, numbers_of, texts_of
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


class StoredVectors:
    """The digests are in memory, 24 bytes a row. The vectors are copied to a file without a name,
    since rows in another order are read from anywhere in it."""

    def __init__(self, digests: Digests, path: Location | None = None, column: str = "") -> None:
        self.path, self._column = path, column
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]
        self._is_used = np.zeros(len(digests), np.bool_)
        self._batches, self._starts = list[Any](), np.zeros(1, np.int64)

    @classmethod
    def none(cls) -> Self:
        return cls(digests_of([]))

    @classmethod
    def of_job(cls, path: Location, plan: Plan) -> tuple[Self, list[str]]:
        """plan: of the job that goes on from it. With it all that makes vectors other ones: where
        this is not empty, no row is known. CorpusError if no job wrote the file, or one still
        does."""
        parts = replace(path, path=f"{path.path}.parts")
        with in_one_line(f"--from {path} cannot be read"):
            if not path.exists():
                if parts.exists():
                    why = f"another job still writes it ({parts}): let it end"
                    raise CorpusError(f"--from {path}: {why}")
                raise CorpusError(f"--from {path}: there is no such file")
            file = path.open_parquet(page_checksum_verification=True)
        found = plan_of(path)
        if found is None:
            raise CorpusError(f"--from {path}: no job of addnorm embed made it")
        # the fingerprint has the precision, also where it is the model's default
        precision = {"precision": found.get("options", {}).get("precision")}
        own = {"options": {**plan["options"], **precision}, "fingerprint": plan["fingerprint"]}
        if changed := differences(found, own):
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

    @classmethod
    def of_file(cls, path: Location, text_column: str, vector_column: str) -> Self:
        """CorpusError if the columns do not fit, or a row has no text or no finite vector."""
        file, read, row = VectorsFile(path, text_column, vector_column), list[Digests](), 0
        width = None
        with in_one_line(f"{path} cannot be read"):
            for batch in read_batches(
                path.open_parquet(), BATCH_ROWS, [text_column, vector_column]
            ):
                rows = np.arange(row, row + batch.num_rows)
                try:
                    read.append(digests_of(texts_of(batch.column(text_column), rows)))
                    vectors = numbers_of(batch.column(vector_column), rows)
                    if (width := width or vectors.shape[1]) != vectors.shape[1]:
                        raise CorpusError(
                            f"row {row} has a vector of {vectors.shape[1]} numbers, row 0 one of"
                            f" {width}: vectors have one size"
                        )
                except CorpusError as error:
                    raise CorpusError(f"{path}: {error}") from None
                row += batch.num_rows
        return cls(np.concatenate(read), file.path, vector_column)

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Rows that have the text of another one, with that one's number."""
        for place in np.flatnonzero(self._sorted[1:] == self._sorted[:-1]).tolist():
            yield int(self._order[place]), int(self._order[place + 1])

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
        """Rows whose text was not looked for."""
        firsts = np.searchsorted(self._sorted, self._sorted)
        return int(np.count_nonzero(~self._is_used[firsts]))

    @contextmanager
    def open(self, folder: str | None, of_all: bool = False) -> Iterator[None]:
        """Within it, vectors can be taken: of all rows, or of none if none was found. folder: where
        the copy is made; None: TMPDIR."""
        if self.path is None or not (of_all or self._is_used.any()):
            yield
            return
        with TemporaryFile(dir=folder) as copy:
            with in_one_line(f"{self.path} cannot be copied"):
                file = self.path.open_parquet(page_checksum_verification=True)
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
