"""Hugging Face BERT folders (`config.json`, `model.safetensors`) -> Config and weights.

Whatever does not fit is refused. No pickle is read.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from addnorm.model.folder import problem, unserved_head
from addnorm.model.transformer import Attention, Block, Config, Head, LayerNorm, Transformer

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
    # as newer releases write it
    "mean": "mean",
    "cls": "first",
    "lasttoken": "last",
}
SUPPORTED: dict[str, list[str | bool | None]] = {  # field of config.json -> its values
    "model_type": ["bert"],
    "hidden_act": [*ACTIVATIONS],
    "position_embedding_type": ["absolute", None],
    "is_decoder": [False, None],
    "add_cross_attention": [False, None],
}
# Known parts of BERT checkpoints that the forward does not use: named in the manifest, not refused
UNUSED = re.compile(r"pooler\..*|.*\.position_ids|cls\.seq_relationship\..*")
FIRST_RELEASE = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class CheckpointError(ValueError):
    """The folder is not one that can be exported. The message lists all that does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    model: Transformer
    pooling: str  # mean, first or last: sentence-transformers' 1_Pooling, else mean
    normalize: bool  # sentence-transformers' modules.json ends in Normalize
    unused: list[str]  # keys, and prefixes ending in ".", that the forward does not use


def load_checkpoint(folder: Path, layout: str = "packed") -> Checkpoint:
    """The folder's model in evaluation mode.

    CheckpointError if anything is missing, unexpected or misshaped.
    """
    if wrong := problem(folder):
        raise CheckpointError(wrong)
    weights, unused = _read_weights(folder / "model.safetensors")
    with_head = any(key.startswith("cls.predictions.") for key in weights)
    config = read_config(_read_json(folder / "config.json"), with_head)
    if head := unserved_head(folder, weights):
        raise CheckpointError(head)
    model = Transformer(config, layout)
    reader = _Reader(weights)
    with torch.no_grad():
        _fill(model, reader)
    reader.finish(folder)
    pooling, normalize = _sentence_transformers(folder)
    return Checkpoint(model.eval(), pooling, normalize, unused)


def read_config(raw: dict[str, Any], with_head: bool) -> Config:
    """A Hugging Face BertConfig's fields -> Config."""
    for name, supported in SUPPORTED.items():
        if (value := raw.get(name)) not in supported:
            raise CheckpointError(f"config.json: {name} is {value!r}, supported are {supported}")
    try:
        return Config(
            vocab_size=raw["vocab_size"],
            d_model=raw["hidden_size"],
            n_heads=raw["num_attention_heads"],
            d_ff=raw["intermediate_size"],
            n_layers=raw["num_hidden_layers"],
            max_positions=raw["max_position_embeddings"],
            type_vocab_size=raw.get("type_vocab_size", 2),
            activation=ACTIVATIONS[raw["hidden_act"]],  # type: ignore[arg-type]
            eps=raw["layer_norm_eps"],
            embedding_norm=True,
            head="transform" if with_head else None,
        )
    except KeyError as error:
        raise CheckpointError(f"config.json: {error.args[0]} is missing") from None


@dataclass
class _Reader:
    """Returns tensors by key, and collects everything that does not fit."""

    weights: dict[str, Tensor]
    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    misshaped: list[str] = field(default_factory=list)

    def read(self, key: str, shape: torch.Size) -> Tensor:
        """The tensor as float32. Zeros if it does not fit, which `finish` then reports."""
        tensor = self.weights.get(key)
        self.used.add(key)
        if tensor is None:
            self.missing.append(key)
        elif tensor.shape != shape:
            self.misshaped.append(f"{key} is {list(tensor.shape)}, {list(shape)} expected")
        else:
            return tensor.float()
        return torch.zeros(shape)

    def finish(self, folder: Path) -> None:
        """CheckpointError if anything did not fit."""
        unexpected = sorted(set(self.weights) - self.used)
        found = {
            "missing": sorted(self.missing),
            "unexpected": unexpected,
            "misshaped": sorted(self.misshaped),
        }
        if any(found.values()):
            listed = "; ".join(f"{what}: {', '.join(keys)}" for what, keys in found.items() if keys)
            raise CheckpointError(f"{folder / 'model.safetensors'}: {listed}")


