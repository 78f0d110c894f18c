"""`addnorm embed`: files of texts become files of vectors, with a server's bits."""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from addnorm.corpus import embedder
from addnorm.corpus.check import check_command
from addnorm.corpus.embed import embed_command
from addnorm.corpus.embed.embed_command import Means
from addnorm.corpus.embed.embedding_job import Progress
from addnorm.corpus.embed.parts import Parts, part_name
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.job_plan import PLAN_KEY, plan_of
from addnorm.corpus.ray_data import Addnorm
from addnorm.corpus.storage import Location
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch
from addnorm.service.server.wiring import Service
from tests.conftest import inference_of, serving
from tests.support import corpus_files, web
from tests.support.corpus_files import Killed
from tests.support.texts import LONG, TEXT_MODEL

NUM_ROWS = 1200
WINDOW_ROWS = 512  # three windows
Embed = Callable[..., pa.Table]


@pytest.fixture(scope="module")
def means() -> Iterator[Means]:
    """Windows of few rows. A bundle is opened once, and stays open."""
    with corpus_files.opened_once() as open_bundle:
        yield Means(open_bundle, window_rows=WINDOW_ROWS)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return corpus_files.table(NUM_ROWS)


@pytest.fixture
def source(rows: pa.Table, tmp_path: Path) -> Path:
    return corpus_files.write(rows, tmp_path / "texts.parquet")


@pytest.fixture
def embed(means: Means, text_bundles: Path, tmp_path: Path) -> Embed:
    def embed(
        source: Path, *options: str, bundle: Path = text_bundles / TEXT_MODEL / "1"
    ) -> pa.Table:
        out = tmp_path / "vectors.parquet"
        embed_command.embed([str(source), str(out), "--model", str(bundle), *options], means)
        return pq.read_table(out)

    return embed


@pytest.fixture
def refused(
    means: Means, text_bundles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    def refused(
        source: Path,
        *options: str,
        bundle: Path = text_bundles / TEXT_MODEL / "1",
        parts: type[Parts] = Parts,
    ) -> str:
        """What is printed."""
        out = str(tmp_path / "vectors.parquet")
        words = [str(source), out, "--model", str(bundle), *options]
        with pytest.raises(SystemExit) as ended:
            embed_command.embed(words, replace(means, parts=parts))
        assert ended.value.code == embed_command.NOT_DONE
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    return refused


def served(client: httpx.Client, texts: list[Any], **body: Any) -> np.ndarray:
    dtype, vectors = np.dtype("i1" if "dtype" in body else "<f4"), []
    for start in range(0, len(texts), 256):
        body_sent = {"input": texts[start : start + 256], "encoding_format": "base64", **body}
        answer = client.post("/v1/embeddings", json={"model": TEXT_MODEL, **body_sent}).json()
        vectors += [np.frombuffer(base64.b64decode(e["embedding"]), dtype) for e in answer["data"]]
    return np.stack(vectors)


def array(column: pa.ChunkedArray) -> np.ndarray:
    flat = column.combine_chunks()
    values: np.ndarray = flat.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(flat), -1)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_rows_keep_their_order_and_columns_and_get_the_servers_bits(
    embed: Embed, text_client: httpx.Client, rows: pa.Table, tmp_path: Path, suffix: str
) -> None:
    source = corpus_files.write(rows, tmp_path / f"texts{suffix}")
    small = array(embed(source, "--dtype", "int8").column("vector"))
    assert same_bits(small, served(text_client, rows.column("text").to_pylist(), dtype="int8"))
    (tmp_path / "vectors.parquet").unlink()
    table = embed(source)
    assert table.select(rows.column_names).cast(rows.schema).equals(rows)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 32)
    expected = served(text_client, rows.column("text").to_pylist())
    assert same_bits(array(table.column("vector")), expected)


