"""A Parquet file of texts and vectors: its columns are checked, and sampled rows read in pieces.

Memory does not grow with the file, nor with its row groups.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from addnorm.corpus.errors import CorpusError
from addnorm.corpus.storage import Location, in_one_line, read_batches
from addnorm.service.engine.fingerprint import METADATA_KEY

BATCH_ROWS = 1024
NUMBERS = (pa.float32(), pa.float16(), pa.float64(), pa.int8(), pa.uint8())


class Sample(NamedTuple):
    """Rows of a file, in its order."""

    rows: NDArray[np.int64]  # [n], their numbers in the file, from 0
    texts: list[str]
    vectors: NDArray[Any]  # [n, width], in the file's type


class VectorsFile:
    """An open file that has the two columns."""

    def __init__(self, path: Location, text_column: str, vector_column: str) -> None:
        """CorpusError if the file or a column does not fit."""
        self.path, self.columns = path, (text_column, vector_column)
        self._where = f"{path} cannot be read as a Parquet file"
        with in_one_line(self._where):
            if path.is_folder():
                raise CorpusError(f"{path} is a folder: give one of its Parquet files")
            self._file, self._rows = path.open_parquet(), path.open_rows()
        self.num_rows: int = self._file.metadata.num_rows
        if not self.num_rows:
            raise CorpusError(f"{path} has no rows")
        check_texts(self._type("--text-column", text_column), path, text_column)
        type_ = self._type("--vector-column", vector_column)
        kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if not any(is_kind(type_) for is_kind in kinds) or type_.value_type not in NUMBERS:
            raise CorpusError(
                f"{path}: column {vector_column!r} is {type_}: vectors must be lists of the same"
                f" size, of {', '.join(map(str, NUMBERS))}; choose their column with"
                " --vector-column"
            )

    @property
    def fingerprint(self) -> str | None:
        """The text stored in the file's metadata."""
        stored = (self._file.metadata.metadata or {}).get(METADATA_KEY.encode())
        return None if stored is None else stored.decode(errors="replace")

    def draw_sample(self, num_rows: int, seed: int, may_lack: bool = False) -> Sample:
        """So many rows, drawn without repeats; all if the file has no more. CorpusError names a row
        that has no text or no vector. may_lack: rows without a vector are left out instead."""
        drawn = np.random.default_rng(seed).choice(
            self.num_rows, min(num_rows, self.num_rows), replace=False, shuffle=False
        )
        blocks = [*self.read(np.sort(drawn), may_lack)]
        if not blocks:
            raise CorpusError(f"{self.path}: no row of the sample has a vector")
        rows, vectors = ([*map(itemgetter(place), blocks)] for place in (0, 2))
        texts = [text for block in blocks for text in block.texts]
        return Sample(np.concatenate(rows), texts, np.concatenate(vectors))

    def read(self, rows: NDArray[np.int64], may_lack: bool = False) -> Iterator[Sample]:
        """These rows, block by block. CorpusError as of `draw_sample`."""
        width = None
        with in_one_line(self._where):
            for numbers, batch in self._pieces(rows):
                if may_lack:
                    has_vector = batch.column(self.columns[1]).is_valid()
                    numbers, batch = numbers[np.asarray(has_vector)], batch.filter(has_vector)
                if not len(numbers):
                    continue
                try:
                    texts = texts_of(batch.column(self.columns[0]), numbers)
                    vectors = numbers_of(batch.column(self.columns[1]), numbers)
                    if (width := width or vectors.shape[1]) != vectors.shape[1]:
                        raise CorpusError(
                            f"row {numbers[0]} has a vector of {vectors.shape[1]} numbers, the rows"
                            f" before it have {width}: all vectors must have the same size"
                        )
                except CorpusError as error:
                    raise CorpusError(f"{self.path}: {error}") from None
                yield Sample(numbers, texts, vectors)

    def _type(self, option: str, name: str) -> pa.DataType:
        schema = self._file.schema_arrow
        if schema.names.count(name) != 1:
            raise CorpusError(
                f"{self.path} has no column {name!r}: choose one with {option}; its columns are"
                f" {', '.join(schema.names)}"
            )
        return schema.field(name).type

    def _pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """These rows of the two columns, piece by piece: their numbers, and a RecordBatch of
        them."""
        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        groups = np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist()
        num_read = sum(sizes[group] for group in groups)
        with tqdm(total=num_read, desc="reading", unit=" rows", leave=False, disable=None) as bar:
            for group in groups:
                start = starts[group]
                for batch in read_batches(self._rows, BATCH_ROWS, list(self.columns), [group]):
                    here = rows[np.searchsorted(rows, start) :]
                    here = here[: np.searchsorted(here, start + batch.num_rows)]
                    if len(here):
                        yield here, batch.take(pa.array(here - start))
                    start += batch.num_rows
                    bar.update(batch.num_rows)


def check_texts(type_: pa.DataType, path: Location, name: str) -> None:
    kind = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise CorpusError(
            f"{path}: column {name!r} is {type_}, not text: choose a column of strings with"
            " --text-column"
        )


def not_utf8(texts: Any) -> list[int]:
    """Indices of the texts of an Arrow array that are not UTF-8. Parquet does not check it."""
    plain = texts.dictionary_decode() if isinstance(texts, pa.DictionaryArray) else texts
    broken = list[int]()
    try:
        plain.validate(full=True)
    except pa.ArrowInvalid:
        for index, text in enumerate(plain):
            try:
                text.as_py()
            except UnicodeDecodeError:
                broken.append(index)
    return broken


def texts_of(column: Any, rows: NDArray[np.int64]) -> list[str]:
    if broken := not_utf8(column):
        raise CorpusError(f"row {rows[broken[0]]} has a text that is not UTF-8")
    texts: list[str | None] = column.to_pylist()
    if None in texts:
        raise CorpusError(f"row {rows[texts.index(None)]} has null instead of a text")
    return texts  # type: ignore[return-value]


def numbers_of(column: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
    """[n, width]"""
    if column.null_count:
        raise CorpusError(
            f"row {rows[column.is_null().index(True).as_py()]} has null instead of a vector"
        )
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if unequal := np.flatnonzero(lengths != lengths[0]).tolist():
        row = unequal[0]
        raise CorpusError(
            f"row {rows[row]} has a vector of {lengths[row]} numbers, row {rows[0]} has one of"
            f" {lengths[0]}: all vectors must have the same size"
        )
    values, width = column.flatten(), int(lengths[0])
    if not width:
        raise CorpusError(f"row {rows[0]} has a vector without numbers")
    if values.null_count:
        row = values.is_null().index(True).as_py() // width
        raise CorpusError(f"row {rows[row]} has a vector with null among its numbers")
    vectors: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(-1, width)
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        row = rows[int(finite.argmin())]
        raise CorpusError(f"row {row} has a vector with a number that is not finite (NaN, inf)")
    return vectors
