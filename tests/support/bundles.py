"""Bundles that are broken on purpose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def hashed_anew(bundle: Bundle, **changed: Any) -> Bundle:
    """Writes a manifest of the files as they are now. changed: other fields of it."""
    fields = bundle.manifest.model_dump(exclude={"format", "files"})
    return bundles.write_manifest(bundle.path, {**fields, **changed})


def change_constant(
    model: ModelProto, name: str, change: Callable[[NDArray[Any]], NDArray[Any] | float]
) -> None:
    """Replaces the values of a constant, of which there is one of this name."""
    (item,) = (item for item in model.graph.initializer if item.name == name)
    values = numpy_helper.to_array(item)
    changed = np.asarray(change(values.copy()), values.dtype)
    item.CopyFrom(numpy_helper.from_array(changed, name))
