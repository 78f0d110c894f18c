"""The server: numpy, onnxruntime, FastAPI. Never imports torch, `model` or `export`."""

import os

VERSION = "0.1.0"

# onnxruntime sends telemetry by default; it reads this when it is first imported
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
