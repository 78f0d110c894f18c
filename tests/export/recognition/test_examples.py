"""The programs of examples/tutorials run, and what is served is what their modules answer."""

import sys
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch

from addnorm.export.reference.original import tensor_of
from tests.conftest import client_of, inference_of
from tests.support.people.examples import EXAMPLES, padded_left

LIMIT = 1e-5
ALWAYS = "torch_encoder"  # the others are opt-in: ten seconds each
# what is asked for, and a text where the program gives a vocabulary
OUTPUTS = {
    "annotated_encoder": ("activations", None),
    "lecture_gpt": ("logits", "a row is a norm"),
    "llama": ("output", None),
    "nano_gpt": ("logits", "a row is a norm"),
    "recommender": ("output", None),
    "segments": ("logits", None),
    "torch_encoder": ("logits", "the old cat purrs loudly"),
}
SERIES = "time_series"  # takes vectors


def test_every_program_is_here() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*OUTPUTS, SERIES}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == ALWAYS else pytest.mark.modules) for name in OUTPUTS],
)
def test_a_tutorial_is_served_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    names = run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    model, (output, text) = names["model"].eval(), OUTPUTS[name]
    rows = [[3, 4, 5, 6, 7, 8], [9], [2, 2, 3]]
    if text:
        words = text.split() if "LABELS" in names else text
        vocabulary = names["VOCABULARY"]
        rows.append(
            [vocabulary[word] if word in vocabulary else vocabulary["<unk>"] for word in words]
        )
    with client_of(inference_of(tmp_path)) as client:
        entry = client.get("/v1/models").json()["data"][0]
        ask = {"model": entry["id"], "outputs": [output]}
        if output == "logits" and entry["config"]["causal"]:
            ask["logits"] = {"positions": "last"}
        answers = client.post("/v1/infer", json={**ask, **padded_left(rows)}).json()[output]
        if text:
            texts = client.post("/v1/infer", json={**ask, "texts": [text]}).json()[output]
            np.testing.assert_array_equal(texts[0], answers[-1])
    for row, answer in zip(rows, answers, strict=True):
        types = [torch.zeros(1, len(row), dtype=torch.int64)] if name == "segments" else []
        with torch.no_grad():
            expected = tensor_of(model(torch.tensor([row]), *types))[0].numpy()
        got = np.array(answer)
        if got.ndim > 1:  # of every token, behind pads
            got = got[-len(row) :]
        np.testing.assert_allclose(got, expected[-1] if got.ndim < expected.ndim else
                                   expected.reshape(got.shape), atol=LIMIT)  # fmt: skip


@pytest.mark.modules
def test_vectors_are_served_as_the_module_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [SERIES, str(tmp_path)])
    names = run_path(str(EXAMPLES / f"{SERIES}.py"), run_name="__main__")
    model, series = names["model"].eval(), names["sines"](3, 20)
    mask = torch.tensor([[1] * 21, [0] * 9 + [1] * 12, [1, 0] * 10 + [0]])
    with client_of(inference_of(tmp_path)) as client:
        body = {"inputs": series.tolist(), "attention_mask": mask.tolist()}
        answers = client.post("/v1/infer", json=body).json()["output"]
    for row, real, answer in zip(series, mask == 1, answers, strict=True):
        alone = row[real][None]
        with torch.no_grad():
            expected = model(alone, torch.zeros(alone.shape[:2], dtype=torch.bool))[0]
        np.testing.assert_allclose(answer, expected, atol=LIMIT)
