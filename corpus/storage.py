"""Places of files: on this machine's disks, or in a store that pyarrow knows by a URI (`s3://`).

Knows no formats but Parquet, which is read in pieces from either.
"""

import errno
import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from addnorm.corpus.errors import CorpusError

BUFFER_BYTES = 2**20  # read at once
MOST_BYTES = 16 * 2**20  # of the texts of rows that are in memory at once
MOST_ROW_BYTES = 2**26
_DISK = fs.LocalFileSystem()


@dataclass(frozen=True)
class Location:
    """A file or a folder, which need not exist."""

    path: str  # as the file system has it
    files: fs.FileSystem = field(default_factory=lambda: _DISK)
    prefix: str = ""  # of a store's paths, in messages. Without what a URI says of keys

    @classmethod
    def parse(cls, name: str | Path) -> Self:
        """A path of the disk, or a URI. CorpusError if there is no such store."""
        scheme = re.match(r"([a-z][a-z0-9+.-]*://)", str(name))
        if scheme is None:
            return cls(str(Path(name)))
        try:
            files, path = fs.FileSystem.from_uri(str(name))
        except (pa.ArrowException, OSError) as error:
            address = scheme[1] + str(name).removeprefix(scheme[1]).rpartition("@")[2].split("?")[0]
            reason = " ".join(str(error).replace(str(name), address).split())
            raise CorpusError(f"{address}: {reason}") from None
        if isinstance(files, fs.LocalFileSystem):
            return cls(path)
        return cls(path.rstrip("/"), files, scheme[1])

    def __str__(self) -> str:
        return f"{self.prefix}{self.path}"

    def __truediv__(self, name: str) -> Self:
        return replace(self, path=f"{self.path}/{name}")

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    @property
    def on_disk(self) -> bool:
        return self.files is _DISK

    def resolve(self) -> Self:
        """The place that a link leads to. Stores have no links."""
        return replace(self, path=os.path.realpath(self.path)) if self.on_disk else self

    def is_within(self, location: "Location") -> bool:
        """True if this is that location, or lies in it at any depth."""
        inner, outer = self.resolve(), location.resolve()
        same = (inner.on_disk, inner.prefix) == (outer.on_disk, outer.prefix)
        return same and PurePosixPath(inner.path).is_relative_to(outer.path)

    def exists(self) -> bool:
        if self.on_disk:
            return Path(self.path).exists()
        return bool(self.files.get_file_info(self.path).type != fs.FileType.NotFound)

    def is_folder(self) -> bool:
        if self.on_disk:
            return Path(self.path).is_dir()
        return bool(self.files.get_file_info(self.path).type == fs.FileType.Directory)

    def names_within(self) -> list[str]:
        """Paths of the folder's files at any depth, from the folder on, in order. Links to folders
        are not followed."""
        if self.on_disk:
            walked = os.walk(self.path, onerror=_raise)
            paths = [os.path.join(folder, name) for folder, _, names in walked for name in names]
        else:
            infos = self.files.get_file_info(fs.FileSelector(self.path, recursive=True))
            paths = [file.path for file in infos if file.is_file]
        return sorted(PurePosixPath(path).relative_to(self.path).as_posix() for path in paths)

    def open(self) -> io.BufferedReader:
        """From the beginning to the end."""
        if self.on_disk:
            return Path(self.path).open("rb")
        stream: Any = self.files.open_input_stream(self.path, compression=None)
        return io.BufferedReader(stream, BUFFER_BYTES)

    def open_parquet(self, **options: Any) -> pq.ParquetFile:
        """To be read in pieces: a row group's columns are not read into memory as a whole. Nor is a
        file mapped: one that is cut meanwhile would end the process."""
        file = self.files.open_input_file(self.path)
        ahead = not self.on_disk  # a store answers few large reads sooner
        return pq.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=ahead, **options)

    def open_rows(self, **options: Any) -> pq.ParquetFile:
        """A file for `read_batches`, until which texts stay dictionaries. A file of 500
        bytes may have one text of a MiB in each of 3,000 rows."""
        file = self.open_parquet(**options)
        types = {field.name: str(field.type) for field in file.schema_arrow}
        columns = (file.schema.column(index) for index in range(len(file.schema.names)))
        texts = [
            column.path
            for column in columns
            if column.physical_type == "BYTE_ARRAY"
            and "view" not in types.get(column.path.partition(".")[0], "")
        ]
        return self.open_parquet(read_dictionary=texts, **options)

    def make_folder(self) -> None:
        """A store gets an empty object, which shows early whether anything can be written."""
        self.files.create_dir(self.path)

    def remove(self) -> None:
        self.files.delete_file(self.path)

    def remove_folder(self) -> None:
        self.files.delete_dir(self.path)

    @contextmanager
    def write_whole(self, partial: str = "") -> Iterator[Path]:
        """Yields where to write, on the disk, a file that appears here whole or not at all.

        partial: where that is, for a file on the disk; beside it if empty.
        """
        if self.on_disk:
            beside = Path(partial or f"{self.path}.tmp")
            yield beside
            _replace(beside, Path(self.path))
            return
        with TemporaryDirectory(prefix="addnorm-") as folder:
            yield (written := Path(folder) / self.name)
            # in a thread: an interrupt, which stops the main one, must not end it in the middle
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self._send, written).result()

    def _send(self, written: Path) -> None:
        """A store has no rename, but shows no object before all of it was sent. pyarrow completes
        an object also when an error ends the writing: so it is one call that has all bytes."""
        with (
            pa.memory_map(str(written)) as content,
            self.files.open_output_stream(self.path, compression=None) as stream,
        ):
            stream.write(content.read_buffer())


