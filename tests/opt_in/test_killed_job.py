"""Jobs of `addnorm embed` that are killed twice with SIGKILL, on a disk and on a local S3 server,
beside jobs that are not: equal bytes, flat memory."""

import fnmatch
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from addnorm.corpus.check import check_command
from addnorm.corpus.embed.parts import JOINED_FILE
from addnorm.corpus.storage import Location
from addnorm.export import sources
from addnorm.export.exporting import export
from benchmarks.data import texts
from benchmarks.findings import BUILD, BUNDLES
from benchmarks.processes import LOOPBACK, program
from tests.support import corpus_files
from tests.support.texts import TEXT_MODEL, checkpoint

pytestmark = pytest.mark.killed_job
NUM_ROWS = 600_000  # memory rises until the cache is full, after some 250,000 of these texts
NUM_ON_S3 = 100_000  # seven windows
NUM_SLOW = 10_000  # one window, of a model that takes longer for it than until vectors are saved
KILLED_AFTER = (2, 4)  # parts that are seen before the process is killed
PARTS, SAVED = "part-*.parquet", "saved-*.parquet"  # saved: of a window that is not complete
# of resident memory, the last fifth over the third, until the parts are joined: that takes one part
# more, however many there are
MAX_GROWTH = 1.1
BUCKET = "corpus"


class Ended(NamedTuple):
    """A process of a job."""

    resident_mib: list[float]  # twenty times a second
    num_parts: int  # that were there when it ended


def run(arguments: list[str], kill_after: int | None = None, files: str = PARTS) -> Ended:
    """kill_after: so many files of this kind, in the midst of the next window. Each that is seen is
    whole."""
    folder, resident = Location.parse(f"{arguments[1]}.parts"), list[float]()
    joined_file = Path(f"{arguments[1]}.parts", JOINED_FILE)
    process = subprocess.Popen([sys.executable, "-m", "addnorm", "embed", *arguments])
    seen = 0
    try:
        while process.poll() is None:
            if not joined_file.exists():
                resident.append(_resident_mib(process.pid))
            time.sleep(0.05)
            if kill_after is not None and (seen := _num_whole(folder, files)) >= kill_after:
                process.kill()
                process.wait()
    finally:
        process.kill()
    assert process.returncode == (0 if kill_after is None else -signal.SIGKILL)
    return Ended(resident, seen)


def _num_whole(folder: Location, files: str) -> int:
    # beside them a folder has a lock, and a part while it is written
    names = fnmatch.filter(folder.names_within() if folder.exists() else [], files)
    for name in names:
        assert (folder / name).open_parquet().metadata.num_rows > 0
    return len(names)


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_killed(job: list[str]) -> None:
    """To its end, in as many processes as are killed and one more."""
    for after in KILLED_AFTER:
        print(f"killed after {run(job, after).num_parts} parts")
    run(job)


def test_a_killed_job_writes_the_same_bytes_in_flat_memory(tmp_path: Path) -> None:
    """A tiny BERT that takes texts: it shows what a job costs beside the model."""
    source = sources.checkpoint(checkpoint(tmp_path / "small"))
    bundle = export(source, tmp_path / "bundles", "small").path
    rows = texts.write(tmp_path / "texts.parquet", NUM_ROWS, bundle, "tiny")
    outs = [tmp_path / "unkilled.parquet", tmp_path / "killed.parquet"]
    jobs = [[str(rows), str(out), "--model", str(bundle), "--truncate"] for out in outs]
    whole = run(jobs[0])
    run_killed(jobs[1])
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert pq.read_metadata(outs[0]).num_rows == NUM_ROWS
    fifths = [np.median(part) for part in np.array_split(whole.resident_mib, 5)]
    print(f"resident MiB in each fifth: {[round(one) for one in fifths]}")
    assert fifths[4] <= MAX_GROWTH * fifths[2]


def test_a_job_killed_within_a_window_computes_less_and_writes_the_same_bytes(
    tmp_path: Path,
) -> None:
    bundle = BUNDLES / "all-minilm-l6-v2" / "1"
    rows = texts.write(tmp_path / "texts.parquet", NUM_SLOW, bundle)
    outs = [tmp_path / "unkilled.parquet", tmp_path / "killed.parquet"]
    jobs = [[str(rows), str(out), "--model", f"{bundle}@fp32"] for out in outs]
    run(jobs[0])
    run(jobs[1], 1, SAVED)
    embed = [sys.executable, "-m", "addnorm", "embed", *jobs[1]]
    done = subprocess.run(embed, capture_output=True, text=True, check=True)
    match = re.search(r"([\d,]+) of them now", done.stdout)
    assert match
    assert int(match[1].replace(",", "")) < NUM_SLOW
    assert outs[0].read_bytes() == outs[1].read_bytes()


