"""Files in a store that has no rename, no lock and no links give what those of a disk give."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from addnorm.corpus.embed.parts import Parts
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.storage import MOST_BYTES, Location, read_batches
from addnorm.corpus.texts_source import Source
from tests.support import corpus_files

PLAN = {"input": {"texts.csv": "digest"}, "options": {"output": "pooled"}}
OUT, SECOND_PART = "out.parquet", "out.parquet.parts/part-000000000300-0.parquet"


@pytest.fixture
def store(tmp_path: Path) -> Location:
    """A bucket of objects, which lie below tmp_path/bucket."""
    (tmp_path / "bucket").mkdir()
    files = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    return Location("bucket", files, "s3://")


def test_a_file_that_is_cut_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    """Mapped into memory it would: by a signal."""
    rows = pa.table({"number": np.random.default_rng(0).random(1_000_000)})
    pq.write_table(rows, file := tmp_path / "texts.parquet", row_group_size=50_000)
    pieces = read_batches(Location.parse(file).open_rows(), 1000, ["number"])
    next(pieces)
    os.truncate(file, 5000)
    with pytest.raises(OSError, match="rows are missing at its end"):
        list(pieces)


KINDS_OF_TEXTS = {
    "text": pa.string(),
    "large text": pa.large_string(),
    "bytes": pa.binary(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "view": pa.string_view(),
    "list": pa.list_(pa.string()),
    "struct": pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]),
    "map": pa.map_(pa.string(), pa.string()),
}


def text_of_kind(kind: str, text: str) -> object:
    match kind:
        case "bytes":
            return text.encode()
        case "list":
            return ["a", text]
        case "struct":
            return {"a": [{"b": text}, {"b": "c"}]}
        case "map":
            return [("a", text)]
    return text


@pytest.mark.parametrize("kind", KINDS_OF_TEXTS)
def test_rows_of_large_texts_are_read_few_at_once(kind: str, tmp_path: Path) -> None:
    """A column of equal texts is a file of some hundred bytes, and would be gigabytes in memory."""
    values = [text_of_kind(kind, text) for text in ["a " * 2**19] * 99 + ["b"] * 2]
    rows = pa.table({"column": pa.array(values, KINDS_OF_TEXTS[kind])})
    pq.write_table(rows, file := tmp_path / "rows.parquet", compression="zstd")
    assert file.stat().st_size < 2**16
    batches = list(read_batches(Location.parse(file).open_rows(), 256, ["column"]))
    assert pa.Table.from_batches(batches).cast(rows.schema).equals(rows)
    if kind not in ("dictionary", "view"):
        assert [len(batch) for batch in batches] == [15, 16, 16, 16, 16, 16, 6]
        assert max(batch.nbytes for batch in batches) < MOST_BYTES + 2**21


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_row_that_is_too_large_is_refused(num_rows: int, tmp_path: Path) -> None:
    """The footer of a file of one row says so, before anything is read."""
    rows = pa.table({"list": [["a" * 2**20] * 65] + [["b"]] * (num_rows - 1)})
    pq.write_table(rows, file := tmp_path / "rows.parquet", use_dictionary=num_rows > 1)
    with pytest.raises(OSError, match=f"the limit is {2**26}|{2**26} bytes, the limit"):
        list(read_batches(Location.parse(file).open_rows(), 256, ["list"]))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_a_folder_of_a_store_is_read_as_one_of_a_disk(
    store: Location, tmp_path: Path, suffix: str
) -> None:
    folder, rows = tmp_path / "bucket" / "texts", corpus_files.table(1000)
    (folder / "b/deep").mkdir(parents=True)
    corpus_files.write(rows.slice(0, 600), folder / f"a{suffix}")
    corpus_files.write(rows.slice(600), folder / f"b/deep/a{suffix}")
    (folder / "b/.hidden").mkdir()
    corpus_files.write(rows, folder / f"b/.hidden/a{suffix}")
    of_disk, of_store = (Source(at, ["text"]) for at in (Location.parse(folder), store / "texts"))
    assert of_store.digests() == of_disk.digests()
    assert list(of_store.digests()) == [f"a{suffix}", f"b/deep/a{suffix}"]
    assert sum(map(len, of_store.checked_texts())) == 1000
    assert list(of_store.pieces()) == list(of_disk.pieces())
    assert pa.Table.from_batches(of_store.pieces()).equals(rows)


def test_a_job_that_was_killed_leaves_whole_objects_and_goes_on(
    store: Location, tmp_path: Path
) -> None:
    rows = corpus_files.table(900)
    with Parts(store / OUT, PLAN, {}).open() as parts:
        parts.add(rows.slice(0, 300))
    with suppress(KeyboardInterrupt), (store / SECOND_PART).write_whole() as path:
        path.write_bytes(b"half of a part")
        raise KeyboardInterrupt
    (written,) = (store / f"{OUT}.parts").names_within()
    assert written.startswith("part-000000000000-")
    for out, start in ((Location.parse(tmp_path) / OUT, 0), (store / OUT, 300)):
        with Parts(out, PLAN, {}).open() as parts:
            assert parts.num_rows == start
            for first in range(start, 900, 300):
                parts.add(rows.slice(first, 300))
            parts.join(900)
        assert Parts(out, PLAN, {}).is_done()
    assert (tmp_path / "bucket" / OUT).read_bytes() == (tmp_path / OUT).read_bytes()
    assert store.names_within() == [OUT]


def test_an_object_is_sent_in_one_call() -> None:
    """pyarrow completes an object whose writing ended early: half of one would look whole."""
    sent = _Sent()
    files: Any = sent
    with Location("bucket/a", files, "s3://").write_whole() as path:
        path.write_bytes(bytes(20_000_000))
    assert sent.num_bytes == [20_000_000]


class _Sent:
    """A store, and a stream to it."""

    def __init__(self) -> None:
        self.num_bytes = list[int]()

    def open_output_stream(self, path: str, compression: None) -> "_Sent":
        return self

    def __enter__(self) -> "_Sent":
        return self

    def __exit__(self, *error: object) -> None: ...

    def write(self, content: pa.Buffer) -> None:
        self.num_bytes.append(content.size)


def test_a_store_that_does_not_answer_is_named() -> None:
    files: Any = _Gone()
    with pytest.raises(CorpusError, match=r"^s3://bucket/out.parquet: no route to host$"):
        Parts(Location("bucket/out.parquet", files, "s3://"), PLAN, {}).is_done()
    with pytest.raises(CorpusError, match=r"^s3://bucket/texts cannot be read: no route to host$"):
        Source(Location("bucket/texts", files, "s3://"), ["text"])


class _Gone:
    def get_file_info(self, path: str) -> fs.FileInfo:
        raise OSError("no route\nto host")


@pytest.mark.parametrize(
    ("outer", "within"),
    [("texts", True), ("texts/v.parquet", True), ("texts/more", False), ("tex", False)],
)
def test_what_lies_in_a_folder(store: Location, tmp_path: Path, outer: str, within: bool) -> None:
    for root in (store, Location.parse(tmp_path)):
        assert (root / "texts/v.parquet").is_within(root / outer) == within
        assert (root / "texts/v.parquet").is_within(root)
    assert not (store / "texts/v.parquet").is_within(Location.parse("/"))


def test_what_a_store_says_is_one_line_without_keys() -> None:
    with pytest.raises(CorpusError) as raised:
        Location.parse("nope://key:secret@bucket/a.parquet?token=secret")
    assert str(raised.value).startswith("nope://bucket/a.parquet: ")
    assert "secret" not in str(raised.value)
