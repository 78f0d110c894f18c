"""The run on a GPU, as far as it goes without one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from addnorm.export.certificate import tolerances
from addnorm.load.gpu import __main__ as gpu
from addnorm.load.gpu import closed, shapes, torch_encoder
from addnorm.load.gpu.agreement import invariance, parity
from addnorm.load.gpu.report import Report
from addnorm.load.gpu.setup import Setup
from addnorm.load.gpu.shapes import SHAPES
from addnorm.load.gpu.throughput import latency
from addnorm.model.presets import PRESETS, build
from addnorm.service.runtime.bundle import Bundle


@pytest.fixture
def setup(notebook_in_fp16: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A rehearsal whose only model is there already."""
    monkeypatch.setitem(SHAPES, "notebook", PRESETS["notebook"])
    monkeypatch.setattr(shapes, "model", build)
    made = Setup(tmp_path, "cpu", ["notebook"], 0.001, 3)
    made.bundles.mkdir()
    (made.bundles / "notebook").symlink_to(notebook_in_fp16.path.parent)
    return made


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """The exit code."""
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    with pytest.raises(SystemExit) as found:
        gpu.main()
    return found.value.code


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_missing_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ended(monkeypatch, "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "driver" in said
    assert "CUDAExecutionProvider" in said
    assert "PyTorch with CUDA" in said
    assert not (tmp_path / "out").exists()


def test_a_part_without_time_fails_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path), "--provider", "cpu", "--limit-s", "0.05"]
    assert ended(monkeypatch, *out, "--only", "export", "parity") == 1
    found = json.loads((tmp_path / "report.json").read_text())
    assert {found[part]["result"]["result"] for part in ("export", "parity")} == {"ran out of time"}


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
