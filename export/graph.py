"""PyTorch -> ONNX, standard operators only. Knows nothing of bundles or parity."""

import warnings
from pathlib import Path

import onnx
import torch
from torch import nn
from torch.export import Dim

from model.transformer import Transformer

OPSET = 23  # the first with Attention
BODY_INPUTS = ["input_ids", "attention_mask"]
BODY_OUTPUTS = ["activations", "norm_mean", "norm_rstd"]


def export_body(model: Transformer, path: Path) -> None:
    """input_ids, attention_mask `[batch, seq]` int64 -> activations, norm_mean, norm_rstd `[batch, seq, ...]`."""
    ids = torch.zeros(2, 3, dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    grid = {0: Dim("batch"), 1: Dim("seq")}
    _export(model, (ids, mask), path, BODY_INPUTS, BODY_OUTPUTS, {"input_ids": grid, "attention_mask": grid})


def export_head(head: nn.Module, d_model: int, path: Path) -> None:
    """rows `[n, d_model]` float32 -> logits `[n, vocab_size]`."""
    _export(head, (torch.zeros(2, d_model),), path, ["rows"], ["logits"], {"rows": {0: Dim("n")}})


def _export(
    module: nn.Module,
    arguments: tuple[torch.Tensor, ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
    dynamic_shapes: dict[str, dict[int, Dim]],
) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter deprecates parts of itself on every call
        torch.onnx.export(
            module, arguments, path, dynamo=True, verbose=False, opset_version=OPSET, external_data=False,
            input_names=inputs, output_names=outputs, dynamic_shapes=dynamic_shapes,
        )  # fmt: skip
    _standard(path)


def _standard(path: Path) -> None:
    """Strips what the exporter wrote about this machine's files, and refuses operators outside ai.onnx."""
    graph = onnx.load(path)
    foreign = sorted(
        {f"{node.domain}.{node.op_type}" for node in graph.graph.node if node.domain not in ("", "ai.onnx")}
    )
    if foreign or graph.functions:
        raise ValueError(f"{path.name} needs operators outside ai.onnx: {', '.join(foreign) or 'local functions'}")
    for item in (graph, graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.initializer):
        del item.metadata_props[:]
    for node in graph.graph.node:
        node.doc_string = ""
    onnx.save(graph, path)
