"""A folder with a Dense layer, prompts and texts over its limit, served over HTTP."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertModel

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.verifying import verify
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.files import sha256
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.saved_folders import CASES, PAIRS
from tests.support.sentence_transformers import write_dense, write_modules, write_settings
from tests.support.texts import D_MODEL, LONG, MAX_TEXT_TOKENS, ids_of

TEXTS = ["padding costs nothing", "pads are dropped.", LONG, ""]
PROMPTS = {"query": "the same text, ", "document": "a ", "none": ""}
WIDTH = 6


@pytest.fixture(scope="module")
def layer() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(D_MODEL, WIDTH)


@pytest.fixture(scope="module")
def folder(
    text_checkpoint: Path, layer: nn.Linear, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Vectors are tanh of a projection of the mean, of length 1. The prompt "query" is default."""
    made = Path(shutil.copytree(text_checkpoint, tmp_path_factory.mktemp("st") / "mine"))
    write_modules(
        made, Transformer="", Pooling="1_Pooling", Dense="2_Dense", Normalize="3_Normalize"
    )
    write_dense(made / "2_Dense", layer)
    write_settings(
        made, "config_sentence_transformers.json", prompts=PROMPTS, default_prompt_name="query"
    )
    return made


@pytest.fixture(scope="module")
def root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bundles")
    export(sources.checkpoint(folder), made, "mine")
    return made


def expected(folder: Path, layer: nn.Linear, texts: list[str]) -> np.ndarray:
    """Vectors by transformers' model and plain PyTorch."""
    model, vectors = BertModel.from_pretrained(folder).eval(), []
    with torch.no_grad():
        for ids in ids_of(texts, MAX_TEXT_TOKENS):
            rows = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            vectors.append(nn.functional.normalize(torch.tanh(layer(rows.mean(0))), dim=0))
    return torch.stack(vectors).numpy()


@pytest.mark.parametrize("prompt_name", [None, "query", "document"])
def test_vectors_are_those_of_the_folders_authors(
    folder: Path, root: Path, layer: nn.Linear, prompt_name: str | None
) -> None:
    body = {"model": "mine", "input": TEXTS, "truncate": True, "prompt_name": prompt_name}
    with serving(inference_of(root)) as url:
        answer = web.post(f"{url}/v1/embeddings", json=body).json()
    vectors = np.array([entry["embedding"] for entry in answer["data"]])
    prompted = [PROMPTS[prompt_name or "query"] + text for text in TEXTS]
    np.testing.assert_allclose(vectors, expected(folder, layer, prompted), atol=1e-5)
    assert vectors.shape == (len(TEXTS), WIDTH)


def test_the_manifest_holds_the_hash_of_every_file_of_weights(folder: Path, root: Path) -> None:
    files = ("model.safetensors", "2_Dense/model.safetensors")
    hashes = {name: sha256(folder / name) for name in files}
    assert bundles.read(root / "mine" / "1").manifest.source["weights"] == hashes


def test_the_manifest_holds_the_authors_prompts_and_verify_compares_them(
    folder: Path, root: Path, tmp_path: Path
) -> None:
    manifest = bundles.read(root / "mine" / "1").manifest
    assert manifest.prompts == {name: PROMPTS[name] for name in ("query", "document")}
    assert manifest.default_prompt_name == "query"
    other = Path(shutil.copytree(folder, tmp_path / "mine"))
    write_settings(other, "config_sentence_transformers.json", prompts={"query": "b"})
    with pytest.raises(sources.UsageError, match="has prompts"):
        verify(root / "mine" / "1", checkpoint=str(other))


def test_a_cross_encoder_of_modules_is_packed_and_scores_as_it_predicts(tmp_path: Path) -> None:
    case, root = CASES["modernbert scores of modules"], tmp_path / "bundles"
    case.save(tmp_path / "saved")
    bundle = export(sources.checkpoint(tmp_path / "saved"), root, "scores")
    assert bundle.tasks == ("rerank", "classify", "decide")
    head = bundle.manifest.config["heads"]["logits"]
    assert (head["dense"], head["norm_eps"], head["width"]) == (20, 1e-5, 1)
    assert bundle.manifest.clipped_layers == (1, 2)  # those with a window
    body = {"query": PAIRS[0][0], "documents": [document for _, document in PAIRS]}
    with serving(inference_of(root)) as url:
        scores = case.ask(url, "scores")
        for document, score in zip(body["documents"], scores, strict=True):  # bits of each alone
            alone = web.post(f"{url}/v1/rerank", json={**body, "documents": [document]}).json()
            assert [row["relevance_score"] for row in alone["results"]] == [score]
    np.testing.assert_allclose(scores, case.expected(tmp_path / "saved"), atol=1e-6)
    assert np.ptp(scores) > 1e-3
