"""Graphs: PyTorch to ONNX, and ONNX to ONNX in other precisions. Knows no bundles."""
