"""PyTorch model -> ONNX graphs -> certified bundle. Alone knows both `model` and `service`."""

import addnorm.service  # noqa: F401  # first: it keeps onnxruntime quiet