@pytest.mark.parametrize("second", ["b.parquet", "b/deep/a.parquet"])
def test_a_folder_is_read_by_the_paths_of_its_files(
    embed: Embed, rows: pa.Table, source: Path, tmp_path: Path, second: str
) -> None:
    (tmp_path / "folder" / second).parent.mkdir(parents=True)
    folder = tmp_path / "folder"
    (folder / "again").symlink_to(folder)  # links to folders are not followed
    corpus_files.write(rows.slice(700), folder / second)
    corpus_files.write(rows.slice(0, 700).drop_columns("language"), folder / "a.jsonl")
    table = embed(folder)
    assert table.column("id").to_pylist() == rows.column("id").to_pylist()
    assert table.column("language").null_count == 700
    (tmp_path / "vectors.parquet").unlink()
    assert embed(source).column("vector").equals(table.column("vector"))


@pytest.mark.parametrize(
    ("options", "type_"),
    [
        (("--dtype", "float16"), pa.float16()),
        (("--dtype", "int8"), pa.int8()),
        (("--dimensions", "8", "--vector-column", "v"), pa.float32()),
    ],
)
def test_the_check_finds_equal_bits(
    embed: Embed, text_bundles: Path, source: Path, options: tuple[str, ...], type_: pa.DataType
) -> None:
    """It reads from the file what options the job had."""
    table = embed(source, *options)
    assert table.schema.field(table.column_names[-2]).type.value_type == type_
    report = source.with_name("report.json")
    checked = [str(source.with_name("vectors.parquet")), "--sample", "5000", "--json", str(report)]
    with pytest.raises(SystemExit) as ended:
        check_command.check([*checked, "--model", str(text_bundles / TEXT_MODEL / "1")])
    figures = json.loads(report.read_text())
    assert ended.value.code == check_command.EQUAL
    assert (figures["verdict"], figures["fingerprint"]["equal"]) == ("bit-equal", True)


