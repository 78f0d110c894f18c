"""Command lines of `addnorm export` that make no sense: one line says why, and nothing is made."""

import re
import sys
from pathlib import Path

import pytest
import torch

from addnorm.export import command
from tests.support.people.encoders import OwnLayers

CODE = """
from tests.support.people.encoders import OwnLayers

def make():
    return OwnLayers()

def nothing():
    return 3
"""
MODULE, PRESET = "--module mine:make", "--preset notebook"
CHECKPOINT = "{texts}"
ROWS = [
    (f"{PRESET} --name ../x", "name '../x'"),
    (f"{PRESET} --version 1", "version 1 of notebook: it already exists"),
    (f"{PRESET} --version 0", "version 0 of notebook: it must be at least 1"),
    (f"{PRESET} --check", "--check applies to checkpoints, not to presets"),
    (f"{PRESET} --weights x", "--weights needs --module"),
    (
        f"{PRESET} --tokenizer-as-written",
        "--tokenizer-as-written has no effect for a preset: leave it out",
    ),
    (f"{PRESET} --precision int4", "precision int4: it must be some of fp32, fp16 and int8, each"),
    (f"{PRESET} --precision int8,int8", "at most once"),
    (f"{PRESET} --precision fp32 --default-precision int8", "int8 is not among"),
    (f"{PRESET} --as onnx --name x", "--name and --version apply to bundles only"),
    (f"{PRESET} --as onnx --lens", "--as onnx needs the packed layout and the precisions fp32 and"),
    (f"{PRESET} --as onnx", "bundles already exists"),
    (f"{PRESET} --sentence-embedding", "--sentence-embedding needs --as onnx"),
    # the notebook's largest weight is 16 x 64
    (f"{PRESET} --name own --precision int8", "int8 does not pay"),
    ("nowhere", "there is no folder nowhere"),
    ("nowhere@int8 --check", "there is no folder nowhere"),
    (
        "bundles/notebook/1@int8",
        "holds a bundle, not a checkpoint: .*addnorm serve bundles/notebook/1",
    ),
    (f"{CHECKPOINT} --check --ignore encoder", "weights do not fit: missing"),
    *(
        (f"{CHECKPOINT} --max-length={length}", f"--max-length is {length}, but must be 3 to 16")
        for length in (-1, 0, 2, 17)
    ),
    ("--module mine", "--module mine: write it as package.module:function"),
    ("--module absent:make", "--module absent:make fails: ModuleNotFoundError"),
    ("--module mine:absent", "--module mine:absent fails: AttributeError"),
    ("--module mine:nothing", "returns a int: it must return a torch.nn.Module"),
    (f"{MODULE} --weights no.pt", "no.pt: the file does not exist"),
    (f"{MODULE} --weights bad.pt", "Missing key(s) in state_dict"),
    (f"{MODULE} --weights evil.pt", "a pickle that needs .*: it is not"),
    (f"{MODULE} --ignore x", "--ignore has no effect for a module"),
    ("--module tests.none:none --tokenizer-as-written", "-as-written has no effect for a module"),
]


@pytest.fixture
def place(tmp_path: Path, notebook: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user works: code, weights, and a bundle of before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(CODE)
    torch.save({"other": torch.zeros(1)}, tmp_path / "bad.pt")
    torch.save(OwnLayers(), tmp_path / "evil.pt")
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "notebook").symlink_to(notebook.parent)
    return tmp_path


@pytest.mark.parametrize(("words", "said"), ROWS)
def test_a_command_line_is_refused_in_one_line(
    place: Path, text_checkpoint: Path, notebook: Path, words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.export([*words.format(texts=text_checkpoint).split(), "--out", "bundles"])
    line = str(ended.value)
    assert re.search(".*".join(map(re.escape, said.split(".*"))), line), line
    assert "\n" not in line
    assert not [*(place / "bundles").rglob("own/**/*.onnx")]
    assert [path.name for path in notebook.parent.iterdir()] == ["1"]
