"""Tasks of trained models over HTTP: scores of pairs beside sentence-transformers, and as many tags
right in int8 as in PyTorch."""

import json
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers

from addnorm.export import command
from benchmarks.data.made_text import Maker
from benchmarks.data.trained import IGNORED, NUM_HELD_OUT, label_tokens
from benchmarks.findings import BUILD, PEER_PYTHON
from tests.conftest import client_of, inference_of
from tests.support.pair_scores import DIALECTS, asked

pytestmark = pytest.mark.tasks
TRAINED, PAIRS, MODERN = BUILD / "trained", "cross-encoder", "modern-tagger"
LIMIT = 1e-4
LOST = 0.01  # share of tokens that int8 may tag wrong and PyTorch right
NUM_QUESTIONS, NUM_OTHERS = 20, 9

PEER = """
import json, sys
from sentence_transformers import CrossEncoder
from torch import nn
model = CrossEncoder(sys.argv[1], device="cpu", local_files_only=True)
kind = getattr(nn, sys.argv[2])
print(json.dumps(model.predict(json.load(sys.stdin), activation_fn=kind()).tolist()))
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    transformers.logging.set_verbosity_error()
    root = tmp_path_factory.mktemp("tasks")
    for name, precision in ((PAIRS, "fp32"), (MODERN, "fp32,int8")):
        options = ["--out", str(root), "--name", name]
        command.export([f"{TRAINED / name}@{precision}", *options])
    service = inference_of(
        root, default_models={"rerank": PAIRS}, timeout_s=300, invariance_check_share=0
    )
    with client_of(service, timeout=300) as client:
        yield client


@pytest.mark.parametrize("raw", [True, False], ids=["logits", "sigmoid"])
def test_rerank_gives_the_scores_of_sentence_transformers(client: httpx.Client, raw: bool) -> None:
    questions = Maker(seed=5, held_out=True).questions(NUM_OTHERS)
    cases = [(asks, [answer, *others]) for asks, answer, others in islice(questions, NUM_QUESTIONS)]
    pairs = [[question, document] for question, documents in cases for document in documents]
    run = subprocess.run(
        [PEER_PYTHON, "-c", PEER, TRAINED / PAIRS, "Identity" if raw else "Sigmoid"],
        input=json.dumps(pairs), stdout=-1, text=True, check=True,
    )  # fmt: skip
    rerank = DIALECTS["/v1/rerank"]
    ours = [one for asks, documents in cases for one in rerank(client, asks, documents, raw)]
    assert np.abs(np.subtract(ours, json.loads(run.stdout))).max() <= LIMIT


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_trained_modernbert_tags_as_well_as_in_pytorch(
    client: httpx.Client, precision: str
) -> None:
    folder: Path = TRAINED / MODERN
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    inputs, labels = label_tokens(
        tokenizer, list(islice(Maker(seed=1).marked_sentences(), NUM_HELD_OUT))
    )
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected_logits = model(**given).logits.numpy()
    rows = {name: own.tolist() for name, own in given.items()}
    body = {"model": MODERN, "precision": precision, "outputs": ["logits"], **rows}
    ours = np.array(asked(client, "/v1/infer", **body)["logits"], np.float32)
    counted = labels.numpy() != IGNORED
    right = [
        (logits.argmax(-1) == labels.numpy())[counted].mean() for logits in (expected_logits, ours)
    ]
    print(f"{precision}: {right[1]:.2%} of {counted.sum()} tokens right, PyTorch {right[0]:.2%}")
    assert right[1] >= right[0] - LOST
    if precision == "fp32":
        assert np.abs(ours - expected_logits)[counted].max() <= LIMIT
    assert right[0] > 0.9
