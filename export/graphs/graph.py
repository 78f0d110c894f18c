"""PyTorch -> ONNX, standard operators only. Knows nothing of bundles or parity."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import onnx_ir
import torch
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from torch import nn
from torch.export import Dim, ExportedProgram

from addnorm.export.graphs.distance_terms import DistanceTerms, plain_terms
from addnorm.export.graphs.model_file import EXTERNAL, MIN_BYTES, Array, Graph
from addnorm.export.graphs.nodes import attribute
from addnorm.export.graphs.packed_attention import MAX_TERMS, num_parts
from addnorm.model.attention import ATTENTION_IN_BANDS, ATTENTION_IN_BLOCKS
from addnorm.model.disentangled import WEIGHT
from addnorm.model.grid import OPSET
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer

BIAS = 3  # which input of Attention
TERMS = 8  # the first of those that say which terms of distances its scores have
MIN_PART = 32  # dimensions of a head whose products are made in parts: less would be slow
BODY_INPUTS = ["input_ids", "attention_mask"]  # and token_type_ids, where the model has types
BODY_OUTPUTS = ["activations", "norm_mean", "norm_rstd"]
Shapes = dict[str, Any]  # of each argument, which of its axes vary


class UnfitError(ValueError):
    """The model has no graph that can be served. The message names every reason."""


def check_fit(model: Transformer) -> None:
    """UnfitError for weights that are not finite, and for heads that are too wide.

    onnxruntime splits a dot product of more than 128 terms at places that depend on the width of
    the grid (64 or fewer columns: 256 terms at a time). So a query times a key would have other
    bits with pads than without. The packed layout splits it itself, into equal parts.
    """
    config = model.config
    dims = config.head_dims
    weights = model.state_dict().items()
    faults = [_not_finite(name, tensor) for name, tensor in weights if not tensor.isfinite().all()]
    width = dims // num_parts(dims) if model.layout is LAYOUTS["packed"] else dims
    if not min(dims, MIN_PART) <= width <= MAX_TERMS:
        faults.append(
            f"a head has {dims} dimensions (d_model {config.d_model} / n_heads {config.n_heads}):"
            f" more than {MAX_TERMS} can be served only in the packed layout and in parts of"
            f" {MIN_PART} to {MAX_TERMS}; otherwise bits would depend on padding"
        )
    if faults:
        raise UnfitError("the model cannot be exported: " + "; ".join(faults))


def _not_finite(name: str, tensor: torch.Tensor) -> str:
    bad = (~tensor.isfinite()).nonzero()
    first, count = bad[0], f"{len(bad)} of {tensor.numel()} are not finite"
    return f"{name}{first.tolist()} is {tensor[tuple(first)].item()} ({count})"


def export_body(model: Transformer) -> Graph:
    """input_ids, attention_mask, token_type_ids (only where there is more than one type)
    `[batch, seq]` int64 -> activations, norm_mean, norm_rstd `[batch, seq, ...]`.

    The graph's values are the model's own memory.
    """
    inputs, shapes = _body_inputs(model)
    with _without_heads(model):
        return export_module(model, tuple(inputs.values()), [*inputs], BODY_OUTPUTS, shapes)


def export_lens(model: Transformer) -> Graph:
    """The body seen from inside, layout packed: its inputs, and for each layer the heads to show,
    heads_0 to heads_{L-1} `[h]` int64 -> hidden_states_0 to hidden_states_L `[batch, seq, d_model]`
    and attentions_0 to attentions_{L-1} `[batch, h, seq, seq]`, see `Transformer.lens`.

    The graph's values are the model's own memory.
    """
    inputs, shapes = _body_inputs(model)
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    heads = [torch.arange(2) % n_heads for _ in range(n_layers)]
    types = inputs.pop("token_type_ids", None)
    shapes["token_type_ids"] = None if types is None else shapes["input_ids"]
    shapes["heads"] = [{0: Dim(f"num_heads_{layer}")} for layer in range(n_layers)]
    names = [*inputs, *([] if types is None else ["token_type_ids"])]
    lens = _Lens(model)
    with _without_heads(lens):
        return export_module(
            lens,
            (*inputs.values(), types, heads),
            names + [f"heads_{layer}" for layer in range(n_layers)],
            [
                *(f"hidden_states_{layer}" for layer in range(n_layers + 1)),
                *(f"attentions_{layer}" for layer in range(n_layers)),
            ],
            shapes,
        )


class _Lens(Transformer):
    """A transformer whose forward is its lens. It has the parts of another, so that weights keep
    their names."""

    def __init__(self, model: Transformer) -> None:
        nn.Module.__init__(self)
        self.config, self.layout, self.block = model.config, model.layout, model.block
        for name, part in model.named_children():
            self.add_module(name, part)

    def forward(self, input_ids, attention_mask, token_type_ids, heads):  # type: ignore
        return self.lens(input_ids, attention_mask, token_type_ids, heads)


def _body_inputs(model: Transformer) -> tuple[dict[str, torch.Tensor], Shapes]:
    """Examples of the body's inputs `[batch, seq]`, and their shapes."""
    ids = torch.zeros(2, 3, dtype=torch.int64)
    inputs = dict(zip(BODY_INPUTS, (ids, torch.tensor([[1, 1, 1], [1, 1, 0]])), strict=True))
    if model.config.type_vocab_size > 1:
        inputs["token_type_ids"] = torch.tensor([[0, 1, 1], [0, 0, 0]])
    grid = {0: Dim("batch"), 1: Dim("seq")}
    return inputs, dict.fromkeys(inputs, grid)


