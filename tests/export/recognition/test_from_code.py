"""`addnorm export --module package.module:function --weights FILE`, and verify."""

import sys
from pathlib import Path

import pytest
import torch

from addnorm.export import command
from addnorm.service.engine import bundle as bundles
from tests.support.people.encoders import OwnLayers
from tests.support.people.unrecognized import Gated

CODE = """
from tests.support.people.encoders import OwnLayers
from tests.support.people.unrecognized import Gated

def make():
    return OwnLayers()

def make_unrecognized():
    return Gated()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user works: code and weights."""
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    torch.manual_seed(0)
    weights = {f"_orig_mod.{key}": tensor for key, tensor in OwnLayers().state_dict().items()}
    torch.save({"model": weights, "step": 3}, tmp_path / "model.pt")
    return tmp_path


def test_code_and_weights_become_a_bundle_that_verify_makes_again(folder: Path) -> None:
    command.export(
        ["--module", "mine:make", "--weights", "model.pt", "--name", "own", "--out", "bundles"]
    )
    bundle = bundles.read(folder / "bundles" / "own" / "1")
    source = bundle.manifest.source
    assert (source["module"], source["path"]) == ("OwnLayers", "mine:make")
    assert list(source["weights"]) == ["model.pt"]
    before = bundle.certificate
    command.verify([str(bundle.path)])
    assert bundles.read(bundle.path).certificate == before
    (folder / "model.pt").rename(folder / "moved.pt")
    with pytest.raises(SystemExit, match=r"--weights model\.pt: the file does not exist"):
        command.verify([str(bundle.path)])
    command.verify([str(bundle.path), "--weights", "moved.pt"])
    torch.save(OwnLayers().state_dict(), folder / "moved.pt")
    with pytest.raises(SystemExit, match="own/1 was exported from"):
        command.verify([str(bundle.path), "--weights", "moved.pt"])


def test_a_module_that_is_not_recognized_is_served_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    torch.save(Gated().state_dict(), folder / "gated.pt")
    options = ["--module", "mine:make_unrecognized", "--weights", "gated.pt"]
    command.export([*options, "--check"])
    assert "one graph, ids [B, S] of at most 48" in capsys.readouterr().out
    command.export([*options, "--name", "own", "--out", "bundles"])
    bundle = bundles.read(folder / "bundles" / "own" / "1")
    (tensor,) = bundle.manifest.as_it_is or ()
    assert (tensor.of, bundle.manifest.source["path"]) == ("token", options[1])
    (folder / "gated.pt").rename(folder / "elsewhere.pt")
    command.verify([str(bundle.path), "--weights", "elsewhere.pt"])
    with pytest.raises(SystemExit, match="max_length truncates texts, but there is no tokenizer"):
        command.export([*options[:2], "--max-length", "9", "--out", "bundles"])
