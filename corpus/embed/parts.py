"""The result of a job while it grows: a folder of parts beside OUT, each written whole, and joined
to OUT at the end. A process that is killed at any moment loses only what it had not written.

Where a part begins and ends depends on the rows alone, so that OUT has the same bytes after any
kill. Vectors of a part that is not yet complete are saved in files of their own meanwhile.

The name of a part has its first row and the digest of its bytes: nothing else is joined.
"""

import fcntl
import fnmatch
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from addnorm.corpus.embedder import RowVectors
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.job_plan import PLAN_KEY, Plan, differences, plan_in, plan_of
from addnorm.corpus.storage import Location, in_one_line

FIRST_ROW_KEY = "addnorm.first_row"  # of a part's
AGAIN = "to compute them again, remove it and the parts after it, and repeat the command"
ROW, VECTOR = "row", "vector"  # columns of saved vectors
JOINED_FILE = "joined.tmp"  # beside the parts, while OUT is made of them


class Parts:
    """The finished parts of one job, and vectors of the next ones. One process at a time works on
    them; on a disk it is the only one that can."""

    def __init__(
        self,
        out: Location,
        plan: Plan,
        metadata: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """plan: what decides the result. metadata: of OUT, besides."""
        # a link stays: what it leads to is written
        self.out, self.plan = out.resolve(), plan
        self.folder = replace(self.out, path=f"{self.out.path}.parts")
        self._metadata = {**metadata, PLAN_KEY: json.dumps(plan, sort_keys=True)}
        self.num_rows = 0  # that are written
        self.saved: RowVectors | None = None  # of later rows, by an earlier process
        self._clock, self._last_written = clock, clock()

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Goes on where another process stopped. CorpusError if that one did another job, or still
        runs, or if a part is lost."""
        with in_one_line(str(self.folder)):
            self.folder.make_folder()
            with self._lock():
                # a job of days must not find at its end that a part is not what was written
                self.num_rows = sum(part.metadata.num_rows for part in self._read())
                self.saved = self._read_saved()
                self._last_written = self._clock()
                yield self

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """The system frees it when the process ends, however that is. Stores have no such lock."""
        if not self.out.on_disk:
            yield
            return
        with Path((self.folder / "lock").path).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another process is writing {self.out}: wait until it ends"
                raise CorpusError(message) from None
            yield

    def _read(self) -> Iterator[pq.ParquetFile]:
        """The parts in order. CorpusError if one is missing, damaged, or of another job."""
        num_rows = 0
        for path in self._paths("part"):
            part, content = self._open(path)
            first_row = (part.metadata.metadata or {}).get(FIRST_ROW_KEY.encode())
            if path.name != part_name(num_rows, content) or first_row != str(num_rows).encode():
                raise CorpusError(
                    f"{path} does not continue the parts before it, which have {num_rows} rows;"
                    f" {AGAIN}"
                )
            num_rows += part.metadata.num_rows
            yield part

    def _open(self, path: Location) -> tuple[pq.ParquetFile, bytes]:
        """A file of the folder and its bytes. CorpusError if it is damaged, or of another job."""
        with path.open() as file:
            content = file.read()
        if not path.name.endswith(f"-{_digest(content)}.parquet"):
            raise CorpusError(
                f"{path} is damaged, or another program changed it: the digest of its bytes is"
                f" {_digest(content)}; {AGAIN}"
            )
        part = pq.ParquetFile(pa.BufferReader(content))
        if (plan := plan_in(part.metadata)) is None:
            raise CorpusError(
                f"{path} does not record the texts and options it was made from; {AGAIN}"
            )
        _check_same(plan, self.plan, path, self.folder)
        return part, content

    def _read_saved(self) -> RowVectors | None:
        """The saved vectors of rows that no part has."""
        tables = [self._open(path)[0].read() for path in self._paths("saved")]
        if not tables:
            return None
        table = pa.concat_tables(tables).combine_chunks()
        rows = table.column(ROW).to_numpy()
        is_left = pa.array(rows >= self.num_rows)
        vectors = table.column(VECTOR).combine_chunks().filter(is_left)
        return RowVectors.joined([RowVectors(rows[rows >= self.num_rows], vectors)])

    def _paths(self, kind: str) -> list[Location]:
        names = fnmatch.filter(self.folder.names_within(), f"{kind}-*.parquet")
        return [self.folder / name for name in names]

    @property
    def unsaved_s(self) -> float:
        """Seconds since anything was written."""
        return self._clock() - self._last_written

    def save(self, vectors: RowVectors) -> None:
        """Keeps vectors of rows of later parts. Once it returns, they are safe."""
        table = pa.table({ROW: vectors.rows, VECTOR: vectors.column})
        self._write("saved", int(vectors.rows.max()), table)

    def add(self, table: pa.Table) -> None:
        """Writes the next rows. Once it returns, they are safe."""
        self._write("part", self.num_rows, table)
        self.num_rows += table.num_rows
        for path in self._paths("saved"):
            if int(path.name.split("-")[1]) < self.num_rows:
                path.remove()

    def _write(self, kind: str, row: int, table: pa.Table) -> None:
        metadata = {**self._metadata, FIRST_ROW_KEY: str(row)}
        written = pa.BufferOutputStream()
        with _writer(written, table.schema.with_metadata(metadata)) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
        content = written.getvalue()
        with (self.folder / part_name(row, content, kind)).write_whole() as partial:
            partial.write_bytes(content)
        self._last_written = self._clock()

    def join(self, num_rows: int) -> None:
        """Makes OUT of the parts, which must have so many rows, and removes them. A row group is a
        part."""
        num_joined = 0
        with self.out.write_whole((self.folder / JOINED_FILE).path) as partial, ExitStack() as end:
            for part in self._read():
                table = part.read().replace_schema_metadata(self._metadata)
                if not num_joined:
                    writer = end.enter_context(_writer(partial, table.schema))
                writer.write_table(table, row_group_size=table.num_rows)
                num_joined += table.num_rows
            if num_joined != num_rows:
                raise CorpusError(
                    f"{self.folder} has {num_joined} rows, IN has {num_rows}: remove the"
                    " folder to start again"
                )
        self.folder.remove_folder()

    def is_done(self) -> bool:
        """True if OUT is there. CorpusError if it is something else than this job's result."""
        with in_one_line(str(self.out)):
            if not self.out.exists():
                return False
        plan = plan_of(self.out)
        if plan is None:
            raise CorpusError(
                f"{self.out} already exists and was not written by this job: choose another OUT"
            )
        _check_same(plan, self.plan, self.out, self.out)
        if self.folder.exists():  # the job was killed just before it ended
            self.folder.remove_folder()
        return True


def part_name(row: int, content: bytes | pa.Buffer, kind: str = "part") -> str:
    """row: the first of a part, the last of saved vectors."""
    return f"{kind}-{row:012d}-{_digest(content)}.parquet"


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _writer(path: Path | pa.BufferOutputStream, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)


def _check_same(old: Plan, new: Plan, path: Location, to_remove: Location) -> None:
    if changed := differences(old, new):
        raise CorpusError(
            f"{path} belongs to another job. Differences: {'; '.join(changed)}. Choose another"
            f" OUT, or remove {to_remove} to start again"
        )
