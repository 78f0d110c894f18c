"""What an earlier start proved is taken by the next, and by none with other files, another
certificate, processor, version or setting."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch, Floats, Grid, Rows
from addnorm.service.engine.engine import Engine, OpenEngine
from addnorm.service.engine.fingerprint import ANY, Fingerprint
from addnorm.service.engine.model import Model
from addnorm.service.errors import StartupError
from addnorm.service.loading import kept_proofs, loader
from addnorm.service.settings import Settings
from tests.support.other_engines import OnGpu, round_up

SETTINGS = Settings(worker_threads=2)
BUDGET = 77  # that no measurement chooses
Start = Callable[..., Model]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "proofs"


@pytest.fixture
def start(notebook: Path, folder: Path) -> Start:
    def start(path: Path = notebook, engine: OpenEngine = Engine) -> Model:
        bundle = bundles.read(path)
        return loader.load(bundle, SETTINGS, engines=lambda _: engine, proofs_folder=folder)

    return start


def mark(folder: Path) -> Path:
    """Writes a budget into the kept proof, which whoever takes it has."""
    (file,) = folder.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "token_budget": BUDGET}))
    return file


def is_kept(model: Model) -> bool:
    return model.target("fp32").token_budget == BUDGET


def test_the_next_start_takes_the_proof(
    start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = start()
    assert "earlier start" not in caplog.text
    written_at = mark(folder).stat().st_mtime_ns
    second = start()
    assert is_kept(second)
    assert caplog.messages[-1].endswith("; fp32 proved at an earlier start")
    assert second.engine("fp32").fingerprint == first.engine("fp32").fingerprint
    assert second.engine("fp32").fingerprint.processor.startswith(ANY)
    assert second.reproductions == first.reproductions
    (file,) = folder.iterdir()
    assert file.stat().st_mtime_ns == written_at, "its age counts from the proof"


def test_all_that_a_proof_depends_on_names_it() -> None:
    here = Fingerprint.here("0" * 64, "fp32", "cpu")
    names = [kept_proofs.name_of(here, {}, "EPYC", SETTINGS)]
    names += [
        kept_proofs.name_of(replace(here, **{part: "other"}), {}, "EPYC", SETTINGS)
        for part in here.parts()
    ]
    names.append(kept_proofs.name_of(here, {"known_digests": {}}, "EPYC", SETTINGS))
    names.append(kept_proofs.name_of(here, {}, "Xeon", SETTINGS))
    names.append(kept_proofs.name_of(here, {}, "EPYC", Settings(worker_threads=1)))
    names.append(kept_proofs.name_of(here, {}, "EPYC", Settings(worker_threads=2, token_budget=9)))
    assert len({*here.parts()}) == 8
    assert len({*names}) == len(names) == 13


def test_another_certificate_is_proved_anew(
    start: Start, folder: Path, notebook: Path, tmp_path: Path
) -> None:
    start()
    mark(folder)
    copy = tmp_path / "notebook" / "1"
    shutil.copytree(notebook, copy)
    file = copy / "certificate.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "created": "2020-01-01T00:00:00"}))
    assert not is_kept(start(copy))


def test_changed_weights_are_not_served(start: Start, notebook: Path, tmp_path: Path) -> None:
    start()
    copy = tmp_path / "notebook" / "1"
    shutil.copytree(notebook, copy)
    graph = copy / "model.onnx"
    content, stat = bytearray(graph.read_bytes()), graph.stat()
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    os.utime(graph, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as it was, by size and time
    with pytest.raises(StartupError, match=r"model\.onnx does not match its sha256"):
        start(copy)


@pytest.mark.parametrize("harm", ["other bits", "broken", "old"])
def test_a_proof_that_does_not_hold_is_made_anew(start: Start, folder: Path, harm: str) -> None:
    start()
    file = mark(folder)
    if harm == "broken":
        file.write_text(file.read_text()[:-2])
    if harm == "old":
        long_ago = file.stat().st_mtime - kept_proofs.KEPT_S - 1
        os.utime(file, (long_ago, long_ago))
    if harm == "other bits":
        bits = {**json.loads(file.read_text()), "short_bits": "0" * 32}
        file.write_text(json.dumps(bits))
    assert not is_kept(start())
    assert json.loads(file.read_text())["token_budget"] != BUDGET, "the new one is kept"
    mark(folder)
    assert is_kept(start())


class VariesWithPads(Engine):
    def run_grid(self, grid: Grid) -> list[Floats]:
        activations, *statistics = super().run_grid(grid)
        return [activations + (grid.attention_mask == 0).any(), *statistics]


def test_what_fails_or_promises_no_bits_is_not_kept(start: Start, folder: Path) -> None:
    with pytest.raises(StartupError, match="padded"):
        start(engine=VariesWithPads)
    assert not folder.exists()
    start(engine=OnGpu)
    assert not folder.exists()


def test_where_nothing_can_be_written_it_is_served(start: Start, folder: Path) -> None:
    folder.parent.parent.mkdir(exist_ok=True)
    folder.parent.write_text("a file in place of the folder")
    assert start().is_loaded


class OtherOnOneThread(Engine):
    """A machine on which the two sessions have come to differ."""

    def run(self, batch: Batch) -> Rows:
        rows = super().run(batch)
        if len(batch) > 1:
            round_up(rows.activations[0])
        return rows


def test_other_bits_on_one_thread_than_on_all_cores_are_not_served(
    start: Start, folder: Path
) -> None:
    start()
    mark(folder)
    with pytest.raises(StartupError, match="on one thread differ from the same on all cores"):
        start(engine=OtherOnOneThread)
