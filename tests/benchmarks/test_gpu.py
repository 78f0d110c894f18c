"""What is to be run once on a GPU, rehearsed on the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from addnorm.model.presets import PRESETS
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.settings import Settings
from benchmarks.findings import Options
from benchmarks.gpu import experiment, torch_encoder
from benchmarks.gpu.experiment import Setup
from benchmarks.peers.torch_server import padded


@pytest.fixture
def setup(notebook_in_fp16: Bundle, tmp_path: Path) -> Setup:
    """A rehearsal whose only model is there already."""
    made = experiment.rehearsal(tmp_path, Settings())
    (made.out / "bundles").mkdir(parents=True)
    (made.out / "bundles" / "notebook").symlink_to(notebook_in_fp16.path.parent)
    shapes = {"notebook": PRESETS["notebook"]}
    return replace(made, shapes=shapes, seconds=0.001, num_compositions=3)


def test_a_rehearsal_runs_every_step_and_keeps_its_figures(setup: Setup) -> None:
    found = experiment.tried(Options(1, 1, ("export", "speed")), setup)
    assert not found.missed
    assert found.figures == experiment._kept(setup.report)
    assert found.figures["speed notebook"].keys() >= {
        "small, fp16", "hidden, fp32", "big, PyTorch sorted", "512 tokens alone, PyTorch padded",
    }  # fmt: skip
    assert min(found.figures["speed notebook"].values()) > 0


def test_a_step_that_fails_ends_no_other_and_is_kept(setup: Setup) -> None:
    """The weights of the bundle are not those of the reference."""
    found = experiment.tried(Options(1, 1, ("agreement", "export")), setup)
    (missed,) = found.missed
    assert missed.startswith("agreement notebook: CertificationError: ")
    kept = experiment._kept(setup.report)
    assert kept["agreement notebook"]["failed"].startswith("CertificationError")
    assert kept["export notebook"]["MiB"] > 0


def test_pads_do_not_reach_the_peers_vectors() -> None:
    """PyTorch's side computes what it is timed for: means over real tokens alone."""
    torch.manual_seed(0)
    shapes = experiment.rehearsal(Path(), Settings()).shapes
    peer = torch_encoder.encoder(shapes["tiny"], "cpu")
    sequences = [torch.arange(3), torch.arange(9)]
    with torch.inference_mode():
        _, together = peer(*padded(sequences))
        _, alone = peer(*padded(sequences[:1]))
    assert torch.allclose(together[0], alone[0], atol=1e-5)
