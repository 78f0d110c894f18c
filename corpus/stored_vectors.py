"""Vectors in a file, by the digests of their texts: an earlier job's, or any that are compared.

A job writes two digests beside each vector: of the row's text, so the texts are not needed, and of
the text with its vector, so a vector that another program changed is not taken.
"""

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from addnorm.corpus.errors import CorpusError
from addnorm.corpus.fingerprint_differences import Difference
from addnorm.corpus.job_plan import Plan, differences, plan_of
from addnorm.corpus.storage import Location, in_one_line, read_batches
from addnorm.corpus.vectors_file import VectorsFile
from addnorm.service.engine.batch import Ints
from addnorm.service.engine.fingerprint import moved
from addnorm.service.engine.tokenizer import Text

DIGEST_BYTES = 16
ROW_TYPE = pa.binary(2 * DIGEST_BYTES)  # of the text, and of the text with its vector
BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
NO_TEXT = b""  # in place of both digests, of a row that has no text and no vector
BATCH_ROWS = 4096  # read at once
Digests = NDArray[np.bytes_]  # [n] of DIGEST_BYTES
Flags = NDArray[np.bool_]


def digest_column(vector_column: str) -> str:
    """The name of the column of digests beside a column of vectors."""
    return f"{vector_column}_of_text"


def digests_of(texts: Iterable[Text | None]) -> Digests:
    """The digest of each text, or of each pair of texts; NO_TEXT for None."""
    return np.array([*map(_digest, texts)], f"S{DIGEST_BYTES}")


def _digest(text: Text | None) -> bytes:
    if text is None:
        return NO_TEXT
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in [text] if isinstance(text, str) else text:
        content = part.encode()
        digest.update(len(content).to_bytes(8) + content)
    return digest.digest()


def row_digests(text_digests: Digests, vectors: pa.Array) -> pa.Array:
    """The column beside the vectors of these texts."""
    both = np.stack([text_digests, _digests_with_vectors(text_digests, vectors)], axis=1)
    # numpy leaves zeros at an end out
    return pa.Array.from_buffers(ROW_TYPE, len(both), [None, pa.py_buffer(both.tobytes())])


def _digests_with_vectors(text_digests: Digests, vectors: pa.Array) -> Digests:
    """They belong to the bits of a row. Its place and the layout of the file do not matter, so rows
    may be moved, left out and stored anew."""
    if vectors.null_count:
        valid = np.flatnonzero(vectors.is_valid())
        digests_of_rows = np.where(text_digests == NO_TEXT, NO_TEXT, b"null").astype(
            text_digests.dtype
        )
        digests_of_rows[valid] = _digests_with_vectors(text_digests[valid], vectors.drop_null())
        return digests_of_rows
    texts, leaves = text_digests.tobytes(), _leaves(vectors)
    digests = list[bytes]()
    for row in range(len(vectors)):
        start = row * DIGEST_BYTES
        digest = hashlib.blake2b(texts[start : start + DIGEST_BYTES], digest_size=DIGEST_BYTES)
        for content, ends in leaves:
            part = content[ends[row] : ends[row + 1]]
            digest.update(len(part).to_bytes(8))
            digest.update(part)
        digests.append(digest.digest())
    return np.array(digests, f"S{DIGEST_BYTES}")


def _leaves(column: pa.Array) -> list[tuple[memoryview, list[int]]]:
    """The bytes of the numbers in a column of any depth, and where those of each row begin and end
    `[n + 1]`. What is null is told by bytes more."""
    leaves = list[tuple[memoryview, list[int]]]()
    if column.null_count:
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        leaves.append((is_valid.view(np.uint8).data, [*range(len(column) + 1)]))
    if pa.types.is_struct(column.type):
        return leaves + [leaf for field in column.flatten() for leaf in _leaves(field)]
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        ends = np.cumsum([0, *lengths]).tolist()
        return leaves + [
            (content, [inner[end] for end in ends]) for content, inner in _leaves(column.flatten())
        ]
    numbers = np.ascontiguousarray(column.to_numpy(zero_copy_only=False))
    ends = (np.arange(len(numbers) + 1) * numbers.itemsize).tolist()
    return [*leaves, (numbers.view(np.uint8).data, ends)]


