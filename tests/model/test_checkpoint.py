"""Hugging Face folders: names of weights, files that are absent, broken or much too large."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from addnorm.model.checkpoints import CheckpointError, load_checkpoint
from tests.support.families import made, save


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "there is no folder nowhere"),
        ("/no/where", "there is no folder /no/where"),
        ("BAAI/bge-small-en-v1.5", "there is no folder BAAI/bge-small-en-v1.5"),
        (__file__, "test_checkpoint.py is a file: name the folder that it lies in"),
    ],
)
def test_what_is_no_folder_is_said_to_be_none(name: str, words: str) -> None:
    with pytest.raises(CheckpointError) as failed:
        load_checkpoint(Path(name))
    assert words in str(failed.value)


def test_a_folder_that_lacks_a_file_is_told_which(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no model\.safetensors in "):
        load_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no config\.json in "):
        load_checkpoint(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(made("BertModel"), tmp_path)


def test_first_releases_names_of_the_norms_are_known(folder: Path) -> None:
    """They list positions among the weights too."""
    loaded, weights = load_checkpoint(folder), load_file(folder / "model.safetensors")
    authors = loaded.authors
    assert (authors.pooling, authors.normalize, [*loaded.model.heads]) == ("mean", False, [])
    assert loaded.unused == ["pooler.dense.bias", "pooler.dense.weight"]
    norm = "LayerNorm."
    old = {
        key.replace(f"{norm}weight", f"{norm}gamma").replace(f"{norm}bias", f"{norm}beta"): tensor
        for key, tensor in weights.items()
    }
    old["embeddings.position_ids"] = torch.arange(40)
    save_file(old, folder / "model.safetensors")
    for name, tensor in load_checkpoint(folder).model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name]), name


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize("name", ["config.json", "modules.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [DEEP, b"1", b"[" * 100_000], ids=["deep", "number", "lists"])
def test_json_that_is_none_of_the_kind_is_refused(name: str, content: bytes, folder: Path) -> None:
    if name.endswith(".index.json"):
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_checkpoint(folder)


def test_files_that_are_much_too_large_are_refused(folder: Path) -> None:
    with (folder / "config.json").open("ab") as file:
        file.write(b" " * 2**22)
    with pytest.raises(CheckpointError, match=r"config\.json has more than 4194304 bytes"):
        load_checkpoint(folder)


def test_weights_of_very_many_tensors_are_refused(folder: Path) -> None:
    """Each takes a while to read."""
    many = {f"t{index}": torch.zeros(0) for index in range(20_001)}
    save_file(many, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="has 20001 tensors, the limit is 20000"):
        load_checkpoint(folder)


def test_weights_that_are_larger_than_their_file_are_refused(folder: Path) -> None:
    """A pickle may say that a row is there a billion times."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weights["pooler.dense.weight"] = torch.zeros(1, 36).expand(10**9, 36)
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="they are larger than their stored bytes"):
        load_checkpoint(folder)
