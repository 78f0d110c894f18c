"""`addnorm serve ORG/NAME`: exported once, kept, and served from what is kept."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from addnorm.corpus.check.check_command import check
from addnorm.corpus.embed.embed_command import embed
from addnorm.export import kept
from addnorm.service.engine.files import sha256
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import hold, where_kept
from tests.support import web
from tests.support.hub import COMMIT, REPOSITORY, hub
from tests.support.process import Process
from tests.support.texts import checkpoint
from tests.support.waiting import PATIENCE_S


class Exporter:
    """Stands for `addnorm export`: writes a folder as it would, and counts. meanwhile: what happens
    to the checkpoint before it is read."""

    def __init__(self, fails: bool = False, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.commands, self.fails, self.meanwhile = list[list[str]](), fails, meanwhile

    def __call__(self, words: Sequence[str]) -> None:
        self.commands.append([*words])
        checkpoint = words[0].rpartition("@")[0]
        name = checkpoint.rpartition("/")[2].partition("@")[0]
        place = Path(words[words.index("--out") + 1]) / name
        self.meanwhile()
        (place / ".1.partial").mkdir(parents=True, exist_ok=True)
        if self.fails:
            sys.exit("no space left")
        (place / "1").mkdir()
        weights = {file.name: sha256(file) for file in Path(checkpoint).glob("*.safetensors")}
        manifest = {"source": {"weights": weights}}
        (place / "1" / "manifest.json").write_text(json.dumps(manifest))


DECIDES = ("model.safetensors", "config.json", "tokenizer.json", "1_Pooling/config.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    made.mkdir()
    for name in DECIDES:
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(f"{name} as it was")
    return made


def test_what_was_exported_is_found_until_something_changes(folder: Path, tmp_path: Path) -> None:
    export, root = Exporter(), tmp_path / "kept"

    def find(precision: str = "fp32") -> Path:
        return kept.bundle_of(str(folder), precision, root, export)

    first = find()
    assert first.name == "tiny"
    assert (find(), len(export.commands)) == (first, 1)
    assert find("int8,fp32") != first
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert find() != first
    assert len(export.commands) == 3


@pytest.mark.parametrize("back", [False, True], ids=["changed", "changed and put back"])
@pytest.mark.parametrize("name", DECIDES)
def test_an_export_of_what_changed_meanwhile_is_not_kept(
    name: str, back: bool, folder: Path, tmp_path: Path
) -> None:
    """A training run may write its next checkpoint into the folder. What is there at the end of the
    export need not be what was exported."""
    file, root = folder / name, tmp_path / "kept"
    before = file.read_text()

    def write() -> None:
        file.write_text("another")
        if back:
            file.write_text(before)

    with pytest.raises(StartupError, match="changed during the export"):
        kept.bundle_of(str(folder), "fp32", root, Exporter(meanwhile=write))
    file.write_text(before)
    bundle_folder = kept.bundle_of(str(folder), "fp32", root, again := Exporter())
    assert len(again.commands) == 1
    assert {path.name for path in root.iterdir()} == {bundle_folder.parent.name, "folders", "locks"}


@pytest.mark.parametrize("damage", ['{"source": {"weights": {"a": "of others"}}}', "{", "[1]", ""])
def test_a_kept_bundle_that_is_not_what_was_exported_is_exported_again(
    damage: str, folder: Path, tmp_path: Path
) -> None:
    bundle_folder = kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter())
    (bundle_folder / "1" / "manifest.json").write_text(damage)
    again = Exporter()
    assert kept.bundle_of(str(folder), "fp32", tmp_path / "kept", again) == bundle_folder
    assert len(again.commands) == 1


def test_files_behind_links_decide_too(folder: Path, tmp_path: Path) -> None:
    """The folder of a module may be a link within the checkpoint, also one that leads back."""
    (folder / "1_Pooling").rename(folder / "pooling")
    (folder / "1_Pooling").symlink_to("pooling")
    (folder / "round").symlink_to(folder)
    found = kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter())
    (folder / "pooling" / "config.json").write_text("another")
    assert kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter()) != found


@pytest.mark.parametrize("name", DECIDES)
def test_links_out_of_the_folder_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    """A folder that somebody sent may name any file of this machine."""
    elsewhere = tmp_path / "elsewhere"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(StartupError, match=f"{name} is a link to {elsewhere}, outside the folder"):
        kept.bundle_of(str(folder), "fp32", tmp_path / "kept", export := Exporter())
    assert not export.commands


def test_links_of_the_hubs_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    """There each file of a snapshot is a link."""
    (blobs := tmp_path / "repository" / "blobs").mkdir(parents=True)
    snapshot = tmp_path / "repository" / "snapshots" / "a-commit"
    shutil.copytree(folder, snapshot)
    for number, name in enumerate(DECIDES):
        (snapshot / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(blobs / str(number))
    assert kept.bundle_of(str(snapshot), "fp32", tmp_path / "kept", Exporter())


def test_what_the_export_does_not_read_decides_nothing(folder: Path, tmp_path: Path) -> None:
    """Such as the files of a training that goes on, and a link to all of the machine."""
    export, root = Exporter(), tmp_path / "kept"
    first = kept.bundle_of(str(folder), "fp32", root, export)
    (folder / "checkpoint-500").mkdir()
    for name in ("optimizer.pt", "train.log", "README.md", "checkpoint-500/model.safetensors"):
        (folder / name).write_text("more")
    (folder / "all").symlink_to("/")
    (folder / "1_Pooling" / "events.out").write_text("more")
    assert kept.bundle_of(str(folder), "fp32", root, export) == first
    assert len(export.commands) == 1


def test_a_backup_by_links_changes_nothing(folder: Path, tmp_path: Path) -> None:
    def back_up() -> None:
        for name in DECIDES:
            (tmp_path / name.replace("/", "-")).hardlink_to(folder / name)

    assert kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter(meanwhile=back_up))


@pytest.mark.parametrize("is_old", [True, False])
def test_large_files_are_hashed_once_and_it_is_said(
    is_old: bool, folder: Path, tmp_path: Path
) -> None:
    """Once while their times stay; again where a later writing could have had the same time."""
    os.truncate(folder / "model.safetensors", kept.LONG_BYTES)  # without blocks on the disk
    messages, line = (
        list[str](),
        f"hashing 0.5 GiB of {folder}, which is not repeated until the files change",
    )

    def find() -> None:
        messages.clear()
        now_ns = (folder / "model.safetensors").stat().st_ctime_ns + 10**12 * is_old
        kept.bundle_of(
            str(folder), "fp32", tmp_path / "kept", Exporter(), messages.append, lambda: now_ns
        )

    find()
    assert messages[0] == line
    find()
    assert messages == ([] if is_old else [line])
    os.utime(folder / "model.safetensors")
    find()
    assert messages == [line]


def test_older_exports_of_a_folder_go(folder: Path, tmp_path: Path) -> None:
    """But for those that a server runs, and those of another folder or another precision."""
    root = tmp_path / "kept"
    shutil.copytree(folder, copied := tmp_path / "copied" / "tiny")

    def find(where: Path = folder, precision: str = "fp32") -> Path:
        return kept.bundle_of(str(where), precision, root, Exporter())

    def change(content: str) -> None:
        (folder / "config.json").write_text(content)

    first, other = find(), find(precision="int8")
    assert find(copied) == first
    change("second")
    second = find()
    assert first.exists()
    assert other.exists()
    held = hold([second])
    change("third!")
    third = find()
    assert second.exists()
    os.close(held[0])
    change("fourth!")
    assert find().exists()
    assert not second.exists()
    assert not third.exists()
    assert first.exists()


def test_bundles_may_be_kept_in_the_checkpoint(folder: Path) -> None:
    export = Exporter()
    first, second = (kept.bundle_of(str(folder), "fp32", folder / "kept", export) for _ in range(2))
    assert first == second
    assert len(export.commands) == 1


def test_a_half_export_is_not_served(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter(fails=True))
    found = kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter())
    assert (found / "1").is_dir()


def test_two_starts_export_once(folder: Path, tmp_path: Path) -> None:
    inside, go_on, export = threading.Event(), threading.Event(), Exporter()
    waits = threading.Event()

    def slowly(words: Sequence[str]) -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        export(words)

    folders = list[Path]()

    def start(run: Callable[[Sequence[str]], None], say: Callable[[str], None]) -> None:
        folders.append(kept.bundle_of(str(folder), "fp32", tmp_path / "kept", run, say))

    threads = [threading.Thread(target=start, args=(slowly, print))]
    threads[0].start()
    assert inside.wait(PATIENCE_S)
    threads.append(threading.Thread(target=start, args=(export, lambda _: waits.set())))
    threads[1].start()
    assert waits.wait(PATIENCE_S)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(export.commands) == 1
    assert folders[0] == folders[1]


def test_a_bundle_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    bundle = tmp_path / "bundles" / "tiny" / "1"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (other := tmp_path / "checkpoint" / "assets").mkdir(parents=True)
    (other / "manifest.json").write_text("{}")
    assert kept.bundle_of(str(other.parent), "fp32", tmp_path / "kept", Exporter())
    for folder in (bundle, *bundle.parents[:2]):
        with pytest.raises(StartupError, match=f"a bundle, not.*`addnorm serve {bundle}"):
            kept.bundle_of(str(folder), "fp32", tmp_path / "kept", Exporter())


def test_who_has_no_home_is_told_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the random user of a container. A folder of bundles is served without a home."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    with pytest.raises(StartupError, match=r"no home folder .*--kept DIR"):
        where_kept(no_home)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert where_kept(no_home) == "/caches/addnorm"


def test_finding_needs_no_pytorch() -> None:
    program = "import sys, addnorm.export.kept; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_name_is_served_and_again_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its names work. The second start exports nothing, and asks in vain what `main` is.
    Nothing that is served lies in the folder for temporary files, which others clean."""
    (tmp_path / "repository").mkdir()
    (tmp_path / "temporary").mkdir()
    words = [REPOSITORY, "--kept", str(tmp_path / "kept")]
    environment = {"HF_HOME": str(tmp_path / "hub"), "ADDNORM_CACHE_BYTES": "0"}
    environment["TMPDIR"] = str(tmp_path / "temporary")
    body, answers = {"input": ["the same text"]}, []
    with hub(checkpoint(tmp_path / "repository")) as served:
        environment["HF_ENDPOINT"] = served.url
        answers += _answers(words, environment, body)
    os.rename(tmp_path / "hub", tmp_path / "gone")
    answers += _answers(words, environment, body)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "texts.csv").write_text("text\nthe same text\n")
    files = [str(tmp_path / "texts.csv"), str(tmp_path / "vectors.parquet")]
    model = ["--model", f"{REPOSITORY}@fp32", *words[1:]]
    embed([*files, *model])  # of the same cache
    (vector,) = pq.read_table(files[1])["vector"].to_pylist()
    assert np.array_equal(np.float32(vector), np.float32(answers[0][0]["embedding"]))
    with pytest.raises(SystemExit) as ended:
        check([files[1], *model])
    assert ended.value.code == 0
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert [path.read_text() for path in (tmp_path / "kept" / "commits").iterdir()] == [COMMIT]


def _answers(
    words: Sequence[str], environment: dict[str, str], body: dict[str, object]
) -> Iterator[object]:
    server = Process(None, *words, **environment)
    try:
        with web.client(base_url=server.url, timeout=PATIENCE_S) as client:
            assert not [*Path(environment["TMPDIR"]).glob("addnorm-*")]
            for model in ("tiny", REPOSITORY):
                response = client.post("/v1/embeddings", json={**body, "model": model})
                yield response.raise_for_status().json()["data"]
    finally:
        server.terminate()
