"""What a checkpoint folder lacks, or has and is not read: each in words, with what to do about it."""

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
    """A head that the forward has not, among the keys of the weights, and how to do without it."""
    for prefix, name in HEADS.items():
        if found := sorted(key for key in keys if key.startswith(prefix)):
            body = folder.with_name(f"{folder.resolve().name}-body")
            return (
                f"{folder / WEIGHTS} has {name} ({', '.join(found)}), which is not served yet. For activations and pooled"
                f' vectors, leave it out and export {body}: `python -c "from shutil import copytree; from'
                f" safetensors.torch import load_file, save_file; copytree('{folder}', '{body}'); save_file({{k: v for"
                f" k, v in load_file('{folder / WEIGHTS}').items() if not k.startswith('{prefix}')}},"
                f" '{body / WEIGHTS}')\"`"
            )
    return None


def _download(folder: Path) -> str:
    """`organization/name` is how the hub names models."""
    if (
        folder.is_absolute()
        or len(folder.parts) != 2
        or folder.parent.exists()
        or folder.parts[0] in (".", "..")
    ):
        return ""
    return (
        "; if it is a model of the Hugging Face hub, download it first:"
        f" `hf download {folder} --local-dir {folder.name}` (of `pip install huggingface_hub`), and name that folder"
    )


def _other_weights(folder: Path) -> str:
    if any(folder.glob(SHARDS)):
        return _conversion(folder, SHARDS, "load_file(f)")
    if any(folder.glob(PICKLES)):
        return _conversion(folder, PICKLES, "load(f, weights_only=True, map_location='cpu')")
    return f"there is no {WEIGHTS} in {folder}"


def _conversion(folder: Path, files: str, load: str) -> str:
    return (
        f'{folder} has its weights in {files}, and only {WEIGHTS} is read: convert them with `python -c "from torch import load;'
        " from glob import glob; from safetensors.torch import load_file, save_file; save_file({k:"
        f" v.contiguous().clone() for f in glob('{folder / files}') for k, v in {load}.items()}},"
        f" '{folder / WEIGHTS}')\"`"
    )
