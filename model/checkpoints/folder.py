"""What a checkpoint folder lacks, or has and is not read: in words, with what to do about it."""

from collections.abc import Iterable
from pathlib import Path

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SHARDS, PICKLES = "model-*-of-*.safetensors", "pytorch_model*.bin"
HEADS = {"classifier.": "a classification head", "qa_outputs.": "a question answering head"}


def problem(folder: Path) -> str | None:
    """Why the folder cannot be read at all. None if config.json and model.safetensors are there."""
    if folder.is_file():
        return f"{folder} is a file: name the folder that it lies in"
    if not folder.is_dir():
        return f"there is no folder {folder}{_download(folder)}"
    if not (folder / CONFIG).is_file():
        return f"there is no {CONFIG} in {folder}: name the folder that holds it beside {WEIGHTS}"
    return None if (folder / WEIGHTS).is_file() else _other_weights(folder)


def unserved_head(folder: Path, keys: Iterable[str]) -> str | None:
    """Names a head that the forward lacks, by the keys of the weights, and how to leave it out."""
    for prefix, name in HEADS.items():
        if found := sorted(key for key in keys if key.startswith(prefix)):
            body = folder.with_name(f"{folder.resolve().name}-body")
            return (
                f"{folder / WEIGHTS} has {name} ({', '.join(found)}), which is not served yet. For"
                f" activations and pooled vectors, leave it out and export {body}:"
                f" {_removal(folder, body, prefix)}"
            )
    return None


def _removal(folder: Path, body: Path, prefix: str) -> str:
    """The command that writes the folder to `body` without the weights of that prefix."""
    return (
        '`python -c "from shutil import copytree;'
        " from safetensors.torch import load_file, save_file;"
        f" copytree('{folder}', '{body}');"
        f" save_file({{k: v for k, v in load_file('{folder / WEIGHTS}').items()"
        f" if not k.startswith('{prefix}')}}, '{body / WEIGHTS}')\"`"
    )


def _download(folder: Path) -> str:
    """How to download it, if it may be a model of the hub: these are named `organization/name`."""
    is_relative = not folder.is_absolute() and folder.parts[:1] not in ((".",), ("..",))
    if not is_relative or len(folder.parts) != 2 or folder.parent.exists():
        return ""
    return (
        "; if it is a model of the Hugging Face hub, download it first:"
        f" `hf download {folder} --local-dir {folder.name}` (of `pip install huggingface_hub`),"
        " and name that folder"
    )


def _other_weights(folder: Path) -> str:
    if any(folder.glob(SHARDS)):
        return _conversion(folder, SHARDS, "load_file(f)")
    if any(folder.glob(PICKLES)):
        return _conversion(folder, PICKLES, "load(f, weights_only=True, map_location='cpu')")
    return f"there is no {WEIGHTS} in {folder}"


def _conversion(folder: Path, files: str, load: str) -> str:
    return (
        f"{folder} has its weights in {files}, and only {WEIGHTS} is read: convert them with"
        ' `python -c "from torch import load; from glob import glob;'
        " from safetensors.torch import load_file, save_file;"
        " save_file({k: v.contiguous().clone()"
        f" for f in glob('{folder / files}') for k, v in {load}.items()}},"
        f" '{folder / WEIGHTS}')\"`"
    )
