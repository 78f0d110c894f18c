"""An id that a module takes for a pad wherever it stands: certified without it, and refused."""

from pathlib import Path

import numpy as np
import torch

from addnorm.export import export_bundle
from addnorm.export.certificate.served import cases
from addnorm.service.engine import selfcheck
from tests.conftest import client_of, inference_of
from tests.support.people import Annotated
from tests.support.people.encoders import V


def test_a_pad_by_its_id_is_refused_in_a_sequence_and_served_around(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Annotated().eval()
    words = {"<pad>": 0, "<unk>": 1, **{f"w{number}": number for number in range(2, V)}}
    bundle = export_bundle(module, tmp_path, "own", vocabulary=words)  # whose texts have no pad
    assert bundle.manifest.limits.pad_id == 0
    compared = [ids[mask] for ids, mask in real(cases(bundle.manifest.limits))]
    assert sum(map(len, compared)) > 100
    assert not any(0 in ids for ids in compared)
    assert 0 not in selfcheck.sequences(bundle.manifest.limits, [5, 60]).tokens
    with client_of(inference_of(tmp_path)) as client:
        ask = {
            "model": "own",
            "input_ids": [[0, 0, 7, 8, 9], [0, 3, 4, 5, 6]],
            "outputs": ["activations"],
        }
        masked = {**ask, "attention_mask": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]}
        answer = client.post("/v1/infer", json=masked).json()["activations"]
        refused = client.post("/v1/infer", json=ask)
    with torch.no_grad():
        expected = module(torch.tensor([[7, 8, 9]]))[0].numpy()
    np.testing.assert_allclose(answer[0][2:], expected, atol=1e-5)
    assert refused.status_code == 400
    assert "input_ids[0][0] is 0: own/1 treats this id as padding" in refused.text


def real(found):
    """Ids and mask of each row."""
    for case in found:
        grid = case.grid()
        yield from zip(grid.input_ids, grid.attention_mask != 0, strict=True)
