"""What is to be run once on a GPU, rehearsed on the CPU."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from addnorm.load.run import compute_alone
from addnorm.service.settings import Settings
from benchmarks.findings import Options
from benchmarks.gpu import answers, experiment, speed
from benchmarks.gpu.experiment import AS_WRITTEN, Setup
from benchmarks.peers.torch_server import pad

STEPS = ("agreement tiny", "speed")  # tests/export/cuda/ has the agreement of the other


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """Smaller still than the rehearsal."""
    rehearsal = experiment.rehearsal(tmp_path, Settings())
    tiny = rehearsal.shapes["tiny"]
    fields = {
        **tiny.fields, "num_hidden_layers": 1, "max_position_embeddings": 128, "hidden_size": 32,
        "intermediate_size": 64, "num_attention_heads": 2,
    }  # fmt: skip
    shapes = dict.fromkeys(("tiny", f"own{AS_WRITTEN}"), replace(tiny, fields=fields))
    return replace(rehearsal, shapes=shapes, seconds=0.001, num_compositions=3)


def test_a_rehearsal_runs_every_step_and_keeps_its_figures(setup: Setup) -> None:
    steps = experiment.try_steps(Options(1, 1, STEPS), setup)
    assert not steps.missed
    kept = json.loads(setup.report.read_text())
    assert steps.figures == kept
    assert [*kept] == ["agreement tiny", "speed tiny", "speed own-as-written"]
    assert kept["agreement tiny"]["holds"]["fp16"]["bits"] == "equal"
    rates = kept["speed tiny"]
    assert {"small, fp16", "hidden, fp32", "512 tokens alone, PyTorch padded"} < rates.keys()
    assert min(rates.values()) > 0
    compute = compute_alone(setup.bundle(f"own{AS_WRITTEN}"), "fp32")
    ids = np.arange(1, 6)
    means = compute("activations", ids).mean(0)
    np.testing.assert_allclose(compute("pooled", ids), means, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("answer", "comparisons"),
    [
        ({"pooled": [[1.0, -4.0]], "label": "a"}, [(0.0, "fp32-ragged: pooled", False)]),
        ({"pooled": [[1.0, -3.0]], "label": "a"}, [(0.25, "fp32-ragged: pooled", False)]),
        ({"pooled": [[1.0]], "label": "a"}, [(0.0, "fp32-ragged: pooled", True)]),
        (
            {"pooled": [[1.0, -4.0]], "label": "b"},
            [(0.0, "fp32-ragged: label", True), (0.0, "fp32-ragged: pooled", False)],
        ),
    ],
)
def test_answers_are_compared_by_their_largest_number_and_their_words(
    tmp_path: Path, answer: dict[str, object], comparisons: list[tuple[float, str, bool]]
) -> None:
    for folder, fields in (("cpu", {"pooled": [[1.0, -4.0]], "label": "a"}), ("gpu", answer)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fp32-ragged.json").write_text(json.dumps(fields))
        (tmp_path / folder / "fp32-vectors-int8.json").write_text(json.dumps({"pooled": folder}))
    assert [*answers.compare(tmp_path / "cpu", tmp_path / "gpu", "fp32")] == comparisons


class Missing(Setup):
    """Its answers differ."""

    def answers(self, name: str) -> dict[str, list[str]]:
        return {"missed": ["pooled differs by 0.05"]}


def test_what_a_step_missed_is_told(setup: Setup) -> None:
    steps = experiment.try_steps(Options(1, 1, ("answers",)), Missing(**vars(setup)))
    assert steps.missed == ["answers embedder: pooled differs by 0.05"]


def test_pads_do_not_reach_the_peers_vectors(setup: Setup) -> None:
    """PyTorch's side computes what it is timed for: means over real tokens alone."""
    torch.manual_seed(0)
    peer = speed.encoder(setup.config("tiny"), "cpu")
    sequences = [torch.arange(3), torch.arange(9)]
    with torch.inference_mode():
        _, together = peer(*pad(sequences))
        _, alone = peer(*pad(sequences[:1]))
    assert torch.allclose(together[0], alone[0], atol=1e-5)
