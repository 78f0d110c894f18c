"""PyTorch model -> ONNX graphs -> certified bundle. Alone knows both `model` and `service`.

For programs: `export_bundle` and `verify_bundle`, `export_onnx` and `verify_onnx`. They are
imported when they are asked for: PyTorch takes seconds, which `kept.py` need not wait for.
"""

from typing import TYPE_CHECKING, Any

import addnorm.service  # noqa: F401  # first: it keeps onnxruntime quiet

if TYPE_CHECKING:
    from addnorm.export.library import (
        ExportError,
        export_bundle,
        export_onnx,
        verify_bundle,
        verify_onnx,
    )

__all__ = ["ExportError", "export_bundle", "export_onnx", "verify_bundle", "verify_onnx"]


def __getattr__(name: str) -> Any:
    """Raises AttributeError for other names."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from addnorm.export import library

    return getattr(library, name)
