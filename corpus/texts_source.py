"""Files of rows that have texts: Parquet, JSON lines or CSV, one or a folder of them,
which may have folders.

They are read in pieces, always the same ones. Memory does not grow with the files.
"""

import csv
import hashlib
import io
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from addnorm.corpus.errors import CorpusError
from addnorm.corpus.storage import Location, in_one_line, read_batches, reason
from addnorm.corpus.vectors_file import check_texts, not_utf8
from addnorm.service.engine.batch import Ints
from addnorm.service.engine.tokenizer import Text

PIECE_ROWS = 256
NUM_NAMED = 10  # bad rows
OPTIONS = ("--text-column", "--second-text-column")
Pieces = Iterator[pa.RecordBatch]
# what is done about rows whose text cannot be embedded
BadRows = Literal["refuse", "null", "skip"]


class Format(NamedTuple):
    """schema: of a file. read: its rows, with the columns of a schema in pieces of any size; a
    column that the file lacks is null."""

    schema: Callable[[Location], pa.Schema]
    read: Callable[[Location, pa.Schema], Pieces]


class Source:
    """Rows of one or more files, in the order of their paths, with all columns of all files. They
    are numbered as they are read, from 0. Rows that are skipped have a number all the same, and no
    place: places count the rows that stay.
    """

    def __init__(
        self, path: Location, text_columns: Sequence[str], bad_rows: BadRows = "refuse"
    ) -> None:
        """text_columns: one, or two for pairs. CorpusError if a file or a column does not fit."""
        self.path, self.text_columns, self._policy = path, list(text_columns), bad_rows
        self.bad_rows = dict[int, str]()  # by number, in order, why: read_texts() finds them
        with in_one_line(f"{path} cannot be read"):
            self.files = _files(path)  # by their paths within IN
        schemas = []
        for file in self.files.values():
            with in_one_line(f"{file} cannot be read"):
                schemas.append(FORMATS[file.suffix].schema(file))
        try:
            # what other programs store about the columns would not fit the result
            self.schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
        except pa.ArrowException as error:
            raise CorpusError(f"{path}: a column has different types: {reason(error)}") from None
        try:  # Parquet cannot have an object without fields, for instance
            pq.ParquetWriter(pa.BufferOutputStream(), self.schema).close()
        except pa.ArrowException as error:
            problem = f"its columns cannot be copied to the result: {reason(error)}"
            raise CorpusError(f"{path}: {problem}") from None
        names = self.schema.names
        if repeated := {name for name in names if names.count(name) > 1}:
            raise CorpusError(f"{path}: two columns have the name {min(repeated)!r}")
        for option, name in zip(OPTIONS, text_columns, strict=False):
            if name not in names:
                if not names:
                    raise CorpusError(f"{path} is empty")
                raise CorpusError(
                    f"{path} has no column {name!r}: choose one with {option}; its columns are"
                    f" {', '.join(names)}"
                )
            check_texts(self.schema.field(name).type, path, name)

    def digests(self) -> dict[str, str]:
        """Digests of the files' bytes, by their paths within IN."""
        digests = {}
        for name, path in self.files.items():
            with in_one_line(f"{path} cannot be read"), path.open() as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            digests[name] = digest.hexdigest()
        return digests

    def read_texts(self) -> Iterator[tuple[Ints, list[Text | None]]]:
        """The first reading: all rows piece by piece, their numbers `[n]` and texts. Rows that have
        no text, or none in UTF-8, are added to `bad_rows` and are None."""
        columns = pa.schema([self.schema.field(name) for name in self.text_columns])
        self.bad_rows, num_rows = {}, 0
        for piece in self._pieces(columns):
            bad = [bad_rows(piece.column(name), name, num_rows) for name in self.text_columns]
            for row, problem in sorted(item for problems in bad for item in problems.items()):
                self.bad_rows.setdefault(row, problem)
            rows = np.arange(num_rows, num_rows + piece.num_rows)
            yield rows, self._texts(piece, rows)
            num_rows += piece.num_rows
        if num_rows == (len(self.bad_rows) if self._policy == "skip" else 0):
            raise CorpusError(f"{self.path} has no rows" + (" to embed" if num_rows else ""))

    def refuse_bad_rows(self) -> None:
        """CorpusError names them, after the first reading, unless they are to be left out."""
        if not self.bad_rows or self._policy != "refuse":
            return
        rows = sorted(self.bad_rows)
        named = "; ".join(self.bad_rows[row] for row in rows[:NUM_NAMED])
        if (number := len(rows)) > 1:
            rest = f"; and {number - NUM_NAMED:,} more" if number > NUM_NAMED else ""
            named = f"{number:,} rows cannot be embedded: {named}{rest}"
        raise CorpusError(named)

    def checked_texts(self) -> Iterator[list[Text]]:
        """The texts of each piece. Ends with a CorpusError that names the bad rows, if any."""
        for _, texts in self.read_texts():
            yield [text for text in texts if text is not None]
        self.refuse_bad_rows()

    def is_skipped(self, row: int) -> bool:
        return self._policy == "skip" and row in self.bad_rows

    def numbers(self, places: Ints) -> Ints:
        """The numbers of rows by their places."""
        if self._policy != "skip":
            return places
        skipped = np.array(sorted(self.bad_rows), np.int64)
        return places + np.searchsorted(skipped - np.arange(len(skipped)), places, side="right")

    def pieces(self, start: int = 0) -> Pieces:
        """At most PIECE_ROWS rows each, from place `start`, with which a piece must begin."""
        row = place = 0
        for piece in self._pieces(self.schema):
            is_left = [not self.is_skipped(row + index) for index in range(piece.num_rows)]
            row += piece.num_rows
            if not all(is_left):
                piece = piece.filter(pa.array(is_left))
            if place >= start and piece.num_rows:
                yield piece
            place += piece.num_rows

    def _pieces(self, schema: pa.Schema) -> Pieces:
        for file in self.files.values():
            with in_one_line(f"{file} cannot be read"):
                for piece in FORMATS[file.suffix].read(file, schema):
                    for start in range(0, piece.num_rows, PIECE_ROWS):
                        yield piece.slice(start, PIECE_ROWS)

    def num_bytes(self, piece: pa.RecordBatch) -> Ints:
        """The bytes of each row's texts, in UTF-8."""
        sizes = np.zeros(piece.num_rows, np.int64)
        for name in self.text_columns:
            column: Any = piece.column(name)
            if isinstance(column, pa.DictionaryArray):
                column = column.dictionary_decode()
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
        return sizes

    def texts(self, piece: pa.RecordBatch, place: int) -> list[Text | None]:
        """The texts of a piece that begins at a place; None for bad rows."""
        return self._texts(piece, self.numbers(np.arange(place, place + piece.num_rows)))

    def _texts(self, piece: pa.RecordBatch, rows: Ints) -> list[Text | None]:
        good = [index for index, row in enumerate(rows.tolist()) if row not in self.bad_rows]
        readable = piece if len(good) == len(rows) else piece.take(pa.array(good, pa.int64()))
        columns = [readable.column(name).to_pylist() for name in self.text_columns]
        texts: list[Text | None] = [None] * len(rows)
        for index, text in zip(good, zip(*columns, strict=True), strict=True):
            texts[index] = text[0] if len(text) == 1 else text
        return texts

    def some_texts(self, places: Ints) -> Iterator[Text | None]:
        """The texts of some rows by their places, which are in order."""
        start = 0
        for piece in self.pieces():
            here = places[(places >= start) & (places < start + piece.num_rows)]
            if len(here):
                texts = self.texts(piece, start)
                yield from (texts[place - start] for place in here.tolist())
            start += piece.num_rows


