"""Engines on an NVIDIA GPU; serving on CPUs needs none of it: docs/cuda.md."""
