"""`addnorm serve ORG/NAME`: exported once, kept, and served from what is kept."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from addnorm.export import kept
from addnorm.service.command import serve
from addnorm.service.errors import StartupError
from tests.support import web
from tests.support.hub import COMMIT, REPOSITORY, hub
from tests.support.process import Process
from tests.support.texts import checkpoint


class Exporter:
    """Stands for `addnorm export`: writes a folder as it would, and counts."""

    def __init__(self, fails: bool = False) -> None:
        self.commands, self.fails = list[list[str]](), fails

    def __call__(self, words: Sequence[str]) -> None:
        self.commands.append([*words])
        name = words[words.index("--checkpoint") + 1].rpartition("/")[2].partition("@")[0]
        place = Path(words[words.index("--out") + 1]) / name
        (place / ".1.partial").mkdir(parents=True, exist_ok=True)
        if self.fails:
            sys.exit("no space left")
        (place / "1").mkdir()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"weights")
    return made


def test_what_was_exported_is_found_until_something_changes(folder: Path, tmp_path: Path) -> None:
    export, root = Exporter(), tmp_path / "kept"

    def find(precision: str = "fp32") -> Path:
        return kept.kept(str(folder), precision, root, export)

    first = find()
    assert first.name == "tiny"
    assert (find(), len(export.commands)) == (first, 1)
    assert find("int8,fp32") != first
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert find() != first
    assert len(export.commands) == 3


def test_a_half_export_is_not_served(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        kept.kept(str(folder), "fp32", tmp_path / "kept", Exporter(fails=True))
    found = kept.kept(str(folder), "fp32", tmp_path / "kept", Exporter())
    assert (found / "1").is_dir()


def test_two_starts_export_once(folder: Path, tmp_path: Path) -> None:
    inside, go_on, export = threading.Event(), threading.Event(), Exporter()
    waits = threading.Event()

    def slowly(words: Sequence[str]) -> None:
        inside.set()
        assert go_on.wait(60)
        export(words)

    found = list[Path]()

    def start(run: Callable[[Sequence[str]], None], say: Callable[[str], None]) -> None:
        found.append(kept.kept(str(folder), "fp32", tmp_path / "kept", run, say))

    threads = [threading.Thread(target=start, args=(slowly, print))]
    threads[0].start()
    assert inside.wait(60)
    threads.append(threading.Thread(target=start, args=(export, lambda _: waits.set())))
    threads[1].start()
    assert waits.wait(60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(export.commands) == 1
    assert found[0] == found[1]


def test_a_bundle_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    bundle = tmp_path / "bundles" / "tiny" / "1"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (other := tmp_path / "checkpoint" / "assets").mkdir(parents=True)
    (other / "manifest.json").write_text("{}")
    assert kept.kept(str(other.parent), "fp32", tmp_path / "kept", Exporter())
    for folder in (bundle, *bundle.parents[:2]):
        with pytest.raises(StartupError, match=f"a bundle, not.*--bundles {tmp_path / 'bundles'}"):
            kept.kept(str(folder), "fp32", tmp_path / "kept", Exporter())


def test_a_precision_is_of_models_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve(["--bundles", "bundles", "--precision", "int8"])
    assert "--precision is of models that are named; bundles have" in capsys.readouterr().err


def test_finding_needs_no_pytorch() -> None:
    program = "import sys, addnorm.export.kept; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_name_is_served_and_again_without_the_hub(tmp_path: Path) -> None:
    """Both of its names work. The second start exports nothing, and asks in vain what `main` is."""
    (tmp_path / "repository").mkdir()
    words = [REPOSITORY, "--kept", str(tmp_path / "kept")]
    own = {"HF_HOME": str(tmp_path / "hub"), "ADDNORM_CACHE_BYTES": "0"}
    body, answers = {"input": ["the same text"]}, []
    with hub(checkpoint(tmp_path / "repository")) as served:
        own["HF_ENDPOINT"] = served.url
        answers += _answers(words, own, body)
    os.rename(tmp_path / "hub", tmp_path / "gone")
    answers += _answers(words, own, body)
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert [path.read_text() for path in (tmp_path / "kept" / "commits").iterdir()] == [COMMIT]


def _answers(
    words: Sequence[str], environment: dict[str, str], body: dict[str, object]
) -> Iterator[object]:
    server = Process(None, *words, **environment)
    try:
        with web.client(base_url=server.url, timeout=60) as client:
            for model in ("tiny", REPOSITORY):
                response = client.post("/v1/embeddings", json={**body, "model": model})
                yield response.raise_for_status().json()["data"]
    finally:
        server.terminate()
