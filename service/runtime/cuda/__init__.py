"""Engines on an NVIDIA GPU. None of this has run on a GPU yet, and a reader may skip it:
docs/cuda.md."""
