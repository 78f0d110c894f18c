"""Files of weights as they are found: one or shards, safetensors or pickles, in any float."""

import argparse
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel
from transformers.utils.logging import disable_progress_bar

from addnorm.model.checkpoints import CheckpointError, load_checkpoint
from addnorm.model.checkpoints.weights import read

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
KEY = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT as transformers writes it, with its weights in three shards."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    disable_progress_bar()
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=8, type_vocab_size=1,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder, max_shard_size="10KB")
    return folder


@pytest.fixture(scope="module")
def weights(saved: Path) -> dict[str, Tensor]:
    shards = sorted(saved.glob("*.safetensors"))
    assert len(shards) == 3
    return {key: tensor for shard in shards for key, tensor in load_file(shard).items()}


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """Its config.json, without weights."""
    (tmp_path / "config.json").write_bytes((saved / "config.json").read_bytes())
    return tmp_path


def save_shards(
    folder: Path, name: str, weights: dict[str, Tensor], save: Callable[[Any, Path], None]
) -> list[Path]:
    """Two of them with their index."""
    stem, suffix = name.split(".")
    names = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    places = {key: names[index % 2] for index, key in enumerate(weights)}
    for file in names:
        save({key: weights[key] for key, place in places.items() if place == file}, folder / file)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": places}))
    return [folder / file for file in names]


def save_legacy(weights: dict[str, Tensor], file: Path) -> None:
    """Saves weights in the format of PyTorch before 1.6."""
    torch.save(weights, file, _use_new_zipfile_serialization=False)


def equal(found: Any, expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], expected[key]) for key in expected
    )


def test_shards_of_transformers_are_read_by_their_index(
    saved: Path, weights: dict[str, Tensor]
) -> None:
    tensors = read(saved)
    assert equal(tensors.tensors, weights)
    assert [file.name for file in tensors.files] == [
        f"{SAFE}.index.json",
        *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
    ]


@pytest.mark.parametrize("save", [torch.save, save_legacy])
@pytest.mark.parametrize("num_files", [1, 2])
def test_pickles_of_tensors_are_read(
    folder: Path, weights: dict[str, Tensor], save: Callable[[Any, Path], None], num_files: int
) -> None:
    if num_files == 1:
        save(weights, folder / PICKLED)
    else:
        save_shards(folder, PICKLED, weights, save)
    assert equal(read(folder).tensors, weights)


def test_safetensors_come_before_pickles_and_the_whole_before_shards(
    folder: Path, weights: dict[str, Tensor]
) -> None:
    read_first = []
    torch.save(weights, folder / PICKLED)
    read_first.append(read(folder).files[0].name)
    save_shards(folder, SAFE, weights, save_file)
    read_first.append(read(folder).files[0].name)
    save_file(weights, folder / SAFE)
    read_first.append(read(folder).files[0].name)
    assert read_first == [PICKLED, f"{SAFE}.index.json", SAFE]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_become_float32(
    folder: Path, weights: dict[str, Tensor], dtype: torch.dtype
) -> None:
    stored = {key: tensor.to(dtype) for key, tensor in weights.items()}
    save_file(stored, folder / SAFE)
    loaded = load_checkpoint(folder)
    assert loaded.dtypes == (str(dtype).removeprefix("torch."),)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert torch.equal(loaded.model.tokens.weight, stored[KEY].float())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantized_weights_are_refused(
    folder: Path, weights: dict[str, Tensor], dtype: torch.dtype
) -> None:
    save_file({**weights, KEY: weights[KEY].to(dtype)}, folder / SAFE)
    with pytest.raises(CheckpointError, match=f"{KEY} is {dtype}, floats of 16 bits or more"):
        load_checkpoint(folder)


def test_a_key_in_two_shards_is_taken_where_the_index_says(
    folder: Path, weights: dict[str, Tensor]
) -> None:
    first, second = save_shards(folder, SAFE, weights, save_file)
    key, *_ = load_file(first)
    save_file({**load_file(second), key: torch.zeros(1)}, second)
    assert equal(read(folder).tensors, weights)


def test_shards_must_be_there_and_hold_what_the_index_names(
    folder: Path, weights: dict[str, Tensor]
) -> None:
    first, second = save_shards(folder, SAFE, weights, save_file)
    held = load_file(second)
    key, *_ = held
    save_file({name: tensor for name, tensor in held.items() if name != key}, second)
    with pytest.raises(CheckpointError, match=f"names keys that {second.name} lacks: {key}$"):
        read(folder)
    first.unlink()
    with pytest.raises(CheckpointError, match=f"shards that are not there: {first.name}$"):
        read(folder)


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": {"a": "../model.safetensors"}}', "not JSON"]
)
def test_an_index_that_names_no_files_of_its_folder_is_refused(folder: Path, index: str) -> None:
    (folder / f"{SAFE}.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r'index\.json has no "weight_map" of keys to files'):
        read(folder)


class Opens:
    """Its pickle makes a file when it is run."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return open, (str(self.file), "w")


@pytest.mark.parametrize("save", [torch.save, save_legacy])
def test_a_pickle_that_wants_more_than_tensors_is_refused_by_name_and_not_run(
    folder: Path, weights: dict[str, Tensor], save: Callable[[Any, Path], None]
) -> None:
    ran = folder / "ran"
    for wanted, value in {
        "argparse.Namespace": argparse.Namespace(),
        "io.open": Opens(ran),
    }.items():
        save({**weights, "other": value}, folder / PICKLED)
        words = f"{PICKLED} is a pickle that needs {wanted}, which is not a tensor: it is not run"
        with pytest.raises(CheckpointError, match=re.escape(words)):
            read(folder)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is broken, or no file of weights that PyTorch wrote: EOFError"),
        (b"PK\x03\x04 and no more", "is broken, or no file of weights that PyTorch wrote: "),
        (b"text", "is broken, or no file of weights that PyTorch wrote"),
        (pickle.dumps({"a": 1}), "is broken, or no file of weights that PyTorch wrote"),
        (b"version https://git-lfs.github.com/spec/v1\noid 1", "run `git lfs pull`"),
    ],
)
@pytest.mark.parametrize("name", [PICKLED, SAFE])
def test_broken_files_are_named_in_one_line(
    folder: Path, content: bytes, words: str, name: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError) as failed:
        read(folder)
    assert str(folder / name) in str(failed.value)
    assert "\n" not in str(failed.value)
    assert words in str(failed.value) or name == SAFE


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.zeros(1)], "it is a list"),
        ({"state_dict": {"a": torch.zeros(1)}}, "state_dict is a dict"),
    ],
)
def test_tensors_must_be_named(folder: Path, content: Any, words: str) -> None:
    torch.save(content, folder / PICKLED)
    with pytest.raises(CheckpointError, match=f"does not hold tensors by name: {words}"):
        read(folder)


def test_a_folder_without_weights_is_told_which_files_are_read(folder: Path) -> None:
    words = f"there is no {SAFE} in {folder}, no {PICKLED}, and no shards of one with its"
    with pytest.raises(CheckpointError, match=re.escape(words)):
        read(folder)
