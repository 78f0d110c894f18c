"""Hugging Face folders, against transformers' own BertModel."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
)

from addnorm.model.checkpoints import CheckpointError, load_checkpoint

CONFIG = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=16, layer_norm_eps=1e-12, attn_implementation="eager",
)  # fmt: skip
IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    BertModel(CONFIG).save_pretrained(tmp_path)
    return tmp_path


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    for key, tensor in changes.items():
        if tensor is None:
            del weights[key]
        else:
            weights[key] = tensor
    save_file(weights, folder / "model.safetensors")


def test_hidden_states_equal_those_of_transformers(folder: Path) -> None:
    loaded = load_checkpoint(folder)
    theirs = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = theirs(input_ids=IDS, attention_mask=MASK).last_hidden_state
        got, _, _ = loaded.model(IDS, MASK)
    torch.testing.assert_close(got[MASK == 1], expected[MASK == 1], atol=1e-5, rtol=0)
    assert not loaded.model.heads
    assert loaded.pooling == "mean"
    assert not loaded.normalize
    assert loaded.unused == ["pooler.dense.bias", "pooler.dense.weight"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_head_gives_the_logits_of_transformers(tmp_path: Path, tied: bool) -> None:
    torch.manual_seed(0)
    config = BertConfig(**{**CONFIG.to_dict(), "tie_word_embeddings": tied})
    theirs = BertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    with torch.no_grad():
        expected = theirs(input_ids=IDS, attention_mask=MASK).logits
        rows, _, _ = loaded.model(IDS, MASK)
        got = loaded.model.heads["logits"](rows[MASK == 1])
    torch.testing.assert_close(got, expected[MASK == 1], atol=1e-5, rtol=0)
    assert "bert." in loaded.unused


def test_first_releases_names_of_the_norms_are_known(folder: Path) -> None:
    before = load_checkpoint(folder).model(IDS, MASK)[0]
    weights = load_file(folder / "model.safetensors")
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in weights.items()
    }
    save_file(old, folder / "model.safetensors")
    assert torch.equal(load_checkpoint(folder).model(IDS, MASK)[0], before)


def test_one_message_lists_missing_unexpected_and_misshaped_keys(folder: Path) -> None:
    change(
        folder,
        **{
            "embeddings.LayerNorm.weight": None,
            "encoder.layer.1.output.dense.bias": torch.zeros(31),
            "encoder.layer.2.output.dense.bias": torch.zeros(32),
            "embeddings.position_ids": torch.arange(16),
        },
    )
    with pytest.raises(CheckpointError) as failed:
        load_checkpoint(folder)
    message = str(failed.value)
    assert "missing: embeddings.LayerNorm.weight;" in message
    assert "unexpected: encoder.layer.2.output.dense.bias;" in message
    assert "misshaped: encoder.layer.1.output.dense.bias is [31], [32] expected" in message
    assert "position_ids" not in message


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "model_type",
            "gemma3_text",
            "'gemma3_text' is not supported: .* The nearest that is: 'qwen3'. text-embed",
        ),
        ("model_type", "made-up", "model_type is 'made-up'; supported are albert, bert, "),
        ("model_type", None, "model_type is missing"),
        ("hidden_act", "mish", "hidden_act is 'mish'"),
        ("position_embedding_type", "relative_key", "position_embedding_type is 'relative_key'"),
        ("hidden_size", None, "hidden_size is missing"),
    ],
)
def test_other_models_are_refused_in_words(
    folder: Path, key: str, value: str | None, words: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config[key] = value
    if value is None:
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(folder)


def test_broken_and_absent_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10" * 20)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_checkpoint(folder)


def command(message: str) -> list[str]:
    """The one that a message says will help, run with this Python."""
    found = re.search(r"`(python -c .+)`", message)
    assert found, message
    return [sys.executable, *shlex.split(found[1])[1:]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "there is no folder nowhere"),
        ("/no/where", "there is no folder /no/where"),
        (
            "BAAI/bge-small-en-v1.5",
            "there is no folder BAAI/bge-small-en-v1.5",
        ),
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


HUGE = 10**9
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 10**7}, "is [50, 32], [50, 10000000] expected"),
        ({"hidden_size": HUGE}, "its sizes are too large: vocab_size 50, d_model 1000000000, "),
        (
            {"hidden_size": 4 * HUGE},
            "d_model is 4000000000, the limit is 2147483647; there d_model",
        ),
        ({"intermediate_size": HUGE}, "dense.weight is [64, 32], [1000000000, 32] expected"),
        ({"vocab_size": HUGE}, "is [50, 32], [1000000000, 32] expected"),
        ({"vocab_size": int("9" * 400)}, "vocab_size is 99999"),
        ({"max_position_embeddings": 2**20}, "is [16, 32], [1048576, 32] expected"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000, the limit is 512"),
        ({"num_hidden_layers": 500}, "missing: encoder.layer.10.attention.output.LayerNorm.bias"),
        ({"type_vocab_size": HUGE}, "token_type_embeddings.weight is [2, 32]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_taken(
    changes: dict[str, int], words: str, folder: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError) as failed:
        load_checkpoint(folder)
    assert words in str(failed.value)
    assert len(str(failed.value)) < 2000 + len(str(folder))


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
    weights["pooler.dense.weight"] = torch.zeros(1, 32).expand(10**9, 32)
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="they are larger than what is stored of them"):
        load_checkpoint(folder)
