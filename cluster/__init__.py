"""Runs the server on engines that have many machines. Imports the engine inside functions."""

import addnorm.service  # noqa: F401  # first: it keeps onnxruntime quiet
