"""`addnorm embed --from OLD`: vectors of equal texts are taken over, and the file is the same."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from addnorm.corpus.embed import embed_command
from addnorm.corpus.embed.embed_command import Means
from addnorm.corpus.embed.parts import Parts
from addnorm.corpus.job_plan import PLAN_KEY
from addnorm.corpus.storage import Location
from addnorm.corpus.stored_vectors import BATCH_ROWS, StoredVectors, digests_of, row_digests
from tests.support import corpus_files
from tests.support.corpus_files import Killed
from tests.support.texts import TEXT_MODEL

NUM_ROWS, WINDOW_ROWS = 1200, 512
Embed = Callable[..., bytes]


class SecondKilled(Parts):
    def add(self, table: pa.Table) -> None:
        if self.num_rows:
            raise Killed
        super().add(table)


@pytest.fixture(scope="module")
def means() -> Iterator[Means]:
    with corpus_files.opened_once() as open_bundle:
        yield Means(open_bundle, window_rows=WINDOW_ROWS)


@pytest.fixture
def embed(means: Means, text_bundles: Path, tmp_path: Path) -> Embed:
    def embed(source: Path, out: str, *options: str, **changed: Any) -> bytes:
        """Bytes of OUT. changed: of the means."""
        words = [str(source), str(tmp_path / out), "--model", str(text_bundles / TEXT_MODEL / "1")]
        embed_command.embed([*words, *options], replace(means, **changed))
        return (tmp_path / out).read_bytes()

    return embed


@pytest.fixture(scope="module")
def old_job(
    means: Means, text_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Its file of texts, and its result."""
    folder = tmp_path_factory.mktemp("old")
    source = corpus_files.write(corpus_files.table(NUM_ROWS), folder / "old.csv")
    out, model = folder / "old.parquet", text_bundles / TEXT_MODEL / "1"
    embed_command.embed([str(source), str(out), "--model", str(model)], means)
    return source, out


@pytest.fixture
def old(old_job: tuple[Path, Path], tmp_path: Path) -> Path:
    for file in old_job:
        shutil.copy(file, tmp_path)
    return tmp_path / "old.parquet"


def changed_rows() -> pa.Table:
    """20 rows are removed, 30 changed, 40 added, and all stand in another order."""
    rows, added = corpus_files.table(NUM_ROWS), corpus_files.table(40, seed=1)
    texts = [f"{text} again" if row < 50 else text for row, text in enumerate(rows["text"])]
    rows = rows.set_column(1, "text", pa.array(texts)).slice(20)
    together = pa.concat_tables([rows, added])
    return together.take(np.random.default_rng(0).permutation(len(together)))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_the_file_has_the_bytes_of_a_whole_job(
    embed: Embed, old: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the job was killed after its first part."""
    rows = changed_rows()
    source = corpus_files.write(rows, tmp_path / f"rows{suffix}")
    whole = embed(source, "whole.parquet")
    capsys.readouterr()
    assert embed(source, "new.parquet", "--from", str(old)) == whole
    before = set(corpus_files.table(NUM_ROWS).column("text").to_pylist())
    after = rows.column("text").to_pylist()
    kept, gone = (text in before for text in after), before - set(after)
    num_kept = sum(kept)
    pattern = (
        rf"{num_kept:,} rows reused from \S+old.parquet, {len(rows) - num_kept:,} computed, (\d+) "
    )
    match = re.search(pattern, capsys.readouterr().out)
    assert match
    assert int(match[1]) >= len(gone) > 0
    with pytest.raises(Killed):
        embed(source, "killed.parquet", "--from", str(old), parts=SecondKilled)
    assert embed(source, "killed.parquet", "--from", str(old)) == whole


def test_vectors_are_those_of_the_earlier_file(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not computed again, whatever the order; a row of equal texts is one of them."""
    texts = corpus_files.table(NUM_ROWS).column("text").to_pylist()
    vectors = pq.read_table(old).column("vector").to_pylist()
    expected = dict(zip(texts, vectors, strict=True))
    order = np.random.default_rng(0).permutation(len(texts))
    rows = corpus_files.table(NUM_ROWS).select(["text"]).take(order)
    source = corpus_files.write(rows, tmp_path / "rows.parquet")
    capsys.readouterr()
    embed(source, "made.parquet", "--from", str(old))
    assert f"{NUM_ROWS:,} rows reused from" in capsys.readouterr().out
    table = pq.read_table(tmp_path / "made.parquet")
    for text, vector in zip(*table.select(["text", "vector"]).to_pydict().values(), strict=True):
        assert vector == expected[text]


def with_vectors(table: pa.Table, change: Callable[[np.ndarray], object]) -> pa.Table:
    """Writes them as another program does that keeps all else, metadata too."""
    numbers = np.stack(table.column("vector").to_numpy())
    changed = change(numbers)
    column = changed if isinstance(changed, pa.Array) else as_lists(numbers)
    return table.set_column(table.column_names.index("vector"), "vector", column)


def as_lists(numbers: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), numbers.shape[1])