@contextmanager
def _without_heads(model: Transformer) -> Iterator[None]:
    """A tensor that a head shares with the body would get its name from the head."""
    heads, model.heads = model.heads, nn.ModuleDict()
    try:
        yield
    finally:
        model.heads = heads


def export_head(head: nn.Module, output: str, d_model: int) -> Graph:
    """rows `[n, d_model]` float32 -> the output `[n, width]`."""
    return export_module(
        head, (torch.zeros(2, d_model),), ["rows"], [output], {"rows": {0: Dim("n")}}
    )


def export_module(
    module: nn.Module | ExportedProgram,
    arguments: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    dynamic_shapes: Shapes | None = None,
) -> Graph:
    """inputs, outputs: their names; dynamic_shapes: the axes of each input that vary. A program
    that was followed before has its arguments and shapes."""
    with silence_exporter(), torch.no_grad():
        program = torch.onnx.export(
            module, arguments, dynamo=True, verbose=False, opset_version=OPSET,
            input_names=inputs, output_names=outputs, dynamic_shapes=dynamic_shapes,
        )  # fmt: skip
    assert program
    # large constants: in the model, only their types and shapes stay
    values: dict[str, Array] = {}
    for name, constant in program.model.graph.initializers.items():
        tensor = constant.const_value
        assert tensor is not None
        if tensor.nbytes >= MIN_BYTES:
            values[name] = array = tensor.numpy()
            shape = onnx_ir.Shape(array.shape)
            constant.const_value = onnx_ir.ExternalTensor(
                "", None, None, tensor.dtype, shape=shape, name=name
            )
    return Graph(_remove_notes(_write_scans(program.model_proto)), values)


@contextmanager
def silence_exporter() -> Iterator[None]:
    """Silences the exporter, which deprecates parts of itself, warns that torchvision is missing on
    every call, tells of each step that it skips, and prints graphs that it cannot finish."""
    names = ("torch.onnx", "onnxscript", "torch.fx.experimental.symbolic_shapes")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _write_scans(model: ModelProto) -> ModelProto:
    """Attention in blocks becomes a Scan over the blocks, which PyTorch's exporter cannot write."""
    domain = ATTENTION_IN_BLOCKS.partition("::")[0]
    if any(_name(node) == ATTENTION_IN_BANDS for node in model.graph.node):
        # Sizes that vary together: of a band's that is not true, see `_range` in model/grid.py
        for value in model.graph.value_info:
            for size in value.type.tensor_type.shape.dim:
                if size.dim_param:
                    size.Clear()
    # weights that were marked are read as they are
    marks = [node for node in model.graph.node if _name(node) == WEIGHT]
    weights = {node.output[0]: node.input[0] for node in marks}
    for node in marks:
        model.graph.node.remove(node)
    for node in model.graph.node:
        node.input[:] = [weights.get(name, name) for name in node.input]
    for node in model.graph.node:
        if node.domain == domain:
            node.CopyFrom(_scan(node))
    domains = [entry for entry in model.opset_import if entry.domain != domain]
    del model.opset_import[:]
    model.opset_import.extend(domains)
    return model


