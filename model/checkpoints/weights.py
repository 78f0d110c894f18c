"""The files of weights of a folder -> tensors by key. Files are mapped, not copied to memory.

Pickles are read as tensors only: a file that wants anything else is refused, and it is not run.
"""

import json
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from addnorm.model.checkpoints.reader import CheckpointError
from addnorm.model.weight_files import FILES, INDEX, PICKLED, SAFE

GLOBAL = re.compile(r"GLOBAL (\S+)")  # in PyTorch's message, the class or function wanted
MOST_TENSORS = 20_000  # in a file; each takes 0.1 ms, and 48 large layers have 800
MOST_SHARING = 4  # bytes of all tensors for each byte that is stored; ties make it 2
LFS = b"version https://git-lfs.github.com/spec/"


FIRST = "shard-*-model-*.safetensors"
FORMATS = {  # patterns of files -> what they are
    "*.gguf": "GGUF, llama.cpp's weights",
    "*.onnx": "a graph of ONNX",
    "openvino/*": "a graph of OpenVINO",
    "*.h5": "weights of TensorFlow",
    "*.msgpack": "weights of Flax",
    "*.ot": "weights of rust-bert",
    "*.ckpt*": "a checkpoint of a training",
    "consolidated*": "weights in Mistral's or Meta's own format",
    "model.*.safetensors": "a variant, which transformers loads where it is named",
    "pytorch_model.*.bin": "a variant, which transformers loads where it is named",
    "adapter_model.*": "an adapter",
    "*.safetensors": "weights under another name",
    "*.bin": "weights under another name",
}


@dataclass(frozen=True)
class Weights:
    """Tensors by key, as stored. files: all that were read, the index of shards too."""

    tensors: Mapping[str, Tensor]
    files: tuple[Path, ...]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of the floating-point tensors, such as "bfloat16"."""
        floats = (tensor for tensor in self.tensors.values() if tensor.is_floating_point())
        return tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in floats}))


def read(folder: Path) -> Weights:
    """CheckpointError if there are none, if a file is broken, or if shards do not fit the index."""
    if shard := next(iter(sorted(folder.glob(FIRST))), None):
        raise CheckpointError(
            f"{shard} belongs to a distributed training, and transformers reads it first: load the"
            " model with it, and export the folder of its save_pretrained()"
        )
    for name in FILES:
        if (folder / name).is_file():
            file = folder / name
            return _shards(file) if name.endswith(INDEX) else Weights(load(file), (file,))
    advice = other_formats(path.relative_to(folder).as_posix() for path in folder.glob("**/*"))
    raise CheckpointError(
        f"there is no {SAFE} in {folder}, no {PICKLED}, and no shards of one with its {INDEX}"
        + (f": {advice}" if advice else "")
    )


def other_formats(files: Iterable[str]) -> str:
    """Weights of formats that are not read, and what to do. "": there are none. files: their
    paths in the folder."""
    listed = sorted(files)
    for pattern, description in FORMATS.items():
        if file := next((name for name in listed if fnmatchcase(name, pattern)), None):
            return f"{file} is {description}: save the model with save_pretrained of transformers"
    return ""


def _shards(index: Path) -> Weights:
    """The tensors that the index names, and others that its shards hold."""
    places = _places(index)
    files = sorted({index.parent / name for name in places.values()})
    if absent := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{index} names shards that are not there: {', '.join(absent)}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        stored = load(file)
        keys = {key for key, name in places.items() if name == file.name}
        if missing := sorted(keys - stored.keys()):
            rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            listed = f"{', '.join(missing[:3])}{rest}"
            raise CheckpointError(f"{index} names keys that {file.name} lacks: {listed}")
        tensors |= {
            key: tensor for key, tensor in stored.items() if places.get(key, file.name) == file.name
        }
    return Weights(tensors, (index, *files))


def _places(index: Path) -> dict[str, str]:
    """Key -> the file that holds it."""
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        is_right = places and all(
            isinstance(name, str) and name == Path(name).name for name in places.values()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        is_right = False
    if not is_right:
        raise CheckpointError(f'{index} has no "weight_map" of keys to files of its folder')
    return dict(places)


def load(file: Path, nested: Sequence[str] = ()) -> Mapping[str, Tensor]:
    """The tensors of one file. nested: keys of a pickle's dict, one of which may hold the tensors.

    CheckpointError if it is broken, or holds anything else.
    """
    with file.open("rb") as stream:
        if stream.read(len(LFS)) == LFS:
            raise CheckpointError(f"{file} is git-lfs' pointer to the weights: run `git lfs pull`")
    if file.suffix != ".safetensors":
        return _load_pickled(file, nested)
    try:
        with safe_open(file, "pt") as stored:
            if (count := len(stored.keys())) > MOST_TENSORS:
                raise CheckpointError(f"{file} has {count} tensors, the limit is {MOST_TENSORS}")
        return load_file(file)
    except CheckpointError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: {error}") from None
    except Exception as error:  # safetensors' own class derives from Exception alone
        raise CheckpointError(f"{file} is not a safetensors file: {error}") from None


def _load_pickled(file: Path, nested: Sequence[str]) -> Mapping[str, Tensor]:
    """Releases before PyTorch 1.6 wrote no zip file, which cannot be mapped."""
    broken = f"{file} is broken, or no file of weights that PyTorch wrote"
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles that PyTorch did not write
            content = torch.load(
                file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
            )
    except UnpicklingError as error:
        if wanted := GLOBAL.search(str(error)):
            raise CheckpointError(
                f"{file} is a pickle that needs {wanted[1]}, which is not a tensor: it is not run"
            ) from None
        raise CheckpointError(broken) from None
    except Exception as error:  # a broken pickle may fail in any way
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{broken}: {reason}") from None
    if isinstance(content, Mapping):
        inner = (content[key] for key in nested if isinstance(content.get(key), Mapping))
        content = next(inner, content)
    if problem := _unlike_weights(content):
        raise CheckpointError(f"{file} does not hold tensors by name: {problem}")
    return content  # type: ignore[no-any-return]


def _unlike_weights(content: Any) -> str | None:
    if not isinstance(content, Mapping):
        return f"it is a {type(content).__name__}"
    other_keys = (key for key, tensor in content.items() if not isinstance(tensor, Tensor))
    if (key := next(other_keys, None)) is not None:
        return f"{key} is a {type(content[key]).__name__}"
    tensors = [tensor for tensor in content.values() if tensor.layout == torch.strided]
    storages = [tensor.untyped_storage() for tensor in tensors]
    num_stored = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    if sum(tensor.nbytes for tensor in tensors) > MOST_SHARING * num_stored:
        return "they are larger than their stored bytes"
    return None