def _fill(model: Transformer, reader: _Reader) -> None:
    """Copies every parameter of the model out of the checkpoint."""
    tokens, positions = model.tokens.weight, model.positions.weight
    tokens.copy_(reader.read("embeddings.word_embeddings.weight", tokens.shape))
    by_position = reader.read("embeddings.position_embeddings.weight", positions.shape)
    shape = torch.Size([model.config.type_vocab_size, model.config.d_model])
    by_type = reader.read("embeddings.token_type_embeddings.weight", shape)
    if model.config.type_vocab_size > 1:
        positions.copy_(by_position)
        model.types.weight.copy_(by_type)
    else:  # its vector is added at every position
        positions.copy_(by_position + by_type[0])
    _norm(model.embedding_norm, reader, "embeddings.LayerNorm")
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        _block(block, reader, f"encoder.layer.{index}")
    if model.head:
        _head(model.head, model, reader)


def _block(block: Block, reader: _Reader, prefix: str) -> None:
    _attention(block.attention, reader, f"{prefix}.attention.self")
    _linear(block.attention.out, reader, f"{prefix}.attention.output.dense")
    _norm(block.norm1, reader, f"{prefix}.attention.output.LayerNorm")
    _linear(block.ffn.up, reader, f"{prefix}.intermediate.dense")
    _linear(block.ffn.down, reader, f"{prefix}.output.dense")
    _norm(block.norm2, reader, f"{prefix}.output.LayerNorm")


def _attention(attention: Attention, reader: _Reader, prefix: str) -> None:
    weight, bias = attention.out.weight.shape, attention.out.bias.shape
    parts = [f"{prefix}.{part}" for part in ("query", "key", "value")]
    attention.qkv.weight.copy_(torch.cat([reader.read(f"{part}.weight", weight) for part in parts]))
    attention.qkv.bias.copy_(torch.cat([reader.read(f"{part}.bias", bias) for part in parts]))


def _head(head: Head, model: Transformer, reader: _Reader) -> None:
    _linear(head.dense, reader, "cls.predictions.transform.dense")
    _norm(head.norm, reader, "cls.predictions.transform.LayerNorm")
    weight, bias = head.decoder.weight, head.decoder.bias
    bias.copy_(reader.read("cls.predictions.bias", bias.shape))
    reader.used.add(
        "cls.predictions.decoder.bias"
    )  # the same vector, stored twice by some versions
    if "cls.predictions.decoder.weight" in reader.weights:
        weight.copy_(reader.read("cls.predictions.decoder.weight", weight.shape))
    else:  # tied to the embeddings
        weight.copy_(model.tokens.weight)


def _linear(linear: nn.Linear, reader: _Reader, prefix: str) -> None:
    linear.weight.copy_(reader.read(f"{prefix}.weight", linear.weight.shape))
    linear.bias.copy_(reader.read(f"{prefix}.bias", linear.bias.shape))


def _norm(norm: LayerNorm, reader: _Reader, prefix: str) -> None:
    norm.gamma.copy_(reader.read(f"{prefix}.weight", norm.gamma.shape))
    norm.beta.copy_(reader.read(f"{prefix}.bias", norm.beta.shape))


def _read_weights(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by BERT's own key, and what was left out: the prefix `bert.`, known unused keys."""
    try:
        stored = load_file(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    except Exception as error:  # safetensors' own class derives from Exception alone
        raise CheckpointError(f"{path} is no safetensors file: {error}") from None
    weights, unused = {}, []
    for key, tensor in stored.items():
        name = key.removeprefix("bert.")
        if name != key and "bert." not in unused:
            unused.append("bert.")
        for old, new in FIRST_RELEASE.items():
            name = name.replace(old, new)
        if UNUSED.fullmatch(name):
            unused.append(name)
        else:
            weights[name] = tensor
    return weights, sorted(unused)


def _sentence_transformers(folder: Path) -> tuple[str, bool]:
    """Pooling and normalization by `modules.json` and `1_Pooling`; without them mean, and none."""
    if not (folder / "modules.json").exists():
        return "mean", False
    kinds = [module["type"].rpartition(".")[2] for module in _read_json(folder / "modules.json")]
    if unknown := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise CheckpointError(f"modules.json: {', '.join(sorted(unknown))} is not supported")
    modes = _read_json(folder / "1_Pooling" / "config.json") if "Pooling" in kinds else {}
    wanted = [name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True]
    if mode := modes.get("pooling_mode"):
        wanted = [mode] if isinstance(mode, str) else mode
    if len(wanted) > 1 or set(wanted) - set(POOLINGS):
        raise CheckpointError(f"1_Pooling/config.json: {', '.join(wanted)} is not supported")
    return POOLINGS[wanted[0]] if wanted else "mean", "Normalize" in kinds


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