def put(place: object, value: float) -> Callable[[np.ndarray], object]:
    return lambda numbers: numbers.__setitem__(place, value)


def with_nulls(numbers: np.ndarray) -> pa.Array:
    rows = [None if row == 3 else vector for row, vector in enumerate(numbers.tolist())]
    return pa.array(rows, pa.list_(pa.float32(), numbers.shape[1]))


def shorter_row(numbers: np.ndarray) -> pa.Array:
    rows = [vector[: 31 if row == 3 else 32] for row, vector in enumerate(numbers.tolist())]
    return pa.array(rows, pa.list_(pa.float32()))


def two_vectors_of_a_text(table: pa.Table) -> pa.Table:
    wrong = with_vectors(table, lambda numbers: as_lists(np.roll(numbers, 1, 0)))
    return pa.concat_tables([wrong.slice(0, 40), table])


def nothing_beside(table: pa.Table) -> pa.Table:
    nulls = pa.nulls(len(table), table.field("vector_of_text").type)
    return table.set_column(table.column_names.index("vector_of_text"), "vector_of_text", nulls)


def of_an_earlier_version(table: pa.Table) -> pa.Table:
    """It has digests of the texts alone."""
    cells = [cell[:16] for cell in table.column("vector_of_text").to_pylist()]
    return table.set_column(
        table.column_names.index("vector_of_text"), "vector_of_text", pa.array(cells, pa.binary(16))
    )


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = (
    {
        name: lambda table, change=change: with_vectors(table, change)  # type: ignore[misc]
        for name, change in {
            "one bit": put((7, 5), np.nextafter(np.float32(0.1), np.float32(1))),
            "other signs": lambda numbers: numbers.__setitem__(0, numbers[0] * -1),
            "zero": put(slice(10), 0.0),
            "NaN": put((5, 0), np.nan),
            "scaled": lambda numbers: np.multiply(numbers, 2, out=numbers),
            "rolled by a row": lambda numbers: as_lists(np.roll(numbers, 1, 0)),
            "quantized": lambda numbers: as_lists((numbers * 127).astype(np.int8)),
            "half of the width": lambda numbers: as_lists(numbers[:, :16]),
            "null": with_nulls,
            "a shorter one": shorter_row,
        }.items()
    }
    | {
        "two vectors of a text": two_vectors_of_a_text,
        "digests are null": nothing_beside,
        "digests of texts alone": of_an_earlier_version,
    }
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_vector_that_another_program_changed_is_not_taken(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """It keeps the metadata, which say what was asked for. The digest of a row says what was
    answered: rows that do not have it are computed again, and the file is that of a whole job."""
    whole = old.read_bytes()
    pq.write_table(CHANGES[change](pq.read_table(old)), old, row_group_size=500)
    capsys.readouterr()
    assert embed(tmp_path / "old.csv", "new.parquet", "--from", str(old), "--yes") == whole
    output = capsys.readouterr().err
    assert f"addnorm embed: {old} " in output
    assert "another program" in output or "with digests of the vectors" in output


def moved(table: pa.Table) -> pa.Table:
    return table.take(np.random.default_rng(1).permutation(len(table)))


def of_other_types(table: pa.Table) -> pa.Table:
    """DuckDB and pandas write it so: without metadata and without types of one size."""
    digests = pa.array(table.column("vector_of_text").to_pylist(), pa.binary())
    place = table.column_names.index("vector_of_text")
    return table.set_column(place, "vector_of_text", digests).replace_schema_metadata(None)


KEPT: dict[str, tuple[Callable[[pa.Table], pa.Table], dict[str, Any]]] = {
    "moved": (moved, {"compression": "snappy", "row_group_size": 7}),
    "half of them": (lambda table: table.slice(0, NUM_ROWS // 2), {}),
    "none of them": (lambda table: table.slice(0, 0), {}),
    "twice": (lambda table: pa.concat_tables([table, table]), {}),
    "without texts": (lambda table: table.drop_columns(["text"]), {}),
    "as lists": (
        lambda table: with_vectors(table, lambda v: pa.array([*v], pa.large_list(pa.float32()))),
        {},
    ),
    "by a program that loses metadata": (
        lambda table: with_vectors(
            of_other_types(table), lambda v: pa.array([*v], pa.list_(pa.float32()))
        ),
        {},
    ),
    "as float64": (lambda table: with_vectors(table, lambda v: as_lists(v.astype(float))), {}),
}


@pytest.mark.parametrize("change", KEPT)
def test_rows_that_another_program_moved_are_taken(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    whole = old.read_bytes()
    make, options = KEPT[change]
    pq.write_table(table := make(pq.read_table(old)), old, **options)
    capsys.readouterr()
    assert embed(tmp_path / "old.csv", "new.parquet", "--from", str(old)) == whole
    output = capsys.readouterr()
    assert str(old) not in output.err  # what takes long says so there
    num_kept = re.search(r"([\d,]+) rows reused", output.out)
    assert num_kept
    assert int(num_kept[1].replace(",", "")) >= min(len(table), NUM_ROWS)


def test_a_file_without_metadata_needs_the_models_vectors(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row fits its digests, but no longer says by which model it was made."""
    table = pq.read_table(old)
    texts = digests_of(table.column("text").to_pylist())
    table = with_vectors(table, put(slice(100, NUM_ROWS), 0.5))
    digests = row_digests(texts, table.column("vector").combine_chunks())
    table = table.set_column(table.column_names.index("vector_of_text"), "vector_of_text", digests)
    pq.write_table(table.replace_schema_metadata(None), old)
    with pytest.raises(SystemExit):
        embed(tmp_path / "old.csv", "new.parquet", "--from", str(old))
    message = capsys.readouterr().err
    assert re.search(r"--from \S+: its metadata are lost, and of 64 vectors \d+ have", message)


def test_an_earlier_file_that_changes_after_it_was_checked_ends_the_job(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Changing(Parts):
        @contextmanager
        def open(self) -> Iterator[Self]:
            changed = with_vectors(pq.read_table(old), put(slice(10), 0.0))
            pq.write_table(changed, old)
            with super().open():
                yield self

    with pytest.raises(SystemExit):
        embed(tmp_path / "old.csv", "new.parquet", "--from", str(old), parts=Changing)
    assert "old.parquet changed while it was being read" in capsys.readouterr().err
    assert not (tmp_path / "new.parquet").exists()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
        pa.array([[[1.0, 2.0]], [], [[3.0, 4.0]] * 2], pa.list_(pa.list_(pa.float16(), 2))),
        pa.array([{"i": [1, 2], "v": [3]}, {"i": [1], "v": [2, 3]}, {"i": [], "v": []}]),
    ],
)
def test_digests_are_of_a_rows_bits_wherever_it_stands(column: pa.Array) -> None:
    """Also of sparse vectors and of vectors of tokens."""
    texts = digests_of(["a", "a", "a"])
    digests = row_digests(texts, column)
    assert len(set(digests.to_pylist())) == 3
    assert row_digests(texts[1:], column.slice(1)).equals(digests.slice(1))
    assert row_digests(texts, column.take([2, 1, 0])).equals(digests.take([2, 1, 0]))
    nulls = pa.nulls(3, column.type)
    assert not set(row_digests(texts, nulls).to_pylist()) & set(digests.to_pylist())


def of_version(old: Path, **changes: Any) -> None:
    """Changes the fingerprint of a file, as if another version had made it."""
    table = pq.read_table(old)
    metadata = {**(table.schema.metadata or {})}
    plan = json.loads(metadata[PLAN_KEY.encode()])
    plan["fingerprint"] |= changes
    metadata[PLAN_KEY.encode()] = json.dumps(plan).encode()
    pq.write_table(table.replace_schema_metadata(metadata), old)


def test_a_version_that_moved_no_bit_is_a_remark(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "old.csv"
    of_version(old, numpy="0.1", tokenizers="0.2")
    whole = embed(source, "whole.parquet")
    assert embed(source, "new.parquet", "--from", str(old)) == whole
    output = capsys.readouterr()
    assert "1,200 rows reused" in output.out
    assert "with numpy (stored 0.1, now" in output.err
    (tmp_path / "new.parquet").unlink()
    old.rename(tmp_path / "new.parquet")
    embed(source, "new.parquet")
    assert "is complete" in capsys.readouterr().out
    of_version(tmp_path / "new.parquet", bits={"answers": "0", "tokens": "0"})
    with pytest.raises(SystemExit):
        embed(source, "new.parquet")
    assert "fingerprint numpy (stored 0.1, now" in capsys.readouterr().err


@pytest.mark.parametrize("is_told", [True, False])
def test_of_other_options_nothing_is_kept_and_it_is_asked(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_told: bool
) -> None:
    source, prompts = tmp_path / "old.csv", list[str]()
    confirm = lambda question: bool(prompts.append(question))  # noqa: E731
    options = ("--from", str(old), "--dtype", "float16")
    if is_told:
        embed(source, "new.parquet", *options, "--yes", confirm=confirm)
        assert pq.read_metadata(tmp_path / "new.parquet").num_rows == NUM_ROWS
    else:
        with pytest.raises(SystemExit) as ended:
            embed(source, "new.parquet", *options, confirm=confirm)
        assert ended.value.code == embed_command.NOT_DONE
        assert not (tmp_path / "new.parquet").exists()
    assert len(prompts) == (not is_told)
    output = capsys.readouterr().err
    why = "options dtype (stored float32, now float16)"
    assert f"old.parquet belongs to another job ({why}): none of 1,200 rows can be reused" in output


def test_a_text_may_be_cut_by_the_later_job_alone(
    embed: Embed, text_bundles: Path, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which rows were cut, the earlier file does not say."""
    # fp32 is the default
    cut = ("--truncate", "--model", f"{text_bundles / TEXT_MODEL}@fp32")
    embed(tmp_path / "old.csv", "cut.parquet", *cut, "--from", str(old))
    assert "1,200 rows reused" in capsys.readouterr().out
    embed(tmp_path / "old.csv", "new.parquet", "--from", str(tmp_path / "cut.parquet"))
    assert "none of 1,200 rows can be reused" in capsys.readouterr().err


def of_no_job(old: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), old)


def being_written(old: Path) -> None:
    old.rename(old.with_name("old.parquet.parts"))


def without_digests(old: Path) -> None:
    pq.write_table(pq.read_table(old).drop_columns("vector_of_text"), old)


def damaged(old: Path) -> None:
    content = bytearray(old.read_bytes())
    content[len(content) // 3] ^= 1
    old.write_bytes(content)


BAD = {
    "the file does not exist": Path.unlink,
    "was not written by addnorm embed": of_no_job,
    "another job is still writing it": being_written,
    "has no column 'vector_of_text': embed it again": without_digests,
    "CRC checksum verification failed": damaged,
}


@pytest.mark.parametrize("words", BAD)
def test_an_earlier_file_that_does_not_fit_is_named(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    BAD[words](old)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        embed(tmp_path / "old.csv", "new.parquet", "--from", str(old))
    output = capsys.readouterr().err
    assert output.removeprefix("addnorm embed: ").removeprefix("--from ").startswith(str(old))
    assert words in output
    assert output.count("\n") == 1
    assert not (tmp_path / "new.parquet").exists()


def test_a_dry_run_says_what_a_job_takes_and_writes_nothing(
    embed: Embed, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = changed_rows()
    source = corpus_files.write(rows, tmp_path / "rows.parquet")
    capsys.readouterr()
    before = sorted(tmp_path.iterdir())
    options = ("--dry-run", "--price-per-hour", "2", "--from", str(old))
    with pytest.raises(FileNotFoundError):  # of OUT's bytes
        embed(source, "dry.parquet", *options)
    output = capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before
    assert f"dry.parquet: {len(rows):,} rows" in output
    num_computed = re.search(r"([\d,]+) computed", output)
    assert num_computed
    assert f"to compute: {num_computed[1]} rows of about" in output
    assert "within an hour: 1 such machine\n" in output
    assert re.search(r"price: [\d.e-]+, at 2 an hour", output)


def test_digests_of_pairs_are_not_those_of_their_texts_together() -> None:
    texts = ["ab", ("a", "b"), ("ab", ""), ("", "ab"), "a", ""]
    assert len(set(digests_of(texts).tolist())) == len(texts)
    stored_vectors = StoredVectors(digests_of(["a", "b", "a", "c"]))
    assert stored_vectors.find(digests_of(["d", "c", "a"])).tolist() == [-1, 3, 0]
    assert stored_vectors.num_gone == 1  # b alone


def test_vectors_are_taken_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    """From anywhere in a file of several batches."""
    numbers = np.arange(3 * BATCH_ROWS, dtype=np.float32)
    texts = [f"text {row}" for row in range(len(numbers))]
    table = pa.table({"text": texts, "vector": [[number, -number] for number in numbers]})
    pq.write_table(table, tmp_path / "old.parquet", row_group_size=1000)
    stored = StoredVectors.of_file(Location.parse(tmp_path / "old.parquet"), "text", "vector")
    rows_asked = np.random.default_rng(0).permutation(len(texts))[:500]
    rows = stored.find(digests_of([texts[row] for row in rows_asked]))
    assert rows.tolist() == rows_asked.tolist()
    with stored.open(None):
        vectors = stored.take(rows).to_pylist()
    assert [vector[0] for vector in vectors] == rows_asked.tolist()