def test_the_check_is_of_pooled_vectors(
    embed: Embed, task_bundles: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = task_bundles / "masked-lm" / "1"
    embed(source, "--output", "sparse", bundle=bundle)
    with pytest.raises(SystemExit) as ended:
        check_command.check([str(source.with_name("vectors.parquet")), "--model", str(bundle)])
    assert ended.value.code == check_command.CANNOT_CHECK
    assert "has the output sparse: only the output pooled can be checked" in capsys.readouterr().err


@pytest.fixture
def few(tmp_path: Path) -> tuple[Path, list[str], list[str]]:
    """A file, its texts and its second texts."""
    rows = corpus_files.table(40)
    source = corpus_files.write(rows, tmp_path / "texts.jsonl")
    return source, rows.column("text").to_pylist(), rows.column("language").to_pylist()


Few = tuple[Path, list[str], list[str]]


def test_sparse_vectors_are_the_servers(
    embed: Embed, task_bundles: Path, task_client: httpx.Client, few: Few
) -> None:
    options = ("--output", "sparse", "--top-k", "5")
    table = embed(few[0], *options, bundle=task_bundles / "masked-lm" / "1")
    body = {"model": "masked-lm", "texts": few[1], "outputs": ["sparse"], "sparse": {"top_k": 5}}
    answer = task_client.post("/v1/infer", json=body).json()
    for own, expected in zip(table.column("vector").to_pylist(), answer["sparse"], strict=True):
        assert own["indices"] == expected["indices"]
        assert same_bits(np.float32(own["values"]), np.float32(expected["values"]))


@pytest.mark.parametrize("own", [{}, {"input_type": "document"}])
def test_vectors_of_tokens_are_the_servers(
    embed: Embed, multi_vector_bundles: Path, few: Few, own: dict[str, str]
) -> None:
    bundle = multi_vector_bundles / "colbert" / "1"
    options = [word for value in own.values() for word in ("--input-type", value)]
    vectors = embed(few[0], "--output", "multi-vector", *options, bundle=bundle).column("vector")
    normalize = bundles.read(bundle).manifest.normalize
    body = {"texts": few[1], "outputs": ["token_vectors"], "normalize": normalize, **own}
    with serving(inference_of(multi_vector_bundles)) as url:
        answer = web.post(f"{url}/v1/infer", json=body).json()["token_vectors"]
    for found, expected in zip(vectors.to_pylist(), answer, strict=True):
        assert same_bits(np.float32(found), np.float32(expected))


def test_a_prompt_is_not_dropped_beside_an_input_type(
    refused: Callable[..., str], multi_vector_bundles: Path, few: Few
) -> None:
    options = ("--output", "multi-vector", "--input-type", "document", "--prompt-name", "query")
    said = refused(few[0], *options, bundle=multi_vector_bundles / "colbert" / "1")
    assert "input_type is 'document', and the prompt 'query' is set" in said


@pytest.mark.parametrize("model", ["classifier", "topics", "reranker"])
def test_scores_are_the_servers(
    embed: Embed, task_bundles: Path, task_client: httpx.Client, few: Few, model: str
) -> None:
    source, texts, second = few
    options, sent = ["--output", "scores"], list[Any](texts)
    if model == "reranker":
        options += ["--second-text-column", "language"]
        sent = list(zip(texts, second, strict=True))
    table = embed(source, *options, bundle=task_bundles / model / "1")
    answer = task_client.post("/v1/classify", json={"model": model, "texts": sent}).json()
    labels = (table.schema.metadata or {}).get(b"addnorm.labels", b"LABEL_0").decode().split(",")
    expected = [
        [next(entry["score"] for entry in result if entry["label"] == label) for label in labels]
        for result in answer["results"]
    ]
    assert same_bits(array(table.column("vector")), np.float32(expected))


def kill(monkeypatch: pytest.MonkeyPatch, at: str, calls: int) -> None:
    """When a method of Parts, or the replacing of a file, was called so often."""
    of: Any = Path if at == "replace" else Parts
    whole, left = getattr(of, at), [calls]

    def killing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return whole(*arguments, **options)

    monkeypatch.setattr(of, at, killing)


@pytest.mark.parametrize(
    ("at", "calls", "num_written"),
    [("add", 1, 0), ("add", 3, 2), ("replace", 1, 0), ("replace", 3, 2), ("join", 1, 3),
     ("replace", 4, 3)],
)  # fmt: skip
def test_a_killed_job_goes_on_without_a_lost_or_doubled_row(
    embed: Embed,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: str,
    calls: int,
    num_written: int,
) -> None:
    embed(source)
    out = source.with_name("vectors.parquet")
    unkilled = out.read_bytes()
    out.unlink()
    with monkeypatch.context() as patched:
        kill(patched, at, calls)
        with pytest.raises(Killed):
            embed(source)
    assert not out.exists()
    parts = list(source.with_name("vectors.parquet.parts").glob("part-*.parquet"))
    assert len(parts) == num_written
    capsys.readouterr()
    embed(source)
    left = NUM_ROWS - min(NUM_ROWS, num_written * WINDOW_ROWS)
    assert f"{left:,} of them now" in capsys.readouterr().out
    assert out.read_bytes() == unkilled
    assert not out.with_name("vectors.parquet.parts").exists()


def test_vectors_of_a_part_that_is_not_complete_are_kept(
    embed: Embed,
    source: Path,
    means: Means,
    text_bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A slow model needs hours for a part. The bytes are those of a job that was not
    killed, though less is computed."""
    embed(source)
    out = source.with_name("vectors.parquet")
    unkilled = out.read_bytes()
    out.unlink()
    words = [str(source), str(out), "--model", str(text_bundles / TEXT_MODEL / "1")]
    for calls in (1, 2):
        with monkeypatch.context() as patched:
            kill(patched, "add", calls)
            with pytest.raises(Killed):
                embed_command.embed(words, replace(means, save_every_s=0))
    folder = out.with_name("vectors.parquet.parts")
    assert list(folder.glob("saved-*.parquet"))
    capsys.readouterr()
    embed(source)
    match = re.search(r"1,200 rows, ([\d,]+) of them now", capsys.readouterr().out)
    assert match
    assert int(match[1].replace(",", "")) <= NUM_ROWS - 2 * WINDOW_ROWS
    assert out.read_bytes() == unkilled
    assert not folder.exists()


def test_a_job_that_is_done_is_not_done_again(
    embed: Embed, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(source)
    (left := source.with_name("vectors.parquet.parts")).mkdir()  # killed before it was removed
    capsys.readouterr()
    embed(source)
    assert "is complete" in capsys.readouterr().out
    assert not left.exists()


@pytest.mark.parametrize("how", ["other vectors", "other order", "rows are gone"])
def test_a_result_that_another_program_changed_is_not_complete(
    embed: Embed, source: Path, refused: Callable[..., str], how: str
) -> None:
    embed(source)
    out = source.with_name("vectors.parquet")
    if how == "rows are gone":
        pq.write_table(pq.read_table(out).slice(1), out)
    else:
        DAMAGE[how](out)
    message = refused(source)
    assert str(out) in message
    assert "remove it to compute it again" in message


@pytest.fixture
def stopped(embed: Embed, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job that has two parts."""
    with monkeypatch.context() as patched:
        kill(patched, "add", 3)
        with pytest.raises(Killed):
            embed(source)
    return source.with_name("vectors.parquet.parts")


def test_another_job_is_not_continued(
    stopped: Path, source: Path, refused: Callable[..., str], task_bundles: Path
) -> None:
    for words, options in {
        "options dtype (stored float32, now float16)": ("--dtype", "float16"),
        "columns vector (stored vector, now v)": ("--vector-column", "v"),
    }.items():
        assert words in refused(source, *options)
    other = refused(source, bundle=task_bundles / "embedder" / "1")
    assert "fingerprint manifest_sha256" in other
    corpus_files.write(corpus_files.table(NUM_ROWS, seed=1), source)
    changed = refused(source)
    assert "input texts.parquet" in changed
    assert f"remove {stopped} to start again" in changed


@pytest.mark.parametrize("how", ["lost", "doubled", "moved"])
def test_a_lost_or_doubled_part_is_found(
    stopped: Path, source: Path, refused: Callable[..., str], how: str
) -> None:
    first, second = sorted(stopped.glob("part-*.parquet"))
    if how == "lost":
        first.unlink()
    elif how == "doubled":
        content = second.read_bytes()
        (stopped / part_name(2 * WINDOW_ROWS, content)).write_bytes(content)
    else:
        for part, row in ((first, WINDOW_ROWS), (second, 0)):
            part.rename(stopped / part_name(row, part.read_bytes()))
    assert "does not continue the parts before it" in refused(source)


FOREIGN = {  # what a part says it was made of -> what is said of it
    '{"fingerprint": {"precision": "int8"}}': "belongs to another job. Differences: input"
    " texts.parquet",
    "{}": "belongs to another job",
    "[1]": "does not record the texts and options it was made from; to compute",
    '{"fingerprint": 3}': "does not record the texts and options it was made from",
    "[" * 100_000: "does not record the texts and options it was made from",
    "": "does not record the texts and options it was made from",
}


@pytest.mark.parametrize("plan", FOREIGN, ids=FOREIGN.values())
def test_a_part_of_another_job_is_found(
    stopped: Path, source: Path, refused: Callable[..., str], plan: str
) -> None:
    _, second = sorted(stopped.glob("part-*.parquet"))
    part = pq.read_table(second)
    metadata = {**(part.schema.metadata or {}), PLAN_KEY.encode(): plan.encode()}
    pq.write_table(part.replace_schema_metadata(metadata), second)
    foreign = second.rename(stopped / part_name(WINDOW_ROWS, second.read_bytes()))
    assert f"{foreign} {FOREIGN[plan]}" in refused(source)


def test_a_file_that_changes_while_it_is_read_ends_the_job(
    source: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    other = corpus_files.table(NUM_ROWS, seed=1)

    class Changing(Parts):
        def add(self, table: pa.Table) -> None:
            super().add(table)
            changed = corpus_files.write(other, tmp_path / "changed.parquet")
            source.write_bytes(changed.read_bytes())

    message = refused(source, parts=Changing)
    assert "texts.parquet changed while it was being read: remove" in message
    assert not (tmp_path / "vectors.parquet").exists()
    assert "input texts.parquet" in refused(source)  # nor does the job go on


def test_a_link_stays_and_its_target_is_written(
    embed: Embed, source: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (link := tmp_path / "vectors.parquet").symlink_to(elsewhere / "target.parquet")
    assert len(embed(source)) == NUM_ROWS
    assert link.is_symlink()
    assert [file.name for file in elsewhere.iterdir()] == ["target.parquet"]
    link.unlink()
    link.symlink_to(tmp_path / "none" / "target.parquet")
    assert f"the folder {tmp_path / 'none'} does not exist" in refused(source)


@pytest.fixture
def bad_source(tmp_path: Path) -> Path:
    """Good rows, and three kinds of bad ones."""
    texts = [b"dog runs %d" % row for row in range(NUM_ROWS)]
    texts[3], texts[300], texts[301] = None, b"\xff", LONG.encode()  # type: ignore[call-overload]
    texts[10:20] = [None] * 10  # type: ignore[list-item]
    column = pa.array(texts, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column, "id": range(NUM_ROWS)}), tmp_path / "bad.parquet")
    return tmp_path / "bad.parquet"


BAD_PLACES = [3, *range(10, 20), 300, 301]


def test_all_bad_rows_are_counted_and_ten_are_named(
    refused: Callable[..., str], bad_source: Path, tmp_path: Path
) -> None:
    message = refused(bad_source)
    assert "13 rows cannot be embedded: row 3: column 'text' is null; row 10: column" in message
    assert message.count("; row") == 9
    assert message.endswith("; and 3 more\n")
    table = pq.read_table(bad_source)
    for column in (table.column("text"), table.column("text").cast(pa.binary())):
        late = pa.array(column.cast(pa.binary()).to_pylist()[300:302]).view(pa.string())
        for texts in (late, late.dictionary_encode()):
            pq.write_table(pa.table({"text": texts}), tmp_path / "late.parquet")
            message = refused(tmp_path / "late.parquet")
            assert "2 rows cannot be embedded: row 0: column 'text' is not UTF-8; row 1 " in message
    assert not (tmp_path / "vectors.parquet.parts").exists()


@pytest.mark.parametrize("policy", ["null", "skip"])
def test_a_job_goes_on_without_bad_rows(
    embed: Embed,
    bad_source: Path,
    text_bundles: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
) -> None:
    """The others have the vectors of a job of them alone, also after a kill and from an earlier
    file, and a file names the bad ones."""
    table = embed(bad_source, "--bad-rows", policy)
    out = bad_source.with_name("vectors.parquet")
    whole = out.read_bytes()
    named = out.with_name("vectors.parquet.bad-rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in named] == BAD_PLACES
    assert "13 rows cannot be embedded and are" in capsys.readouterr().err
    embed(bad_source, "--bad-rows", policy)
    assert "is complete" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        check_command.check([str(out), "--model", str(text_bundles / TEXT_MODEL / "1")])
    assert ended.value.code == check_command.EQUAL
    good = [row for row in range(NUM_ROWS) if row not in BAD_PLACES]
    assert table.column("id").to_pylist() == (good if policy == "skip" else [*range(NUM_ROWS)])
    vectors = table.filter(table.column("vector").is_valid()).column("vector")
    out.unlink()
    with monkeypatch.context() as patched:
        kill(patched, "add", 2)
        with pytest.raises(Killed):
            embed(bad_source, "--bad-rows", policy)
    embed(bad_source, "--bad-rows", policy)
    assert out.read_bytes() == whole
    earlier = str(out.rename(out.with_name("old.parquet")))
    embed(bad_source, "--bad-rows", policy, "--from", earlier)
    assert out.read_bytes() == whole
    assert "1,187 rows reused" in capsys.readouterr().out
    out.unlink()
    rows = pq.read_table(bad_source).take(good)
    alone = embed(corpus_files.write(rows, bad_source.with_name("good.parquet")))
    assert alone.column("vector").combine_chunks().equals(vectors.combine_chunks())


def test_the_disk_is_asked_before_the_first_row(
    means: Means, source: Path, text_bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row takes 32 numbers of four bytes and 32 of digests, in a part and in OUT."""
    out = source.with_name("vectors.parquet")
    words = [str(source), str(out), "--model", str(text_bundles / TEXT_MODEL / "1")]
    needed = 2 * NUM_ROWS * (32 * 4 + 32)
    with pytest.raises(SystemExit):
        embed_command.embed(words, replace(means, free_bytes=lambda _: needed - 1))
    assert "vectors.parquet needs about 0.4 MB on the disk" in capsys.readouterr().err
    embed_command.embed([*words, "--yes"], replace(means, free_bytes=lambda _: needed - 1))
    out.unlink()
    embed_command.embed(words, replace(means, free_bytes=lambda _: needed))


def one_byte(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)


def other_vectors(part: Path) -> None:
    """Another program keeps the metadata, and writes correct checksums."""
    table = pq.read_table(part)
    place = table.column_names.index("vector")
    rolled = table.column("vector").take(np.roll(np.arange(len(table)), 1))
    pq.write_table(table.set_column(place, "vector", rolled), part)


def other_order(part: Path) -> None:
    table = pq.read_table(part)
    pq.write_table(table.take(np.arange(len(table))[::-1]), part)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda part: os.truncate(part, part.stat().st_size // 2),
    "one byte": one_byte,
    "other vectors": other_vectors,
    "other order": other_order,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_part_is_named_before_work_and_may_be_made_again(
    embed: Embed,
    stopped: Path,
    source: Path,
    refused: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    _, second = sorted(stopped.glob("part-*.parquet"))
    DAMAGE[damage](second)
    message = refused(source)
    assert f"{second} is damaged" in message
    assert "remove it and the parts after it" in message
    second.unlink()
    capsys.readouterr()
    embed(source)
    assert f"{NUM_ROWS - WINDOW_ROWS:,} of them now" in capsys.readouterr().out


def test_a_job_without_a_part_does_not_hold_up_another(
    embed: Embed, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        kill(patched, "add", 1)
        with pytest.raises(Killed):
            embed(source)
    embed(source, "--dtype", "float16")


def test_a_folder_is_read_whole_or_refused(
    embed: Embed, refused: Callable[..., str], tmp_path: Path
) -> None:
    (folder := tmp_path / "texts").mkdir()
    (folder / "a.csv").write_text("text\na\n")
    (folder / ".hidden.csv").write_text("text\nb\n")
    assert embed(folder).column("text").to_pylist() == ["a"]
    (folder / "a.csv").unlink()
    assert "has no files that end in .parquet" in refused(folder)


@pytest.mark.parametrize("out", ["vectors.csv", "vectors.jsonl", "vectors", "s3://bucket/v.csv"])
def test_only_parquet_is_written(
    means: Means, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    """It is said before IN or the bundle is opened."""
    out = out if "://" in out else str(tmp_path / out)
    with pytest.raises(SystemExit) as ended:
        embed_command.embed([str(tmp_path / "texts.csv"), out, "--model", "none"], means)
    assert ended.value.code == embed_command.NOT_DONE
    message = f"{out}: OUT is a Parquet file: its name must end in .parquet"
    assert capsys.readouterr().err == f"addnorm embed: {message}\n"


def test_a_log_gets_a_line_from_time_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = Progress(10_000, 5_000, clock=lambda: now[0])
    batch = Batch.of([np.array([1, 2, 3])] * 100)
    for second in range(1, 46):
        now[0] = second
        progress.count(batch)
    progress.close()
    assert capsys.readouterr().err == (
        "addnorm embed: 8,000 of 10,000 rows, 300 tokens a second, about 0:00:20 left\n"
    )


def test_a_model_that_is_not_made_to_embed_is_told(
    embed: Embed, source: Path, task_bundles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(source, bundle=task_bundles / "reranker" / "1")
    assert "reranker/1 cannot embed" in capsys.readouterr().err


def test_two_processes_do_not_write_one_file(
    stopped: Path, source: Path, refused: Callable[..., str]
) -> None:
    plan = plan_of(Location.parse(next(stopped.glob("part-*.parquet"))))
    assert plan
    with Parts(Location.parse(source.with_name("vectors.parquet")), plan, {}).open():
        assert "another process is writing" in refused(source)


def test_a_long_text_stops_the_job_and_may_then_be_cut(
    embed: Embed, refused: Callable[..., str], text_client: httpx.Client, tmp_path: Path
) -> None:
    rows = corpus_files.table(NUM_ROWS)
    texts = rows.column("text").to_pylist()
    texts[1100] = LONG
    rows = rows.set_column(1, "text", pa.array(texts))
    source = corpus_files.write(rows, tmp_path / "texts.parquet")
    message = refused(source)
    assert re.search(r"row 1100 has 42 tokens, 30 more than \S+ takes \(12\): .*truncate", message)
    vectors = array(embed(source, "--truncate").column("vector"))
    assert same_bits(vectors, served(text_client, texts, truncate=True))


TWO_TYPES = b'{"text": "a", "n": 1}\n' * 256 + b'{"text": "a", "n": "b"}'
BAD_FILES: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "row 1: column 'text' is null": ("jsonl", b'{"text": "a"}\n{"text": null}\n', ()),
    "line 2 is not valid JSON": ("jsonl", b'{"text": "a"}\n{"text\n', ()),
    "line 1 is not a JSON object": ("jsonl", b"[1]\n", ()),
    "line 2 has the key 'text' twice": (
        "jsonl", b'{"text": "a: b", "x": 1}\n{"text": "a", "text": "b"}\n', ()
    ),
    "line 1 has the key 'b' twice": ("jsonl", b'{"text": "", "a": [{"b": 1, "b": 2}]}\n', ()),
    "row 300: column 'text' is int, and str in rows before it": (
        "jsonl", b'{"text": "a"}\n' * 300 + b'{"text": 5}\n', ()
    ),
    "line 1 is nested too deep": (
        "jsonl", b'{"text": ":", "a": ' + b"[" * 1020 + b"]" * 1020 + b"}\n", ()
    ),
    "incompatible types": ("jsonl", TWO_TYPES, ()),
    "column 'text' is int64, not text": ("jsonl", b'{"text": 1}\n', ()),
    "has no column 'words'": ("csv", b"text\na\n", ("--text-column", "words")),
    "has a column 'vector'": ("csv", b"text,vector\na,b\n", ()),
    "its columns cannot be copied to the result": ("jsonl", b'{"text": "a", "meta": {}}\n', ()),
    "cannot be read: Python int": (
        "jsonl", b'{"text": "a", "k": 18446744073709551615}\n{"text": "b", "k": null}\n', ()
    ),
    "is empty": ("csv", b"", ()),
    "are the same column": (
        "csv", b"text\na\n", ("--output", "scores", "--second-text-column", "text")
    ),
    "has no rows": ("csv", b"text\n", ()),
    "cannot be read: ": ("parquet", b"no parquet", ()),
    "its name must end in one of": ("txt", b"a", ()),
    "applies to the output sparse": ("csv", b"text\na\n", ("--top-k", "3")),
    "for the output scores it must be one of": (
        "csv", b"text\na\n", ("--output", "scores", "--dtype", "int8")
    ),
    "cannot make sparse vectors": ("csv", b"text\na\n", ("--output", "sparse")),
    "needs --output scores": ("csv", b"text\na\n", ("--second-text-column", "text")),
    "has no such prompt": ("csv", b"text\na\n", ("--prompt-name", "query")),
    "has fp32, not int8": ("csv", b"text\na\n", ("--model", "{bundle}@int8")),
    "dimensions is 33": ("csv", b"text\na\n", ("--dimensions", "33")),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD_FILES)
def test_a_bad_file_or_option_is_named(
    refused: Callable[..., str], text_bundles: Path, tmp_path: Path, words: str
) -> None:
    suffix, content, option_forms = BAD_FILES[words]
    options = [form.format(bundle=text_bundles / TEXT_MODEL) for form in option_forms]
    (source := tmp_path / f"texts.{suffix}").write_bytes(content)
    assert words in refused(source, *options)
    assert not (tmp_path / "vectors.parquet").exists()


def test_a_file_of_json_may_begin_with_a_byte_order_mark(embed: Embed, tmp_path: Path) -> None:
    (source := tmp_path / "texts.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
    assert embed(source).column("text").to_pylist() == ["a", "b"]


def test_a_file_that_no_job_made_is_not_replaced(
    refused: Callable[..., str], source: Path, tmp_path: Path, notebook: Path
) -> None:
    (out := tmp_path / "vectors.parquet").write_text("mine")
    assert "was not written by this job" in refused(source)
    assert out.read_text() == "mine"
    assert "would be read as input" in refused(tmp_path)
    out.unlink()
    assert "has no tokenizer" in refused(source, bundle=notebook)


def test_ray_datas_callable_gives_the_same_bits_in_any_batches(
    embed: Embed, text_bundles: Path, rows: pa.Table, source: Path
) -> None:
    expected = embed(source)
    with closing(Addnorm(str(text_bundles / TEXT_MODEL / "1"))) as addnorm:
        tables = [
            addnorm(rows.slice(start, size)) for start, size in ((0, 1), (1, 900), (901, 299))
        ]
        assert pa.concat_tables(tables).equals(expected.drop_columns("vector_of_text"))
        assert addnorm.metadata["addnorm.fingerprint"].encode() in expected.schema.metadata.values()
        with pytest.raises(CorpusError, match="row 1: column 'text' is null"):
            addnorm(pa.table({"text": ["a", None]}))


def test_equal_texts_are_computed_once(text_bundles: Path, tmp_path: Path) -> None:
    texts = ["the same text", "pads costs nothing"] * 200
    source = corpus_files.write(pa.table({"text": texts}), tmp_path / "texts.parquet")
    computed = list[int]()

    def counted(bundle: Path, **settings: Any) -> Service:
        service = embedder.open_service(bundle, **settings)
        target = service.models.find(None).target(None)
        run = target.run

        def counting(batch: Any) -> Any:
            computed.append(len(batch))
            return run(batch)

        target.run = target.run_on_all_cores = counting
        return service

    out, bundle = tmp_path / "vectors.parquet", text_bundles / TEXT_MODEL / "1"
    embed_command.embed([str(source), str(out), "--model", str(bundle)], Means(counted))
    vectors = pq.read_table(out).column("vector").to_pylist()
    assert sum(computed) < 20  # one tells the type of the column; requests at once share nothing
    assert vectors[0::2] == vectors[:1] * 200
    assert vectors[1::2] == vectors[1:2] * 200
