"""The result of a job while it grows: a folder of parts beside OUT, each written whole, and joined
to OUT at the end. A process that is killed at any moment loses only what it had not written.
"""

import fcntl
import fnmatch
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from addnorm.corpus.errors import CorpusError
from addnorm.corpus.index_check import Difference
from addnorm.corpus.storage import Location, in_one_line

PLAN_KEY = "addnorm.job"  # of the metadata of OUT and its parts: what they were made of
FIRST_ROW_KEY = "addnorm.first_row"  # of a part's
AGAIN = "remove it and the parts after it, and give the command again, to compute them again"
Plan = Mapping[str, Mapping[str, Any]]  # JSON


class Parts:
    """The finished parts of one job. One process at a time works on them; on a disk it is the only
    one that can."""

    def __init__(self, out: Location, plan: Plan, metadata: Mapping[str, str]) -> None:
        """plan: what decides the result. metadata: of OUT, besides."""
        # a link stays: what it leads to is written
        self.out, self.plan = out.resolve(), plan
        self.folder = replace(self.out, path=f"{self.out.path}.parts")
        self._metadata = {**metadata, PLAN_KEY: json.dumps(plan, sort_keys=True)}
        self.num_rows = 0  # that are written

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Goes on where another process stopped. CorpusError if that one did another job, or still
        runs, or if a part is lost."""
        with in_one_line(str(self.folder)):
            self.folder.make_folder()
            with self._lock():
                # a job of days must not find at its end that bytes of a part have changed
                for path in self._paths():
                    try:
                        with path.open_parquet(page_checksum_verification=True) as part:
                            for _ in part.iter_batches():
                                pass
                    except (pa.ArrowException, OSError) as error:
                        raise CorpusError(f"{path} is damaged: {error}; {AGAIN}") from None
                self.num_rows = sum(self._read_sizes())
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
                message = f"another process writes {self.out}: wait until it ends"
                raise CorpusError(message) from None
            yield

    def _read_sizes(self) -> list[int]:
        """Rows of each part, in order. CorpusError if one is missing, or of another job."""
        sizes = list[int]()
        for path in self._paths():
            found = path.open_parquet().metadata
            told = (found.metadata or {}).get(FIRST_ROW_KEY.encode())
            if path != self._path(sum(sizes)) or told != str(sum(sizes)).encode():
                raise CorpusError(
                    f"{path} does not follow on the parts before it, which have {sum(sizes)} rows;"
                    f" {AGAIN}"
                )
            if (plan := _plan(found)) is None:
                raise CorpusError(f"{path} does not say what it was made of; {AGAIN}")
            _check_same(plan, self.plan, path, self.folder)
            sizes.append(found.num_rows)
        return sizes

    def _paths(self) -> list[Location]:
        names = fnmatch.filter(self.folder.names_within(), "part-*.parquet")
        return [self.folder / name for name in names]

    def _path(self, first_row: int) -> Location:
        return self.folder / f"part-{first_row:012d}.parquet"

    def add(self, table: pa.Table) -> None:
        """Writes the next rows. Once it returns, they are safe."""
        metadata = {**self._metadata, FIRST_ROW_KEY: str(self.num_rows)}
        schema = table.schema.with_metadata(metadata)
        with self._path(self.num_rows).write_whole() as partial, _writer(partial, schema) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
        self.num_rows += table.num_rows

    def join(self, num_rows: int) -> None:
        """Makes OUT of the parts, which must have so many rows, and removes them. A row group is a
        part."""
        if (num_found := sum(self._read_sizes())) != num_rows:
            raise CorpusError(
                f"{self.folder} has {num_found} rows, IN {num_rows}: remove it to start again"
            )
        paths = self._paths()
        schema = paths[0].open_parquet().schema_arrow.with_metadata(self._metadata)
        with (
            self.out.write_whole((self.folder / "joined.tmp").path) as partial,
            _writer(partial, schema) as writer,
        ):
            for path in paths:
                with path.open_parquet(page_checksum_verification=True) as part:
                    table = part.read().replace_schema_metadata(self._metadata)
                writer.write_table(table, row_group_size=table.num_rows)
        self.folder.remove_folder()

    def is_done(self) -> bool:
        """True if OUT is there. CorpusError if it is something else than this job's result."""
        with in_one_line(str(self.out)):
            if not self.out.exists():
                return False
        found = plan_of(self.out)
        if found is None:
            raise CorpusError(f"{self.out} exists, and no such job made it: name another OUT")
        _check_same(found, self.plan, self.out, self.out)
        if self.folder.exists():  # the job was killed just before it ended
            self.folder.remove_folder()
        return True


def plan_of(path: Location) -> Plan | None:
    """None if no job made the file."""
    try:
        return _plan(path.open_parquet().metadata)
    except (pa.ArrowException, OSError):
        return None


def _plan(metadata: pq.FileMetaData) -> Plan | None:
    try:
        found = json.loads((metadata.metadata or {})[PLAN_KEY.encode()])
    except (KeyError, ValueError, RecursionError):
        return None
    is_plan = isinstance(found, dict) and all(isinstance(group, dict) for group in found.values())
    return found if is_plan else None


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)


def _check_same(old: Plan, new: Plan, where: Location, to_remove: Location) -> None:
    if changed := differences(old, new):
        raise CorpusError(
            f"{where} is of another job. Differences: {'; '.join(changed)}. Name another OUT, or"
            f" remove {to_remove} to start again"
        )


def differences(old: Plan, new: Plan) -> list[str]:
    """What of the groups of `new` another job had otherwise, in words. A text that was rejected may
    be cut: of the other texts this changes nothing."""
    if new["options"].get("truncate"):
        old = {**old, "options": {**old.get("options", {}), "truncate": True}}
    return [
        str(Difference(f"{group} {name}", _in_words(old, group, name), _in_words(new, group, name)))
        for group in new
        for name in {**old.get(group, {}), **new[group]}
        if old.get(group, {}).get(name) != new[group].get(name)
    ]


def _in_words(plan: Plan, group: str, name: str) -> str | None:
    value = plan.get(group, {}).get(name)
    return None if value is None else str(value)[:200]