def _read_rows(
    file: pq.ParquetFile, column: str, type_: pa.DataType | None
) -> Iterator[tuple[Digests, pa.Array, Flags]]:
    """Yields the digests of texts of a job's file, the vectors, and which are those that the job
    wrote for these texts. type_: of the vectors; None: the file's."""
    for batch in read_batches(file, BATCH_ROWS, [column, digest_column(column)]):
        cells = [cell or b"" for cell in batch.column(digest_column(column)).to_pylist()]
        digests = np.array(cells, f"S{2 * DIGEST_BYTES}").view(f"S{DIGEST_BYTES}").reshape(-1, 2)
        texts = np.ascontiguousarray(digests[:, 0])
        vectors = batch.column(column)
        try:
            vectors = vectors.cast(type_ or vectors.type)
        except pa.ArrowException:  # of another width, or no numbers
            vectors = pa.nulls(batch.num_rows, type_)
        yield texts, vectors, _digests_with_vectors(texts, vectors) == digests[:, 1]


def _check_columns(file: pq.ParquetFile, path: Location, column: str) -> str:
    """The reason why none of the vectors can be taken; empty if there is none. CorpusError if a
    column is missing."""
    for name in (column, digest_column(column)):
        if name not in file.schema_arrow.names:
            raise CorpusError(f"{path} has no column {name!r}: embed it again")
    type_ = file.schema_arrow.field(digest_column(column)).type
    # polars, DuckDB and pandas know no binary columns of one width
    if (type_.value_type if pa.types.is_dictionary(type_) else type_) not in (ROW_TYPE, *BINARY):
        return f"has no column {digest_column(column)!r} with digests of the vectors"
    return ""


def check_complete(path: Location, column: str, expected: Digests) -> None:
    """CorpusError if the file does not have the vectors of these texts, as a job wrote them."""
    again = "remove it to compute it again, or choose another OUT"
    with in_one_line(f"{path} cannot be read"):
        file, row = path.open_rows(page_checksum_verification=True), 0
        if reason := _check_columns(file, path, column):
            raise CorpusError(f"{path} {reason}: {again}")
        if file.metadata.num_rows != len(expected):
            num_rows = file.metadata.num_rows
            raise CorpusError(f"{path} has {num_rows} rows, IN has {len(expected)}: {again}")
        for texts_there, vectors, flags in _read_rows(file, column, None):
            is_same = flags & (texts_there == expected[row : row + len(vectors)])
            if not is_same.all():
                raise CorpusError(
                    f"{path}: row {row + int(is_same.argmin())} was changed by another program:"
                    f" {again}"
                )
            row += len(vectors)