def _name(node: NodeProto) -> str:
    return f"{node.domain}::{node.op_type}"


def _scan(node: NodeProto) -> NodeProto:
    """Its queries, and a bias if there is one, are cut along axis 0; in bands keys and values too.
    The others are the same for all.

    Input 7, if there is one, names the heads whose softmax is its output 1. Those from TERMS on are
    tables of distances, and their rows, which are cut too.
    """
    read, context = [*node.input], f"{node.output[0]}.block"
    cut = [0, 1, 2] if _name(node) == ATTENTION_IN_BANDS else [0]
    cut += [BIAS] if len(read) > BIAS and read[BIAS] else []
    cut += [TERMS + 2, TERMS + 3] if len(read) > TERMS else []
    for index in cut:
        read[index] += ".block"
    terms: list[NodeProto] = []
    if len(read) > TERMS:
        terms, read[BIAS] = plain_terms(node, read[0], read[1], DistanceTerms(*read[TERMS:]))
    attention = helper.make_node("Attention", read[:7], [context], f"{node.name}.block")
    attention.attribute.extend(node.attribute)
    nodes, outputs = [*terms, attention], [_floats(context, 3)]
    if len(node.output) > 1:
        softmax = f"{node.output[1]}.block"
        attention.output.extend(["", "", f"{softmax}.all"])
        nodes += _choose_heads(attention, heads=read[7], output=softmax)
        outputs.append(_floats(softmax, 4))
    arguments = [
        helper.make_tensor_value_info(read[at], TensorProto.INT64, [None] * (at - TERMS - 1))
        if at > TERMS
        else _floats(read[at], 4 if at == BIAS else 3)
        for at in cut
    ]
    body = helper.make_graph(nodes, f"{node.name}.body", arguments, outputs)
    inputs = [node.input[index] for index in cut]
    scan = helper.make_node("Scan", inputs, [*node.output], node.name, num_scan_inputs=len(cut))
    scan.attribute.append(helper.make_attribute("body", body))
    return scan


def _choose_heads(attention: NodeProto, heads: str, output: str) -> list[NodeProto]:
    """Nodes that take the softmax of `heads`, `[B, h, w, S]`, from the softmax of all heads.

    The reshaping changes nothing: where S is not known, onnxruntime takes it for 0 in the shape of
    the operator's last output (1.31.1), and then rejects it.
    """
    query, key, softmax = attention.input[0], attention.input[1], attention.output[3]
    n_heads = attribute(attention, "q_num_heads", 0)
    batch_and_heads, width, seq, shape, reshaped = (
        f"{output}.{name}" for name in ("batch_and_heads", "width", "seq", "shape", "reshaped")
    )
    return [
        helper.make_node("Constant", [], [batch_and_heads], value_ints=[-1, n_heads]),
        helper.make_node("Shape", [query], [width], start=1, end=2),
        helper.make_node("Shape", [key], [seq], start=1, end=2),
        helper.make_node("Concat", [batch_and_heads, width, seq], [shape], axis=0),
        helper.make_node("Reshape", [softmax, shape], [reshaped]),
        helper.make_node("Gather", [reshaped, heads], [output], axis=1),
    ]


def _floats(name: str, rank: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)


def _remove_notes(model: ModelProto) -> ModelProto:
    """Removes the notes that the exporter made.

    UnfitError for operators outside ai.onnx.
    """
    graph = model.graph
    operators = {f"{node.domain or 'ai.onnx'}.{node.op_type}" for node in graph.node}
    foreign = {name for name in operators if not name.startswith("ai.onnx.")}
    if foreign or model.functions:
        names = ", ".join(sorted(foreign)) or "local functions"
        raise UnfitError(f"the graph needs operators outside ai.onnx: {names}")
    values = (*graph.input, *graph.output, *graph.value_info)
    for message in (model, graph, *graph.node, *graph.initializer, *values):
        del message.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
    for message in graph.initializer:
        if message.data_location == EXTERNAL:
            del message.external_data[:]
    return model
