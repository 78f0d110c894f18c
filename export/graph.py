"""PyTorch -> ONNX, standard operators only. Knows nothing of bundles or parity."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir
import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from torch import nn
from torch.export import Dim

from addnorm.export.model_file import EXTERNAL, MIN_BYTES, Array, Graph
from addnorm.model.transformer import ATTENTION_IN_BLOCKS, ATTENTION_VERSION, Head, Transformer

MAX_HEAD_DIMS = 128  # of one attention head
OPSET = ATTENTION_VERSION
BODY_INPUTS = ["input_ids", "attention_mask"]  # and token_type_ids, where the model has types
BODY_OUTPUTS = ["activations", "norm_mean", "norm_rstd"]


class UnfitError(ValueError):
    """The model has no graph that can be served. The message names every reason."""


def check_fit(model: Transformer) -> None:
    """UnfitError for weights that are not finite, and for heads that are too wide.

    onnxruntime splits a dot product of more than 128 terms at places that depend on the width of
    the grid (64 or fewer columns: 256 terms at a time). So a query times a key would have other
    bits with pads than without.
    """
    config = model.config
    dims = config.d_model // config.n_heads
    weights = model.state_dict().items()
    found = [_not_finite(name, tensor) for name, tensor in weights if not tensor.isfinite().all()]
    if dims > MAX_HEAD_DIMS:
        found.append(
            f"a head has {dims} dimensions (d_model {config.d_model} / n_heads {config.n_heads}),"
            f" at most {MAX_HEAD_DIMS} can be served: with more, bits would depend on padding"
        )
    if found:
        raise UnfitError("the model cannot be exported: " + "; ".join(found))


def _not_finite(name: str, tensor: torch.Tensor) -> str:
    bad = (~tensor.isfinite()).nonzero()
    first, count = bad[0], f"{len(bad)} of {tensor.numel()} are not finite"
    return f"{name}{first.tolist()} is {tensor[tuple(first)].item()} ({count})"


def export_body(model: Transformer) -> Graph:
    """input_ids, attention_mask, token_type_ids (only where there is more than one type)
    `[batch, seq]` int64 -> activations, norm_mean, norm_rstd `[batch, seq, ...]`.

    The graph's values are the model's own memory.
    """
    inputs, ids = [*BODY_INPUTS], torch.zeros(2, 3, dtype=torch.int64)
    arguments = [ids, torch.tensor([[1, 1, 1], [1, 1, 0]])]
    if model.config.type_vocab_size > 1:
        inputs.append("token_type_ids")
        arguments.append(torch.tensor([[0, 1, 1], [0, 0, 0]]))
    grid = {0: Dim("batch"), 1: Dim("seq")}
    shapes = dict.fromkeys(inputs, grid)
    with _headless(model):
        return _export(model, tuple(arguments), inputs, BODY_OUTPUTS, shapes)


@contextmanager
def _headless(model: Transformer) -> Iterator[None]:
    """A tensor that a head shares with the body would get its name from the head."""
    heads, model.heads = model.heads, nn.ModuleDict()
    try:
        yield
    finally:
        model.heads = heads


def export_head(head: Head, output: str, d_model: int) -> Graph:
    """rows `[n, d_model]` float32 -> the output `[n, width]`."""
    return _export(head, (torch.zeros(2, d_model),), ["rows"], [output], {"rows": {0: Dim("n")}})


def _export(
    module: nn.Module,
    arguments: tuple[torch.Tensor, ...],
    inputs: list[str],
    outputs: list[str],
    dynamic_shapes: dict[str, dict[int, Dim]],
) -> Graph:
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module, arguments, dynamo=True, verbose=False, opset_version=OPSET,
            input_names=inputs, output_names=outputs, dynamic_shapes=dynamic_shapes,
        )  # fmt: skip
    assert program
    values = _taken_out(program.model)
    return Graph(_standard(_scanned(program.model_proto)), values)


def _taken_out(model: onnx_ir.Model) -> dict[str, Array]:
    """The large constants by name. In the model, only their types and shapes stay."""
    values: dict[str, Array] = {}
    for name, constant in model.graph.initializers.items():
        tensor = constant.const_value
        assert tensor is not None
        if tensor.nbytes >= MIN_BYTES:
            values[name] = array = tensor.numpy()
            shape = onnx_ir.Shape(array.shape)
            constant.const_value = onnx_ir.ExternalTensor(
                "", None, None, tensor.dtype, shape=shape, name=name
            )
    return values


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter, which deprecates parts of itself and warns that torchvision is missing
    on every call."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _scanned(model: ModelProto) -> ModelProto:
    """Attention in blocks becomes a Scan over the blocks, which PyTorch's exporter cannot write."""
    domain = ATTENTION_IN_BLOCKS.partition("::")[0]
    for node in model.graph.node:
        if node.domain == domain:
            node.CopyFrom(_scan(node))
    domains = [entry for entry in model.opset_import if entry.domain != domain]
    del model.opset_import[:]
    model.opset_import.extend(domains)
    return model


def _scan(node: NodeProto) -> NodeProto:
    """Its input 0, and 3 if there is one, are cut along axis 0. The others are the same for all."""
    read, context = [*node.input], f"{node.output[0]}.block"
    cut = [index for index in (0, 3) if len(read) > index and read[index]]
    for index in cut:
        read[index] += ".block"
    body = helper.make_graph(
        [helper.make_node("Attention", read, [context], f"{node.name}.block")],
        f"{node.name}.body",
        [_floats(read[0], 3), *(_floats(read[index], 4) for index in cut[1:])],
        [_floats(context, 3)],
    )
    body.node[0].attribute.extend(node.attribute)
    inputs = [node.input[index] for index in cut]
    made = helper.make_node("Scan", inputs, [*node.output], node.name, num_scan_inputs=len(cut))
    made.attribute.append(helper.make_attribute("body", body))
    return made


def _floats(name: str, rank: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)


def _operator(node: NodeProto) -> str:
    return f"{node.domain or 'ai.onnx'}.{node.op_type}"


def _standard(model: ModelProto) -> ModelProto:
    """Removes what the exporter wrote about this machine's files.

    UnfitError for operators outside ai.onnx.
    """
    graph = model.graph
    foreign = {node for node in map(_operator, graph.node) if not node.startswith("ai.onnx.")}
    if foreign or model.functions:
        names = ", ".join(sorted(foreign)) or "local functions"
        raise UnfitError(f"the graph needs operators outside ai.onnx: {names}")
    for item in (model, graph, *graph.node, *graph.value_info, *graph.initializer):
        del item.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
    for item in graph.initializer:
        if item.data_location == EXTERNAL:
            del item.external_data[:]
    return model