def bad_rows(column: Any, name: str, first_row: int) -> dict[int, str]:
    """Row -> why it has no text. first_row: the number of the first one in the column."""
    problems = {
        first_row + index: f"row {first_row + index}: column {name!r} is null"
        for index in (np.flatnonzero(column.is_null()).tolist() if column.null_count else [])
    }
    for index in not_utf8(column):
        problems[first_row + index] = f"row {first_row + index}: column {name!r} is not UTF-8"
    return problems


def _files(path: Location) -> dict[str, Location]:
    """CorpusError if there is none that can be read."""
    endings = ", ".join(FORMATS)
    if path.is_folder():
        names = [PurePosixPath(name) for name in path.names_within()]
        visible = [name for name in names if not any(part.startswith(".") for part in name.parts)]
        files = {str(name): path / str(name) for name in visible if name.suffix in FORMATS}
        if not files:
            raise CorpusError(f"{path} has no files that end in {endings}")
        return files
    if path.suffix not in FORMATS:
        raise CorpusError(
            f"{path}: its name must end in one of {endings}; in a .jsonl file, a text is a line"
            ' {"text": "..."}'
        )
    if not path.exists():
        raise CorpusError(f"the file {path} does not exist")
    return {path.name: path}


def _fit(piece: Any, schema: pa.Schema) -> pa.RecordBatch:
    """A part of a table, with the columns and types of the schema."""
    names = {*piece.schema.names}
    columns = [
        piece.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(piece.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_parquet(path: Location, schema: pa.Schema) -> Pieces:
    file = path.open_rows()
    there = {*file.schema_arrow.names}
    names = [name for name in schema.names if name in there]
    for piece in read_batches(file, PIECE_ROWS, names):
        yield _fit(piece, schema)


def _csv_schema(path: Location) -> pa.Schema:
    """All columns are strings, so that they are carried over as they are written."""
    with io.TextIOWrapper(path.open(), newline="", encoding="utf-8-sig") as file:
        return pa.schema([(name, pa.string()) for name in next(csv.reader(file), [])])


def _read_csv(path: Location, schema: pa.Schema) -> Pieces:
    types = {field.name: field.type for field in _csv_schema(path)}
    with path.open() as file:
        for piece in pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
        ):
            yield _fit(piece, schema)


def _jsonl_schema(path: Location) -> pa.Schema:
    schema, num_rows = pa.schema([]), 0
    for rows in _read_json_rows(path):
        names = dict.fromkeys(name for row in rows for name in row)
        arrays = {
            name: _array(path, name, [row.get(name) for row in rows], num_rows) for name in names
        }
        num_rows += len(rows)
        of_rows = pa.schema([(name, array.type) for name, array in arrays.items()])
        schema = pa.unify_schemas([schema, of_rows], promote_options="permissive")
    return schema


def _read_jsonl(path: Location, schema: pa.Schema) -> Pieces:
    for rows in _read_json_rows(path):
        yield pa.RecordBatch.from_arrays(
            [pa.array([row.get(field.name) for row in rows], field.type) for field in schema],
            schema=schema,
        )


def _read_json_rows(path: Location) -> Iterator[list[dict[str, Any]]]:
    """PIECE_ROWS at a time. Empty lines are no rows."""
    rows = list[dict[str, Any]]()
    with path.open() as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line  # as some programs write
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise CorpusError(f"{path}, line {number} is not valid JSON: {error}") from None
            if not isinstance(row, dict):
                raise CorpusError(f"{path}, line {number} is not a JSON object")
            if line.count(b":") != len(row):  # one may stand in a string, or in an object within
                _refuse_repeated(line, f"{path}, line {number}")
            rows.append(row)
            if len(rows) == PIECE_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


def _array(path: Location, name: str, values: list[Any], first_row: int) -> pa.Array:
    """CorpusError names the first value of another type than those before it."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        types = [None if value is None else type(value) for value in values]
        first = next(filter(None, types))
        for row, type_ in enumerate(types, first_row):
            if type_ not in (None, first):
                raise CorpusError(
                    f"{path}, row {row}: column {name!r} is {type_.__name__}, and"
                    f" {first.__name__} in rows before it"
                ) from None
        raise


def _refuse_repeated(line: bytes, place: str) -> None:
    """CorpusError if a key stands twice: this parser takes the last value, others the first."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len({*names}) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise CorpusError(f"{place} has the key {repeated!r} twice")

    try:
        json.loads(line, object_pairs_hook=check)
    except RecursionError:
        raise CorpusError(f"{place} is nested too deep") from None


_JSONL = Format(_jsonl_schema, _read_jsonl)
FORMATS = {
    ".parquet": Format(lambda path: path.open_parquet().schema_arrow, _read_parquet),
    ".jsonl": _JSONL,
    ".ndjson": _JSONL,
    ".csv": Format(_csv_schema, _read_csv),
}
