"""The run on a GPU, as far as it goes without one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from addnorm.export.certificate import tolerances
from addnorm.model.presets import PRESETS, build
from addnorm.service.runtime.bundle import Bundle
from benchmarks.findings import Options
from benchmarks.gpu import closed, experiment, shapes
from benchmarks.gpu.agreement import invariance, parity
from benchmarks.gpu.setup import Report, Setup, read, words
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.throughput import latency
from benchmarks.peers import torch_encoder


@pytest.fixture
def setup(notebook_in_fp16: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A rehearsal whose only model is there already."""
    monkeypatch.setitem(SHAPES, "notebook", PRESETS["notebook"])
    monkeypatch.setattr(shapes, "model", build)
    made = Setup(tmp_path, "cpu", ["notebook"], 0.001, 3)
    made.bundles.mkdir()
    (made.bundles / "notebook").symlink_to(notebook_in_fp16.path.parent)
    return made


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    (said,) = experiment.run(Options(1, 1, out=tmp_path / "out")).missed
    assert "driver" in said
    assert "CUDAExecutionProvider" in said
    assert "PyTorch with CUDA" in said
    assert not (tmp_path / "out").exists()


def test_a_part_without_time_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "cpu", ["tiny"], 0.001, 3)
    found = experiment.tried(Options(1, 1, ("export", "parity")), setup, limit_s=0.05)
    assert found.missed == ["export ran out of time", "parity ran out of time"]


def test_a_part_is_told_all_of_its_setup(setup: Setup) -> None:
    assert read(*words(setup)) == setup


def test_a_report_grows_and_forgets_one_part(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.put("speed", "a", 1.0)
    Report(tmp_path).put("speed", "b", {"c": 2})
    report.put("parity", "a", 3)
    report.forget("parity")
    assert report.read() == {"speed": {"a": 1.0, "b": {"c": 2}}}


def test_a_rehearsal_finds_no_difference_on_the_cpu(setup: Setup) -> None:
    parity(setup)
    invariance(setup)
    latency(setup)
    found = setup.report.read()
    assert found["parity"]["notebook fp32"]["bits"] == "equal"
    assert 0 < found["parity"]["notebook fp32"]["activations"]["difference"] < 1e-5
    assert found["invariance"]["notebook fp16"]["unequal"] == 0
    assert found["invariance"]["notebook fp16"]["compositions"] == 3
    assert found["latency"]["notebook 16 tokens PyTorch"]["p50 ms"] > 0


def test_a_difference_beyond_its_limit_fails(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tolerances.NEAR, "fp16", tolerances.NEAR["fp16"]._replace(norm=1e-9))
    with pytest.raises(RuntimeError, match=r"norm_mean, in deviations \(fp16\): .* is 1e-09"):
        parity(setup)
    assert "norm_mean" in setup.report.read()["parity"]["notebook failed"]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"refused": "addnorm: no GPU", "traceback": False}, []),
        ({"large request": "500: out of memory", "small request": "200"}, []),
        ({"refused": "", "traceback": False}, ["it ended without a word"]),
        ({"refused": "x", "traceback": True}, ["its log has a traceback"]),
        ({"large request": "200", "small request": "lost"}, ["it did not go on: lost"]),
        ({"large request": "lost", "small request": "200"}, ["the large request got no answer"]),
    ],
)
def test_only_words_and_going_on_are_failing_closed(
    figures: dict[str, Any], words: list[str]
) -> None:
    assert list(closed._wrong(figures)) == words


def test_pads_do_not_reach_the_peers_vectors() -> None:
    """PyTorch's side computes what it is timed for: means over real tokens alone."""
    torch.manual_seed(0)
    peer = torch_encoder.encoder(SHAPES["tiny"], "cpu")
    sequences = [torch.arange(3), torch.arange(9)]
    with torch.inference_mode():
        _, together = peer(*torch_encoder.padded(sequences, "cpu"))
        _, alone = peer(*torch_encoder.padded(sequences[:1], "cpu"))
    assert torch.allclose(together[0], alone[0], atol=1e-5)
