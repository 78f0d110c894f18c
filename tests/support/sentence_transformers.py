"""Files of sentence-transformers' folders."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

# modules that are of one kind of model alone
OWNERS = {
    "LogitScore": "cross_encoder",
    "MultiVectorMask": "multi_vector_encoder",
    "HierarchicalTokenPooling": "multi_vector_encoder",
    "SpladePooling": "sparse_encoder",
}


def write_modules(
    folder: Path, package: str = "sentence_transformers.models", **paths: str
) -> None:
    """paths: by the class of the module, with what tells two of a class apart behind "_"."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": _type(package, name.partition("_")[0])}
        for i, (name, path) in enumerate(paths.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def _type(package: str, name: str) -> str:
    kind = OWNERS.get(name)
    return f"sentence_transformers.{kind}.modules.{name}" if kind else f"{package}.{name}"


def write_settings(folder: Path, file: str = "config.json", **settings: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(settings))


def tell(folder: Path, file: str = "config.json", **told: Any) -> Path:
    """Adds fields to a file of the folder, or changes them; `...` takes one out."""
    place = folder / file
    settings = {**(json.loads(place.read_text()) if place.exists() else {}), **told}
    place.write_text(
        json.dumps({name: value for name, value in settings.items() if value is not ...})
    )
    return folder


def write_dense(folder: Path, layer: nn.Linear, pickled: bool = False, **settings: Any) -> None:
    """settings: beyond the sizes. Tanh follows where they name no activation_function."""
    sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
    write_settings(folder, **{"bias": layer.bias is not None, **sizes, **settings})
    weights = {f"linear.{key}": tensor for key, tensor in layer.state_dict().items()}
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")


def write_layer_norm(folder: Path, norm: nn.LayerNorm) -> None:
    write_settings(folder, dimension=norm.normalized_shape[0])
    weights = {f"norm.{key}": tensor for key, tensor in norm.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
