"""`addnorm embed` from and to a local S3 server, killed twice: the bytes of a disk's job."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from addnorm.corpus import command
from addnorm.corpus.storage import Location
from benchmarks.findings import BUILD
from benchmarks.processes import LOOPBACK, program
from tests.support import corpus_files
from tests.support.texts import TEXT_MODEL

pytestmark = pytest.mark.object_store
NUM_ROWS = 100_000  # seven windows
KILLED_AFTER = (2, 4)  # parts that are seen before the process is killed
BUCKET = "corpus"


@pytest.fixture(scope="module")
def bucket() -> Iterator[fs.FileSystem]:
    """An empty bucket, of which the environment tells every process."""
    command = [BUILD / "s3/bin/moto_server", "-H", LOOPBACK, "-p"]
    with program(command) as server, pytest.MonkeyPatch.context() as patched:
        url = f"http://{server.host}:{server.port}"
        patched.setenv("AWS_ENDPOINT_URL", url)
        patched.setenv("AWS_ACCESS_KEY_ID", "any")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "any")
        files = fs.S3FileSystem(endpoint_override=url, allow_bucket_creation=True)
        files.create_dir(BUCKET)
        yield files


def run(arguments: list[str], kill_after: int | None = None) -> int:
    """Parts that were there when the process ended. Each that is seen is whole."""
    folder = Location.parse(f"{arguments[1]}.parts")
    process = subprocess.Popen([sys.executable, "-m", "addnorm", "embed", *arguments])
    seen = 0
    try:
        while process.poll() is None:
            time.sleep(0.05)
            if kill_after is not None and (seen := _num_whole(folder)) >= kill_after:
                process.kill()
                process.wait()
    finally:
        process.kill()
    assert process.returncode == (0 if kill_after is None else -signal.SIGKILL)
    return seen


def _num_whole(folder: Location) -> int:
    parts = [name for name in folder.names_within() if name] if folder.exists() else []
    for part in parts:
        assert (folder / part).open_parquet().metadata.num_rows > 0
    return len(parts)


def test_a_killed_job_on_s3_writes_the_bytes_of_one_on_disk(
    bucket: fs.FileSystem, text_bundles: Path, tmp_path: Path
) -> None:
    (texts := tmp_path / "texts" / "b").mkdir(parents=True)
    rows = corpus_files.table(NUM_ROWS)
    corpus_files.write(rows.slice(0, 70_000), texts.parent / "a.jsonl")
    corpus_files.write(rows.slice(70_000), texts / "c.parquet")
    fs.copy_files(str(texts.parent), f"{BUCKET}/texts", fs.LocalFileSystem(), bucket)
    options = ["--bundle", str(text_bundles / TEXT_MODEL / "1"), "--truncate"]
    on_disk, on_s3 = tmp_path / "vectors.parquet", f"s3://{BUCKET}/made/vectors.parquet"
    run([str(texts.parent), str(on_disk), *options])
    job = [f"s3://{BUCKET}/texts", on_s3, *options]
    for after in KILLED_AFTER:
        print(f"killed after {run(job, after)} parts")
    run(job)
    assert Location.parse(on_s3).open().read() == on_disk.read_bytes()
    assert Location.parse(f"s3://{BUCKET}/made").names_within() == ["vectors.parquet"]
    made = Location.parse(on_s3).open_parquet().read().drop_columns("vector")
    assert made.replace_schema_metadata(None).equals(rows)
    with pytest.raises(SystemExit) as ended:
        command.check([on_s3, *options[:2]])
    assert ended.value.code == command.EQUAL


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("s3://nobucket/v.parquet", "Bucket 'nobucket' not found"),
        (f"s3://{BUCKET}/texts/v.parquet", "would be read as a part of"),
        (f"s3://{BUCKET}/taken.parquet", "no such job made it"),
    ],
)
def test_what_cannot_be_written_is_said_before_work(
    bucket: fs.FileSystem, text_bundles: Path, out: str, words: str
) -> None:
    with bucket.open_output_stream(f"{BUCKET}/texts/x.csv") as stream:
        stream.write(b"text\na\n")
    with bucket.open_output_stream(f"{BUCKET}/taken.parquet") as stream:
        stream.write(b"mine")
    command_line = [f"s3://{BUCKET}/texts", out, "--bundle", str(text_bundles / TEXT_MODEL / "1")]
    done = subprocess.run(
        [sys.executable, "-m", "addnorm", "embed", *command_line], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert words in done.stderr
