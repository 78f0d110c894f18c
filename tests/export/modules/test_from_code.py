"""`addnorm export --module package.module:function --weights FILE`, and verify."""

import sys
from pathlib import Path

import pytest
import torch

from addnorm.export import command
from addnorm.service.runtime import bundle as bundles
from tests.support.people.encoders import OwnLayers

CODE = """
from tests.support.people.encoders import OwnLayers

def make():
    return OwnLayers()

def nothing():
    return 3
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


@pytest.mark.usefixtures("exports_shared")
def test_code_and_weights_become_a_bundle_that_verify_makes_again(folder: Path) -> None:
    command.export(
        ["--module", "mine:make", "--weights", "model.pt", "--name", "own", "--out", "bundles"]
    )
    bundle = bundles.read(folder / "bundles" / "own" / "1")
    made = bundle.manifest.source
    assert (made["module"], made["path"]) == ("OwnLayers", "mine:make")
    assert list(made["weights"]) == ["model.pt"]
    before = bundle.certificate
    command.verify([str(bundle.path)])
    assert bundles.read(bundle.path).certificate == before
    (folder / "model.pt").rename(folder / "moved.pt")
    with pytest.raises(SystemExit, match=r"--weights model\.pt: there is no such file"):
        command.verify([str(bundle.path)])
    command.verify([str(bundle.path), "--weights", "moved.pt"])
    torch.save(OwnLayers().state_dict(), folder / "moved.pt")
    with pytest.raises(SystemExit, match="own/1 was made from"):
        command.verify([str(bundle.path), "--weights", "moved.pt"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--module", "mine"], r"--module mine: name it as package\.module:function"),
        (["--module", "absent:make"], "--module absent:make fails: ModuleNotFoundError"),
        (["--module", "mine:absent"], "--module mine:absent fails: AttributeError"),
        (["--module", "mine:nothing"], "makes a int: a torch.nn.Module is needed"),
        (["--module", "mine:make", "--weights", "no.pt"], r"no\.pt: there is no such file"),
        (["--module", "mine:make", "--weights", "bad.pt"], r"Missing key\(s\) in state_dict"),
        (["--module", "mine:make", "--weights", "evil.pt"], "a pickle that wants .*: it is not"),
        (["--module", "mine:make", "--ignore", "x"], "--ignore is of a checkpoint, not of"),
        (["--preset", "notebook", "--weights", "x"], "--weights is of a module of your own"),
    ],
)  # fmt: skip
def test_what_does_not_fit_ends_in_one_line(
    folder: Path, arguments: list[str], message: str
) -> None:
    torch.save({"other": torch.zeros(1)}, folder / "bad.pt")
    torch.save(OwnLayers(), folder / "evil.pt")
    with pytest.raises(SystemExit, match=message):
        command.export([*arguments, "--out", "bundles"])
    assert not (folder / "bundles").exists()
