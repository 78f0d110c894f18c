"""A model in memory becomes a bundle by a call, and stays as it was."""

import asyncio
import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from addnorm.export import ExportError, command, export_bundle, verify_bundle
from addnorm.model.config import Config, HeadConfig
from addnorm.model.transformer import Transformer, randomize
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.errors import StartupError
from addnorm.service.loading import loader
from addnorm.service.settings import Settings
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.families import made
from tests.support.people import NanoGPT
from tests.support.people.encoders import OwnLayers, T
from tests.support.people.strangers import AcrossTokens, Convolution
from tests.support.texts import WORDS, ids_of, tokenizer

LABELS = ["who", "what", "where"]
TEXTS = ["pads are dropped", "a", "the same text the same text", "the same text " * 9]
MAX_LENGTH = 9
SHAPE: dict[str, Any] = {
    "vocab_size": len(WORDS), "d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 1,
    "max_positions": 12, "block": "single",
}  # fmt: skip


class Dropping(Transformer):
    """Evaluation mode shows in its numbers."""

    def embed(self, token_ids: Tensor, position_ids: Tensor, type_ids: Tensor) -> Tensor:
        embedded = super().embed(token_ids, position_ids, type_ids)
        return nn.functional.dropout(embedded, 0.5, self.training)


def classifier(seed: int = 0, **heads: HeadConfig) -> Transformer:
    """A classifier in training mode, with gradients."""
    config = Config(**SHAPE, heads=heads or {"logits": HeadConfig("last", len(LABELS))})
    model = randomize(Dropping(config, "padded"), seed)
    model(torch.tensor([[1]]), torch.tensor([[1]]))[0].sum().backward()
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer alone."""
    tokenizer_folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer().save(str(tokenizer_folder / "tokenizer.json"))
    return tokenizer_folder


@pytest.fixture(scope="module")
def bundle(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Exported from a thread that runs a loop already, as a notebook's does."""

    async def notebook() -> Bundle:
        return export_bundle(
            classifier(), str(tmp_path_factory.mktemp("own")), "own", labels=LABELS,
            pooling="weighted_mean", tokenizer=folder, max_length=MAX_LENGTH,
        )  # fmt: skip

    return asyncio.run(notebook())


def test_what_is_served_is_what_the_model_says(bundle: Bundle) -> None:
    """Logits and pooled vectors of texts; the model's labels."""
    model = classifier().eval()
    expected = []
    for ids in ids_of(TEXTS, MAX_LENGTH):
        row = torch.tensor([ids])
        mask = torch.ones_like(row)
        with torch.no_grad():
            expected.append(model.head("logits", model(row, mask)[0], mask)[0].numpy())
    body = {"texts": TEXTS, "truncate": True, "outputs": ["logits"]}
    with serving(inference_of(bundle.path.parents[1])) as url:
        answer = web.post(f"{url}/v1/infer", json=body).json()
        listed = web.get(f"{url}/v1/models").json()["data"][0]
    np.testing.assert_allclose(answer["logits"], expected, atol=1e-5)
    assert listed["labels"] == LABELS
    assert (bundle.manifest.pooling, bundle.manifest.normalize) == ("weighted_mean", False)


def test_the_callers_model_is_not_changed(folder: Path, tmp_path: Path) -> None:
    model = classifier()
    before, layout = copy.deepcopy(model.state_dict()), model.layout
    grad = model.tokens.weight.grad
    options = {"tokenizer": folder, "max_length": MAX_LENGTH}
    written = export_bundle(model, tmp_path, "own", version=7, **options)
    assert written.ref == "own/7"
    assert model.training
    assert model.layout is layout
    assert model.tokens.weight.grad is grad
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_verify_knows_the_model_again(bundle: Bundle, folder: Path) -> None:
    certificate = bundle.path / bundles.CERTIFICATE
    before = json.loads(certificate.read_text())
    certificate.unlink()
    assert verify_bundle(bundle.path, classifier(), tokenizer=folder).ref == "own/1"
    again = json.loads(certificate.read_text())
    assert {**again, "created": before["created"]} == before
    with pytest.raises(
        ExportError, match=r"own/1 was exported from .*'sha256': '.*, but this model is "
    ):
        verify_bundle(bundle.path, classifier(seed=1), tokenizer=folder)
    with pytest.raises(ExportError, match="own/1 takes texts: give the folder of its tokenizer"):
        verify_bundle(bundle.path, classifier())
    with pytest.raises(
        SystemExit, match=r"exported from a Dropping in memory.*export\.verify_bundle\("
    ):
        command.verify([str(bundle.path)])


