"""One graph on one thread and on all cores: the same bits, one copy of the weights."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from addnorm.service.errors import StartupError
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.session import open_sessions
from tests.conftest import ExportPreset

LENGTHS = (1, 2, 3, 8, 17, 40, 64)


@pytest.fixture(scope="module")
def bundle(export_preset: ExportPreset) -> Bundle:
    return bundles.read(export_preset("gpt") / "1")


def test_all_cores_give_the_bits_of_one_thread(bundle: Bundle) -> None:
    engine = Engine(bundle, "fp32", "cpu", num_threads=3)
    together = selfcheck.sequences(bundle.manifest.limits, LENGTHS)
    for batch in (together, *map(together.sequence, range(len(together)))):
        assert selfcheck.same_bits(engine.run(batch), engine.run_on_all_cores(batch))


def test_other_bits_on_all_cores_refuse_the_bundle(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(bundle, "fp32", "cpu", num_threads=2)

    def others(batch: Batch) -> Rows:
        rows = engine.run(batch)
        rows.activations[-1, -1] = np.nextafter(rows.activations[-1, -1], np.float32(9))
        return rows

    assert not list(selfcheck.unequal(engine, bundle.manifest.limits, [], (3, 5)))
    monkeypatch.setattr(engine, "run_on_all_cores", others)
    (found,) = selfcheck.unequal(engine, bundle.manifest.limits, [], (3, 5))
    assert found == "2 sequences on one thread differ from the same on all cores"


def test_both_map_one_file_that_is_deleted(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sessions = open_sessions(bundle.graph("fp32"), "cpu", 2)
    assert sessions.one_thread is not sessions.all_cores
    assert not os.listdir(tmp_path)
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    files = {line[4] for line in mapped if len(line) > 5 and line[5].startswith(str(tmp_path))}
    assert len(files) == 1  # by inode


def test_one_thread_needs_no_file(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    sessions = open_sessions(bundle.graph("fp32"), "cpu", 1)
    assert sessions.one_thread is sessions.all_cores
    with pytest.raises(StartupError, match="set TMPDIR to another one"):
        open_sessions(bundle.graph("fp32"), "cpu", 2)
