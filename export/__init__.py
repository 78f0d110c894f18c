"""The bridge: PyTorch model -> ONNX graphs -> certified bundle. The only package that knows the other two."""

import addnorm.service  # noqa: F401  # first: it keeps onnxruntime quiet
