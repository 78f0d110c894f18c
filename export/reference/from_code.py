"""A module that a function of the user's code makes: `addnorm export --module package.module:make`.

The code is run on purpose. Its weights are read as tensors only.
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from addnorm.export.reference.asking import unwrap
from addnorm.export.wishes import UsageError
from addnorm.model.checkpoints import weights
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import Manifest

NESTED = ("model", "state_dict", "model_state_dict")  # where training scripts put the weights
COMPILED = "_orig_mod."  # what torch.compile puts before keys


def made_by(path: str, file: Path | None) -> tuple[nn.Module, dict[str, Any]]:
    """The module with its weights, and where it is from, as a manifest names it."""
    module, origin = make_module(path), dict[str, Any](path=path)
    if file is not None:
        if not file.is_file():
            raise UsageError(f"--weights {file}: the file does not exist")
        tensors = weights.load(file, NESTED)
        try:
            module.load_state_dict({key.removeprefix(COMPILED): x for key, x in tensors.items()})
        except RuntimeError as error:
            raise UsageError(f"--weights {file}: {' '.join(str(error).split())}") from None
        origin["weights"] = {str(file): sha256(file)}
    return unwrap(module), origin


def stored_weights(manifest: Manifest) -> Path | None:
    """The file of weights that a manifest names."""
    return next(map(Path, manifest.source.get("weights", {})), None)


def under_its_name(origin: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """The origin, with weights that lie elsewhere now under the name that the manifest has."""
    weights_file = stored_weights(manifest)
    if weights_file is None or "weights" not in origin:
        return dict(origin)
    (digest,) = origin["weights"].values()
    return {**origin, "weights": {str(weights_file): digest}}


def make_module(path: str) -> nn.Module:
    """The module that the function returns."""
    place, colon, name = path.partition(":")
    if not colon or not place or not name:
        raise UsageError(f"--module {path}: write it as package.module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = getattr(importlib.import_module(place), name)()
    except Exception as error:  # it is the user's code
        raise UsageError(f"--module {path} fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"--module {path} returns a {type(module).__name__}: it must return a torch.nn.Module"
        )
    return module
