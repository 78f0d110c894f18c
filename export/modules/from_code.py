"""A module that a function of the user's code makes: `addnorm export --module package.module:make`.

The code is run on purpose. Its weights are read as tensors only.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from addnorm.export.modules import asking
from addnorm.export.modules.recognize import of_module
from addnorm.export.sources.sources import Source, UsageError
from addnorm.model.checkpoints import weights
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import Manifest

NESTED = ("model", "state_dict", "model_state_dict")  # where training scripts put the weights
COMPILED = "_orig_mod."  # what torch.compile puts before keys


def of_code(
    path: str,
    file: Path | None,
    *,
    labels: Sequence[str] | None = None,
    tokenizer: Path | None = None,
    max_length: int | None = None,
    pooling: str | None = None,
    normalize: bool = False,
) -> Source:
    """path: `package.module:function`, found from the current folder too. file: of a state_dict.

    UsageError and CheckpointError, in words.
    """
    module = make_module(path)
    if file is not None:
        if not file.is_file():
            raise UsageError(f"--weights {file}: there is no such file")
        tensors = weights.load(file, NESTED)
        try:
            module.load_state_dict({key.removeprefix(COMPILED): x for key, x in tensors.items()})
        except RuntimeError as error:
            raise UsageError(f"--weights {file}: {' '.join(str(error).split())}") from None
    source = of_module(
        asking.unwrapped(module), reference=None, config=None, weights=None, pooling=pooling,
        labels=labels, tokenizer=tokenizer, max_length=max_length, normalize=normalize,
    )  # fmt: skip
    origin: dict[str, Any] = {"path": path}
    if file is not None:
        origin["weights"] = {str(file): sha256(file)}
    if tokenizer is not None:
        origin["tokenizer"] = str(tokenizer)
    return replace(source, origin={**source.origin, **origin})


def source_of_manifest(manifest: Manifest, file: Path | None) -> Source:
    """The source that a manifest names. file: of the weights, where they lie elsewhere now."""
    made = manifest.source
    stored = next(iter(made.get("weights", {})), None)
    tokenizer = made.get("tokenizer")
    source = of_code(
        made["path"],
        file or (None if stored is None else Path(stored)),
        labels=manifest.labels,
        tokenizer=None if tokenizer is None else Path(tokenizer),
        max_length=made.get("max_length"),
        pooling=manifest.pooling,
        normalize=manifest.normalize,
    )
    if file is None or stored is None:
        return source
    again = {"weights": {stored: sha256(file)}}
    return replace(source, origin={**source.origin, **again})


def make_module(path: str) -> nn.Module:
    """The module that the function returns."""
    place, colon, name = path.partition(":")
    if not colon or not place or not name:
        raise UsageError(f"--module {path}: name it as package.module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(place), name)()
    except Exception as error:  # it is the user's code
        raise UsageError(f"--module {path} fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"--module {path} makes a {type(made).__name__}: a torch.nn.Module is needed"
        )
    return made