@pytest.fixture(scope="module")
def bucket() -> Iterator[fs.FileSystem]:
    """An empty bucket, of which the environment tells every process."""
    moto = [BUILD / "s3/bin/moto_server", "-H", LOOPBACK, "-p"]
    with program(moto) as server, pytest.MonkeyPatch.context() as patched:
        url = f"http://{server.host}:{server.port}"
        patched.setenv("AWS_ENDPOINT_URL", url)
        patched.setenv("AWS_ACCESS_KEY_ID", "any")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "any")
        files = fs.S3FileSystem(endpoint_override=url, allow_bucket_creation=True)
        files.create_dir(BUCKET)
        yield files


def test_a_killed_job_on_s3_writes_the_bytes_of_one_on_disk(
    bucket: fs.FileSystem, text_bundles: Path, tmp_path: Path
) -> None:
    (own := tmp_path / "texts" / "b").mkdir(parents=True)
    rows = corpus_files.table(NUM_ON_S3)
    corpus_files.write(rows.slice(0, 70_000), own.parent / "a.jsonl")
    corpus_files.write(rows.slice(70_000), own / "c.parquet")
    fs.copy_files(str(own.parent), f"{BUCKET}/texts", fs.LocalFileSystem(), bucket)
    options = ["--model", str(text_bundles / TEXT_MODEL / "1"), "--truncate"]
    on_disk, on_s3 = tmp_path / "vectors.parquet", f"s3://{BUCKET}/made/vectors.parquet"
    run([str(own.parent), str(on_disk), *options])
    run_killed([f"s3://{BUCKET}/texts", on_s3, *options])
    assert Location.parse(on_s3).open().read() == on_disk.read_bytes()
    assert Location.parse(f"s3://{BUCKET}/made").names_within() == ["vectors.parquet"]
    rows_made = Location.parse(on_s3).open_parquet().read().select(rows.column_names)
    assert rows_made.replace_schema_metadata(None).equals(rows)
    with pytest.raises(SystemExit) as ended:
        check_command.check([on_s3, *options[:2]])
    assert ended.value.code == check_command.EQUAL


def test_a_killed_job_on_s3_takes_over_the_vectors_of_an_earlier_one(
    bucket: fs.FileSystem, text_bundles: Path, tmp_path: Path
) -> None:
    rows, more = corpus_files.table(NUM_ON_S3), corpus_files.table(2000, seed=1)
    corpus_files.write(rows, tmp_path / "old.jsonl")
    corpus_files.write(pa.concat_tables([more, rows.slice(500)]), tmp_path / "new.jsonl")
    options = ["--model", str(text_bundles / TEXT_MODEL / "1")]
    old, on_s3 = f"s3://{BUCKET}/earlier/old.parquet", f"s3://{BUCKET}/earlier/new.parquet"
    run([str(tmp_path / "old.jsonl"), old, *options])
    run([str(tmp_path / "new.jsonl"), str(tmp_path / "whole.parquet"), *options])
    run_killed([str(tmp_path / "new.jsonl"), on_s3, *options, "--from", old])
    assert Location.parse(on_s3).open().read() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("s3://nobucket/v.parquet", "Bucket 'nobucket' not found"),
        (f"s3://{BUCKET}/texts/v.parquet", "would be read as input"),
        (f"s3://{BUCKET}/taken.parquet", "was not written by this job"),
    ],
)
def test_what_cannot_be_written_is_said_before_work(
    bucket: fs.FileSystem, text_bundles: Path, out: str, words: str
) -> None:
    for name, content in (("texts/x.csv", b"text\na\n"), ("taken.parquet", b"mine")):
        with bucket.open_output_stream(f"{BUCKET}/{name}") as stream:
            stream.write(content)
    job = [f"s3://{BUCKET}/texts", out, "--model", str(text_bundles / TEXT_MODEL / "1")]
    embed = [sys.executable, "-m", "addnorm", "embed", *job]
    done = subprocess.run(embed, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert words in done.stderr
