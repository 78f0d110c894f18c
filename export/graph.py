"""PyTorch -> ONNX, standard operators only. Knows nothing of bundles or parity."""

import warnings

import torch
from onnx import ModelProto
from torch import nn
from torch.export import Dim

from addnorm.model.transformer import Transformer

MAX_HEAD_DIMS = 128  # of one attention head
OPSET = 23  # the first with Attention
BODY_INPUTS = ["input_ids", "attention_mask"]
BODY_OUTPUTS = ["activations", "norm_mean", "norm_rstd"]


class UnfitError(ValueError):
    """The model cannot be exported so that it keeps its promise. The message names all that stands against it."""


def check_fit(model: Transformer) -> None:
    """UnfitError for weights that are not finite, and for heads too wide.

    onnxruntime cuts a dot product of more than 128 terms at places that depend on the width of the grid (64 or
    fewer columns: 256 terms at a time), so a query times a key would have other bits with pads than without.
    """
    config = model.config
    dims = config.d_model // config.n_heads
    found = [
        _not_finite(name, tensor)
        for name, tensor in model.state_dict().items()
        if not tensor.isfinite().all()
    ]
    if dims > MAX_HEAD_DIMS:
        found.append(
            f"a head has {dims} dimensions (d_model {config.d_model} / n_heads {config.n_heads}), at most"
            f" {MAX_HEAD_DIMS} can be served: with more, bits would depend on padding"
        )
    if found:
        raise UnfitError("the model cannot be exported: " + "; ".join(found))


def _not_finite(name: str, tensor: torch.Tensor) -> str:
    bad = (~tensor.isfinite()).nonzero()
    return f"{name}{bad[0].tolist()} is {tensor[tuple(bad[0])].item()} ({len(bad)} of {tensor.numel()} are not finite)"


def export_body(model: Transformer) -> ModelProto:
    """input_ids, attention_mask `[batch, seq]` int64 -> activations, norm_mean, norm_rstd `[batch, seq, ...]`."""
    ids = torch.zeros(2, 3, dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    grid = {0: Dim("batch"), 1: Dim("seq")}
    return _export(
        model, (ids, mask), BODY_INPUTS, BODY_OUTPUTS, {"input_ids": grid, "attention_mask": grid}
    )


def export_head(head: nn.Module, d_model: int) -> ModelProto:
    """rows `[n, d_model]` float32 -> logits `[n, vocab_size]`."""
    return _export(head, (torch.zeros(2, d_model),), ["rows"], ["logits"], {"rows": {0: Dim("n")}})


def _export(
    module: nn.Module,
    arguments: tuple[torch.Tensor, ...],
    inputs: list[str],
    outputs: list[str],
    dynamic_shapes: dict[str, dict[int, Dim]],
) -> ModelProto:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter deprecates parts of itself on every call
        program = torch.onnx.export(
            module, arguments, dynamo=True, verbose=False, opset_version=OPSET,
            input_names=inputs, output_names=outputs, dynamic_shapes=dynamic_shapes,
        )  # fmt: skip
    assert program
    return _standard(program.model_proto)


def _standard(model: ModelProto) -> ModelProto:
    """Strips what the exporter wrote about this machine's files, and refuses operators outside ai.onnx."""
    foreign = sorted(
        {
            f"{node.domain}.{node.op_type}"
            for node in model.graph.node
            if node.domain not in ("", "ai.onnx")
        }
    )
    if foreign or model.functions:
        raise ValueError(
            f"the graph needs operators outside ai.onnx: {', '.join(foreign) or 'local functions'}"
        )
    for item in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        del item.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
    return model
