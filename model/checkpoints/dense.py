"""sentence-transformers' Dense modules -> a head of ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from addnorm.model.checkpoints import json_files, weights
from addnorm.model.checkpoints.reader import CheckpointError
from addnorm.model.config import Activation, HeadConfig, Pick
from addnorm.model.transformer import Head

ACTIVATIONS: dict[str, Activation] = {  # classes of torch.nn with their defaults
    "Identity": "identity",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Tanh": "tanh",
}
TANH = "torch.nn.modules.activation.Tanh"  # where config.json names none
INPUTS = {"token_embeddings": "token_vectors", "sentence_embedding": "pooled"}  # -> our output


@dataclass(frozen=True)
class Dense:
    """activation(x W^T + b)."""

    folder: Path
    output: str | None  # that it makes, "token_vectors" or "pooled"; None: config.json names none
    activation: Activation
    stored: weights.Weights

    @property
    def weight(self) -> Tensor:
        """`[out, in]`."""
        return self.stored.tensors["linear.weight"]

    @property
    def bias(self) -> Tensor | None:
        return self.stored.tensors.get("linear.bias")


def read(folder: Path) -> Dense:
    """CheckpointError if it is not one that a head of ours can be."""
    file = folder / "config.json"
    config = json_files.settings(file)
    name = config.get("activation_function", TANH)
    package, _, class_name = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if not package.startswith("torch.nn") or class_name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"{file}: activation_function is {name!r}, supported are {known}")
    if config.get("use_residual"):
        raise CheckpointError(f"{file}: use_residual is true, which is not supported")
    read_from = config.get("module_input_name")
    if read_from not in (None, *INPUTS):
        known = " or ".join(INPUTS)
        raise CheckpointError(f"{file}: module_input_name is {read_from!r}, supported is {known}")
    if (written := config.get("module_output_name")) not in (None, read_from):
        raise CheckpointError(
            f"{file}: module_output_name is {written!r}, supported is module_input_name's"
        )
    output = INPUTS[read_from] if read_from else None
    layer = Dense(folder, output, ACTIVATIONS[class_name], weights.read(folder))
    stored = layer.stored.tensors
    expected = {"linear.weight", "linear.bias"} if config.get("bias", True) else {"linear.weight"}
    if stored.keys() != expected:
        raise CheckpointError(
            f"{layer.folder}: weights do not fit: they are {', '.join(sorted(stored)) or 'none'},"
            f" expected are {', '.join(sorted(expected))}"
        )
    weight, bias = layer.weight, layer.bias
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in stored.items())
        raise CheckpointError(f"{layer.folder}: weights do not fit each other: {shapes}")
    return layer


def head_config(layers: Sequence[Dense], pick: Pick) -> HeadConfig:
    """CheckpointError if they are more than a head of ours can hold."""
    first, *rest = layers
    if len(rest) > 1 or (rest and rest[0].activation != "identity"):
        names = ", ".join(layer.folder.name for layer in layers)
        raise CheckpointError(
            f"modules.json: {names} are not supported together: at most two Dense follow each"
            " other, the second with the activation Identity"
        )
    return HeadConfig(
        pick=pick,
        width=len(layers[-1].weight),
        dense=len(first.weight),
        dense_bias=first.bias is not None,
        activation=first.activation,
        linear=bool(rest),
        bias=bool(rest) and rest[0].bias is not None,
    )


def fill(head: Head, layers: Sequence[Dense]) -> None:
    """CheckpointError if a layer does not take what comes before it."""
    for name, layer in zip(("dense", "linear"), layers, strict=False):
        module = head.get_submodule(name)
        assert isinstance(module, torch.nn.Linear)
        if module.weight.shape != layer.weight.shape:
            sizes = f"{layer.weight.shape[1]} numbers, {module.in_features} come"
            raise CheckpointError(f"{layer.folder}: linear.weight takes {sizes}")
        module.weight.copy_(layer.weight)
        if layer.bias is not None:
            module.bias.copy_(layer.bias)
