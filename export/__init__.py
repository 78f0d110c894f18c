"""PyTorch model -> ONNX graphs -> certified bundle. Alone knows both `model` and `service`.

For programs: `export_bundle` and `verify_bundle`.
"""

import addnorm.service  # noqa: F401  # first: it keeps onnxruntime quiet
from addnorm.export.library import ExportError, export_bundle, verify_bundle

__all__ = ["ExportError", "export_bundle", "verify_bundle"]
