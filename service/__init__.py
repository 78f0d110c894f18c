"""The server: numpy, onnxruntime, FastAPI. Never imports torch, `model` or `export`."""