def test_a_server_may_refuse_what_was_compared_with_itself(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.certificate
    assert bundle.certificate["compared_with"] == {"kind": "itself"}
    loader.load(bundle, Settings())
    with pytest.raises(StartupError, match="own/1 was compared with itself alone, but ADDNORM_REQ"):
        loader.load(bundle, Settings(require_reference=True))
    path = shutil.copytree(bundle.path, tmp_path / "own" / "1")
    file = path / bundles.CERTIFICATE  # as older exporters wrote it
    older = {k: v for k, v in json.loads(file.read_text()).items() if k != "compared_with"}
    file.write_text(json.dumps(older))
    assert not bundles.read(path).is_compared


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "another kind": (lambda: nn.Conv2d(1, 2, 3), {}, "Conv2d: the module fails on a sequence of"),
    "no module": (lambda: 3, {}, "the model is a int, but must be an addnorm"),
    "a Config": (classifier, {"config": {"max_positions": 9}}, "max_positions has no effect"),
    "float64": (lambda: classifier().double(), {}, r"tokens\.weight is torch\.float64, but must"),
    "half a model": (lambda: classifier().to("meta"), {}, "it is on the device meta"),
    "not finite": (lambda: broken(classifier()), {}, r"tokens\.weight\[0, 0\] is nan"),
    "an unknown head": (lambda: classifier(scores=HeadConfig("first", 2)), {},
                        "there is a head 'scores', but the possible heads are logits"),
    "a foreign head": (lambda: with_head(classifier(), nn.Linear(16, 3)), {},
                       r"heads\.logits is not in the model's Config"),
    "a pooled head of other vectors": (lambda: classifier(pooled=HeadConfig("first", 8)), {},
                                       "picks 'first', but pooling is 'mean'"),
    "too few labels": (classifier, {"labels": ["a", "b"]}, "2 labels, but the head has 3 logits"),
    "a text for labels": (classifier, {"labels": "abc"}, "'abc': it must be a list of strings"),
    "labels of nothing": (lambda: classifier(token_vectors=HeadConfig("every", 4)),
                          {"labels": LABELS}, "labels need logits, but the model has no such"),
    "pooling": (classifier, {"pooling": "cls"}, "pooling is 'cls', but must be one of"),
    "precision": (classifier, {"precisions": ["fp8"]}, "precision fp8: it must be some of"),
    "version": (classifier, {"version": 0}, "version 0 of own: it must be at least 1"),
    "name": (classifier, {"name": "a/b"}, "name 'a/b'"),
    "no such tokenizer": (classifier, {"tokenizer": "nowhere"}, r"no tokenizer\.json in nowhere"),
    "vocabulary, nothing": (OwnLayers, {"vocabulary": {}},
                            "vocabulary must be a dict from characters or words to token ids"),
    "vocabulary, below 0": (OwnLayers, {"vocabulary": {"a": -1}},
                            "vocabulary has 'a': -1: each entry must be a text with"),
    "vocabulary, no id": (OwnLayers, {"vocabulary": {"a": "b"}}, "vocabulary has 'a': 'b'"),
    "vocabulary, one id": (OwnLayers, {"vocabulary": {"a": 1, "b": 1}},
                           "vocabulary has several entries with the same id"),
    "vocabulary, words": (OwnLayers, {"vocabulary": {"the": 1}},
                          "vocabulary of words has no entry for unknown words: add one"),
    "vocabulary and tokenizer": (OwnLayers, {"vocabulary": {"a": 1}, "tokenizer": "nowhere"},
                                 "tokenizer and vocabulary are both set"),
    "a saved model with a reference": (lambda: made("BertModel"), {"reference": nn.Identity()},
                                       "reference has no effect for a BertModel"),
    "what only saves itself": (lambda: Mock(spec=["save_pretrained"]), {},
                               "save it with save_pretrained"),
    "config: a field": (NanoGPT, {"config": {"n_heads": 2}}, "config has n_heads: for a module"),
    "config: a limit": (NanoGPT, {"config": {"max_positions": T + 1}},
                        f"config has max_positions {T + 1}, the limit of the module is {T}"),
    "a convolution": (Convolution, {"as_it_is": False},
                      r"convolution, at .* is an operator of an unknown"
                      r" part.* To go on, set reference=lambda ids"),
    "across tokens": (AcrossTokens, {"as_it_is": False},
                      "norm: a token's row depends on the rows of other tokens.*"
                      " To go on, set reference=lambda ids"),
}  # fmt: skip


def broken(model: Transformer) -> Transformer:
    with torch.no_grad():
        model.tokens.weight[0, 0] = torch.nan
    return model


def with_head(model: Transformer, head: nn.Module) -> Transformer:
    model.heads["logits"] = head
    return model


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_rejected_in_words(case: str, tmp_path: Path) -> None:
    make, options, words = REFUSED[case]
    with pytest.raises(ExportError, match=words):
        export_bundle(make(), tmp_path, **{"name": "own", **options})
    assert not list(tmp_path.iterdir()), "something was left in place"


class Branching(Transformer):
    """PyTorch's exporter cannot follow it."""

    def embed(self, token_ids: Tensor, position_ids: Tensor, type_ids: Tensor) -> Tensor:
        embedded = super().embed(token_ids, position_ids, type_ids)
        return embedded if embedded.sum().item() > -1e9 else -embedded


def test_whatever_fails_is_one_error(tmp_path: Path) -> None:
    model = Branching(Config(**SHAPE), "padded")
    with pytest.raises(ExportError, match=r"the export failed: [A-Z][a-zA-Z]+: "):
        export_bundle(model, tmp_path, "own")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tokenizer()
    other.add_tokens(["unheard"])
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ExportError, match=f"has ids up to {len(WORDS)}, the model has embeddings"):
        export_bundle(classifier(), tmp_path, "own", tokenizer=tmp_path)
    assert not (tmp_path / "own").exists(), "something was left in place"