def read_batches(
    file: pq.ParquetFile, num_rows: int, columns: list[str], groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """So many rows at once, fewer where they are large, of some row groups or of all. file: of
    `open_rows`. OSError where a row is too large, or where rows are missing: of a file that was cut
    meanwhile pyarrow gives what it finds, and says nothing."""
    groups = range(file.num_row_groups) if groups is None else groups
    sizes = [file.metadata.row_group(group) for group in groups]
    if any(size.total_byte_size > max(size.num_rows, 1) * MOST_ROW_BYTES for size in sizes):
        raise OSError(f"it has rows of more than {MOST_ROW_BYTES} bytes, the limit")
    num_left = sum(size.num_rows for size in sizes)
    schema = file.schema.to_arrow_schema()
    for batch in file.iter_batches(num_rows, list(groups), columns):
        num_left -= batch.num_rows
        num_bytes = sum(map(_text_bytes, batch.columns), np.zeros(batch.num_rows, np.int64))
        if (num_bytes > MOST_ROW_BYTES).any():
            raise OSError(f"a row has {num_bytes.max()} bytes, the limit is {MOST_ROW_BYTES}")
        pieces = np.cumsum(num_bytes) // MOST_BYTES
        starts = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(starts):
            part = batch.slice(start, end - start)
            fields = [schema.field(name) for name in part.schema.names]
            arrays = [
                column.cast(field.type) for column, field in zip(part.columns, fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    if num_left:
        raise OSError(f"{num_left} rows are missing at its end")


def _text_bytes(column: Any) -> NDArray[np.int64]:
    """`[n]`: the bytes that the texts of each row will have, of a column of any depth."""
    if isinstance(column, pa.DictionaryArray) and column.dictionary.type in (
        pa.string(),
        pa.binary(),
        pa.large_string(),
        pa.large_binary(),
    ):
        text_lengths = pc.binary_length(column.dictionary).take(column.indices)
        return np.asarray(text_lengths.fill_null(0), np.int64)
    if isinstance(column, pa.StructArray):
        fields = map(_text_bytes, column.flatten())
        return sum(fields, np.zeros(len(column), np.int64))
    if isinstance(column, pa.MapArray):
        both = _text_bytes(column.keys) + _text_bytes(column.items)
        return np.asarray(np.diff(np.cumsum([0, *both.tolist()])[column.offsets.to_numpy()]))
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        ends = np.cumsum([0, *pc.list_value_length(column).fill_null(0).to_numpy()])
        until = np.cumsum([0, *_text_bytes(column.flatten()).tolist()])
        return np.asarray(np.diff(until[ends]))
    return np.zeros(len(column), np.int64)  # what is no text has been read as large as it is


@contextmanager
def in_one_line(subject: str) -> Iterator[None]:
    """CorpusError for what pyarrow and the system raise.

    subject: what cannot be read or written.
    """
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise CorpusError(f"{subject}: {reason(error)}") from None


def check_writable(option: str, path: Path | None) -> None:
    """CorpusError before the work whose result is to be written there."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise CorpusError(f"{option} {path} is a folder: give a file")
        if not path.parent.is_dir():
            raise CorpusError(f"{option} {path}: the folder {path.parent} does not exist")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise CorpusError(f"{option} {path} cannot be written by user {os.geteuid()}")
    except OSError as error:
        raise CorpusError(f"{option} {path}: {error.strerror}") from None


def reason(error: Exception) -> str:
    words = " ".join(str(getattr(error, "strerror", None) or error).split())[:300]
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        words += "; make room and run the same command again, which goes on from what was written"
    return words


def _replace(partial: Path, path: Path) -> None:
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _raise(error: OSError) -> None:
    raise error
