"""What `addnorm export` says of a checkpoint before it starts, and alone with --check."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForTokenClassification
from transformers.utils.logging import disable_progress_bar

from addnorm.export import sources
from addnorm.export.command import export
from addnorm.export.opening import checkpoint_of
from addnorm.export.sources import Source
from addnorm.export.wishes import NO_WISHES, Wishes
from addnorm.model.checkpoints import CheckpointError
from addnorm.service.engine.manifest import Manifest
from tests.support.families import made, save

SHOWN = """\
reading {folder}
checkpoint: {folder}
family: bert, ForTokenClassification
shape: 2 layers, 2 attention heads, 8 positions, 2 token types, d_model 16, vocabulary of 50
logits: 7 for each token: O, PER, ORG, LOC, MISC and 2 more
tasks: tag
pooling: the mean of its tokens, not normalized
prompts: none
texts: no, because there is no tokenizer.json in {folder}, and no vocabulary to convert
compared with: {program}: logits, activations of token ids
weights: 0.0 MB of bfloat16 in model.safetensors
ignored weights: pooler.dense.weight
compared: logits of token ids with {program}
compared: activations of token ids with {program}
"""
LABELS = ["O", "PER", "ORG", "LOC", "MISC", "TIME", "SUM"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("found")
    disable_progress_bar()
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=8, id2label=dict(enumerate(LABELS)),
    )  # fmt: skip
    BertForTokenClassification(config).bfloat16().save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {**weights, "bert.pooler.dense.weight": torch.ones(1).bfloat16()},
        folder / "model.safetensors",
    )
    return folder


def test_check_says_what_a_checkpoint_is_and_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export([str(folder), "--check", "--out", str(tmp_path / "bundles")])
    program = f"transformers.BertForTokenClassification {transformers.__version__}"
    assert capsys.readouterr().out == SHOWN.format(folder=folder, program=program)
    assert not (tmp_path / "bundles").exists()


def test_check_refuses_weights_that_cannot_be_served(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][3] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(SystemExit, match=r"heads\.logits\.linear\.bias\[3\] is nan"):
        export([str(tmp_path), "--check"])


@pytest.mark.parametrize("name", ["../x", "a b", "x" * 129])
@pytest.mark.parametrize("form", ["--name", "folder", "onnx"])
def test_check_refuses_names_that_no_bundle_has(
    folder: Path, tmp_path: Path, name: str, form: str
) -> None:
    where, options = folder, ["--name", name]
    name = name.replace("../", "é")
    if form == "folder":
        where, options = tmp_path / name, list[str]()
        shutil.copytree(folder, where)
    elif form == "onnx":
        options = ["--as", "onnx", "--out", str(tmp_path / name)]
    with pytest.raises(SystemExit, match=r"name '.*': at most 128 letters, digits"):
        export([str(where), "--check", *options])


def test_a_head_that_the_weights_lack_is_said_to_be_missing(folder: Path, tmp_path: Path) -> None:
    """And not that it has another number of labels."""
    weights = load_file(folder / "model.safetensors")
    for key in ("classifier.weight", "classifier.bias"):
        del weights[key]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(SystemExit, match=r"missing: classifier\.bias, classifier\.weight\. Nor"):
        export([str(tmp_path), "--check"])


def test_an_export_needs_a_place_to_write_to(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        export([str(folder)])
    assert "--out is required" in capsys.readouterr().err


def again_from(origin: Mapping[str, Any], folder: Path) -> Source:
    model, wishes = checkpoint_of(origin, NO_WISHES, str(folder))
    with model.packed(wishes) as source:
        return source


@pytest.mark.parametrize("labels", [(), tuple("abcdefg"), None])
def test_what_a_manifest_records_is_found_again(
    folder: Path, labels: tuple[str, ...] | None
) -> None:
    source = sources.checkpoint(folder, Wishes(ignore=("bert.pooler.",), labels=labels))
    manifest = json.loads(json.dumps(source.origin))
    again = again_from(manifest, folder)
    assert again.origin == manifest
    assert again.facts == source.facts
    assert again.facts["labels"] == (tuple(LABELS) if labels is None else labels or None)


def test_other_weights_are_noticed(folder: Path, tmp_path: Path) -> None:
    origin = sources.checkpoint(folder).origin
    other = tmp_path / folder.name
    other.mkdir()
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "classifier.bias": torch.ones(7)}, other / "model.safetensors")
    assert again_from(origin, other).origin != origin
    (other / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="there is no model"):
        again_from(origin, other)


def test_a_regression_is_answered_with_its_own_numbers(tmp_path: Path) -> None:
    model = made("BertForSequenceClassification", num_labels=1, problem_type="regression")
    facts = sources.checkpoint(save(model, tmp_path)).facts
    assert facts["regression"]
    manifest = Manifest.model_construct(regression=facts["regression"], multi_label=False)
    assert manifest.score_function == "none"
    assert Manifest.model_construct(regression=False, multi_label=True).score_function == "sigmoid"
    assert Manifest.model_construct(regression=False, multi_label=False).score_function is None
