"""Works on files of texts and vectors. Asks a server, or serves a bundle in its own process."""

import addnorm.service  # noqa: F401  # first: it keeps onnxruntime quiet
