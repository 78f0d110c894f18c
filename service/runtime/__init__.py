"""Bundles on disk and their signatures, onnxruntime sessions, batches, and tokenizers."""