class StoredVectors:
    """The digests are in memory, 25 bytes a row. The vectors are copied to a file without a name,
    since rows in another order are read from anywhere in it."""

    def __init__(
        self,
        digests: Digests,
        path: Location | None = None,
        column: str = "",
        flags: Flags | None = None,
        type_: pa.DataType | None = None,
    ) -> None:
        """flags: the rows of a job that have the vectors that it wrote: no others are found.
        type_: of these vectors."""
        self.path, self._column = path, column
        self.fingerprint: str | None = None  # the text in the metadata of any file of vectors
        self.remark = ""  # parts of the fingerprint that differ, though no bit moved
        self.has_plan = True  # else it is not known by which model: other programs lose metadata
        self._flags, self._type = flags, type_
        has_text = digests != NO_TEXT
        rows = np.flatnonzero(has_text if flags is None else has_text & flags)
        self._order = rows[np.argsort(digests[rows], kind="stable")]
        self._sorted = digests[self._order]
        self._is_used = np.zeros(len(rows), np.bool_)
        self._batches, self._starts = list[Any](), np.zeros(1, np.int64)

    @classmethod
    def none(cls) -> Self:
        return cls(digests_of([]))

    @classmethod
    def of_job(cls, path: Location, plan: Plan, type_: pa.DataType) -> tuple[Self, str]:
        """plan: of the job that goes on from it. type_: of that job's vectors. With it the reason
        why no row is taken, if there is one. CorpusError if no job wrote the file, or one still
        does."""
        parts = replace(path, path=f"{path.path}.parts")
        with in_one_line(f"--from {path} cannot be read"):
            if not path.exists():
                if parts.exists():
                    problem = f"another job is still writing it ({parts}): wait until it ends"
                    raise CorpusError(f"--from {path}: {problem}")
                raise CorpusError(f"--from {path}: the file does not exist")
            file = path.open_rows(page_checksum_verification=True)
        earlier_plan = plan_of(path)
        column = str((earlier_plan or plan).get("columns", {}).get("vector"))
        if earlier_plan:
            # the fingerprint has the precision, also where it is the model's default
            precision = {"precision": earlier_plan.get("options", {}).get("precision")}
            options = {**plan["options"], **precision}
            expected = {"options": options, "fingerprint": plan["fingerprint"]}
            if changed := differences(earlier_plan, expected):
                return cls.none(), f"belongs to another job ({'; '.join(changed)})"
        elif digest_column(column) not in file.schema_arrow.names:
            raise CorpusError(f"--from {path}: the file was not written by addnorm embed")
        if reason := _check_columns(file, path, column):
            return cls.none(), reason
        texts, flags = [digests_of([])], [np.zeros(0, np.bool_)]
        with in_one_line(f"--from {path} cannot be read"):
            for digests, _, is_written in _read_rows(file, column, type_):
                texts.append(digests)
                flags.append(is_written)
        stored = cls(np.concatenate(texts), path, column, np.concatenate(flags), type_)
        stored.has_plan = earlier_plan is not None
        if earlier_plan:
            old, new = earlier_plan.get("fingerprint", {}), plan["fingerprint"]
            harmless = moved(old, new)[1]
            stored.remark = ", ".join(
                str(Difference(part, old.get(part), new.get(part))) for part in harmless
            )
        if stored.num_changed and not len(stored._sorted):
            lost = "" if stored.has_plan else ", or is of another job: its metadata are lost"
            changed_rows = f"was changed by another program in all {stored.num_changed:,} rows"
            return cls.none(), changed_rows + lost
        return stored, ""

    def __len__(self) -> int:
        """Rows whose vectors can be taken."""
        return len(self._order)

    @property
    def num_changed(self) -> int:
        """Rows whose vectors are not those that the job wrote."""
        return 0 if self._flags is None else int(np.count_nonzero(~self._flags))

    @property
    def first_changed(self) -> int:
        assert self._flags is not None
        return int(self._flags.argmin())

    @classmethod
    def of_file(cls, path: Location, text_column: str, vector_column: str) -> Self:
        """CorpusError if the columns do not fit, or a row has no text or no finite vector."""
        file = VectorsFile(path, text_column, vector_column)
        digests = [digests_of(block.texts) for block in file.read(np.arange(file.num_rows))]
        stored = cls(np.concatenate(digests), path, vector_column)
        stored.fingerprint = file.fingerprint
        return stored

    def duplicates(self) -> Iterator[tuple[int, int]]:
        """Rows that have the text of another one, with that one's number."""
        for place in np.flatnonzero(self._sorted[1:] == self._sorted[:-1]).tolist():
            yield int(self._order[place]), int(self._order[place + 1])

    def find(self, digests: Digests) -> Ints:
        """The row of each text, or -1 where it has none."""
        places = np.searchsorted(self._sorted, digests)
        rows = np.full(len(digests), -1, np.int64)
        inside = np.flatnonzero(places < len(self._sorted))
        matches = inside[self._sorted[places[inside]] == digests[inside]]
        rows[matches] = self._order[places[matches]]
        self._is_used[places[matches]] = True  # of rows with one text, the first
        return rows

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
                file = self.path.open_rows(page_checksum_verification=True)
                field = file.schema_arrow.field(self._column)
                field = field.with_type(self._type or field.type)
                with pa.ipc.new_file(copy, schema := pa.schema([field])) as writer:
                    for vectors in self._vectors(file):
                        writer.write_batch(pa.RecordBatch.from_arrays([vectors], schema=schema))
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

    def _vectors(self, file: pq.ParquetFile) -> Iterator[pa.Array]:
        """CorpusError if a job's rows are no longer those that were found."""
        if self._flags is None:
            for batch in read_batches(file, BATCH_ROWS, [self._column]):
                yield batch.column(0)
            return
        row = 0
        for _, vectors, flags in _read_rows(file, self._column, self._type):
            if (self._flags[row : row + len(flags)] & ~flags).any():
                raise CorpusError(f"{self.path} changed while it was being read: start again")
            row += len(flags)
            yield vectors

    def take(self, rows: Ints) -> pa.Array:
        """The vectors of rows that it has."""
        within = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(within, kind="stable")
        taken = [
            self._batches[index].take(pa.array(rows[within == index] - self._starts[index]))
            for index in np.unique(within)
        ]
        return pa.concat_arrays(taken).take(pa.array(np.argsort(order, kind="stable")))
