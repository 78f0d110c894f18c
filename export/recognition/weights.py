"""The parts' weights, out of any trace of the same forward, into a `Transformer`."""

from typing import Any

import torch
from torch import Tensor

from addnorm.export.recognition.parts import Landmark
from addnorm.export.recognition.shape import Block, Head, Shape
from addnorm.export.recognition.trial import Norm
from addnorm.export.reference.trace import Trace, Unrecognized, Value
from addnorm.model.config import Config, HeadConfig
from addnorm.model.transformer import Transformer


def config(shape: Shape, max_positions: int) -> Config:
    """Unrecognized for sizes that no `Transformer` has."""
    block, embedding, norms = shape.blocks[0], shape.embedding, shape.norms()
    vocab_size, d_model = shape.tokens.shape
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "n_heads": block.attention.n_heads,
        "d_ff": block.ffn.up.width,
        "n_layers": len(shape.blocks),
        "max_positions": max_positions,
        "type_vocab_size": len(embedding.types[0].tensor) if embedding.types else 1,
        "causal": block.attention.scores.causal,
        "block": block.order,
        "activation": block.ffn.activation,
        "norm": norms[0].kind,
        "norm_bias": any(norm.beta is not None for norm in norms),
        "eps": norms[0].eps,
        "embedding_scale": embedding.scale,
        "embedding_norm": embedding.norm is not None,
        "final_norm": shape.final_norm is not None,
        "attention_bias": any(
            attention.out.bias is not None
            or any(part.has_bias for part in (attention.queries, attention.keys, attention.values))
            for attention in (block.attention for block in shape.blocks)
        ),
    }
    for part in (block.attention.queries, block.attention.keys, block.attention.values):
        if part.columns.numel() != d_model:
            heads, size = part.columns.shape
            raise Unrecognized(f"{heads} heads of {size} are not as wide as d_model {d_model}")
    head = head_config(shape)
    return Config(**fields, heads={"logits": head} if head else {})


def head_config(shape: Shape) -> HeadConfig | None:
    """A head on the last row of a causal model's vocabulary is one on every token, asked for the
    next."""
    head = shape.head
    last = head.linear or head.dense
    if last is None:
        return None
    is_next = head.pick == "last" and last.width == len(shape.tokens)
    is_next = is_next and shape.blocks[0].attention.scores.causal
    return HeadConfig(
        pick="every" if is_next else head.pick or "every",
        width=last.width,
        dense=head.dense.width if head.dense else None,
        dense_bias=head.dense is None or head.dense.bias is not None,
        activation=head.activation,
        linear=head.linear is not None,
        bias=head.linear is None or head.linear.bias is not None,
    )


def fill_model(shape: Shape, fields: Config, trace: Trace, places: Tensor) -> Transformer:
    """trace: of the forward with the weights that are wanted. places: `[max_positions, width]`."""
    tensors = {**_embedding(shape, trace, places), **_head(shape.head, trace)}
    for index, block in enumerate(shape.blocks):
        block_tensors = _block(block, trace)
        tensors |= {f"blocks.{index}.{name}": tensor for name, tensor in block_tensors.items()}
    if shape.final_norm:
        tensors |= _norm("final_norm", shape.final_norm, trace, fields.d_model)
    with torch.device("meta"):  # nothing is drawn that is written over
        model = Transformer(fields, "padded")
    state = model.state_dict()
    absent = [name for name in tensors.keys() - state.keys() if tensors[name].any()]
    assert not absent, absent  # only biases of zeros that this shape does not have
    copies = {name: tensors[name].detach().contiguous().clone() for name in state}
    model.load_state_dict(copies, assign=True)
    for _, head in model.named_heads():  # one copy in memory of a table that is a head too
        if "linear" in head.steps and torch.equal(head.linear.weight, model.tokens.weight):
            head.linear.weight = model.tokens.weight
    return model.eval()


def places(shape: Shape, trace: Trace, length: int) -> Tensor:
    """The sum of tables that is added to tokens, `[length, width]`. trace: of so many tokens.
    Unrecognized if some of them have no place."""
    total = torch.zeros(length, shape.tokens.shape[1])
    for value, factor in shape.embedding.places:
        rows = _tensor_at(trace, value)
        if rows.numel() != total.numel():
            raise Unrecognized(
                f"of {length} tokens it reads {rows.numel() // total.shape[1]}: if it truncates"
                ' sequences at a length, set config={"max_positions": that length}'
            )
        total += factor * rows.reshape(length, -1)
    return total


def table_sizes(shape: Shape) -> list[int]:
    """The rows of the tables that places are read from."""
    todo, sources = [value for value, _ in shape.embedding.places], set[Value]()
    while todo:
        value = todo.pop()
        if value not in sources:
            sources.add(value)
            todo += value.step.inputs if value.step else []
    width = shape.tokens.shape[1]
    tables = [x.tensor for x in sources if x.step is None and x.tensor.shape[-1:] == (width,)]
    return [x.numel() // width for x in tables if x.numel() >= width * shape.parts.trace.length]


def _tensor_at(trace: Trace, value: Value) -> Tensor:
    return trace.values[value.number].tensor.float()


def _embedding(shape: Shape, trace: Trace, table: Tensor) -> dict[str, Tensor]:
    embedding = shape.embedding
    assert embedding.tokens
    tensors = {"tokens.weight": _tensor_at(trace, embedding.tokens), "positions.weight": table}
    if embedding.types:
        value, factor = embedding.types
        tensors["types.weight"] = factor * _tensor_at(trace, value)
    if embedding.norm:
        tensors |= _norm("embedding_norm", embedding.norm, trace, table.shape[1])
    return tensors


def _block(block: Block, trace: Trace) -> dict[str, Tensor]:
    attention = block.attention
    projections = (attention.queries, attention.keys, attention.values)
    tensors = {
        "attention.qkv.weight": torch.cat([part.weight(trace) for part in projections]).float(),
        "attention.qkv.bias": torch.cat([part.bias(trace) for part in projections]).float(),
        **_linear("attention.out", attention.out, trace),
        **_linear("ffn.up", block.ffn.up, trace),
        **_linear("ffn.down", block.ffn.down, trace),
    }
    for number, norm in enumerate(block.norms, 1):
        tensors |= _norm(f"norm{number}", norm, trace, attention.out.width)
    return tensors


def _head(head: Head, trace: Trace) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, part in (("dense", head.dense), ("linear", head.linear)):
        if part:
            tensors |= _linear(f"heads.logits.{name}", part, trace)
    return tensors


def _linear(name: str, part: Landmark, trace: Trace) -> dict[str, Tensor]:
    assert part.weight
    weight = _tensor_at(trace, part.weight).T
    bias = torch.zeros(len(weight))
    if part.bias is not None:
        bias = _tensor_at(trace, part.bias).reshape(-1)
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def _norm(name: str, norm: Norm, trace: Trace, width: int) -> dict[str, Tensor]:
    gamma = torch.ones(width) if norm.gamma is None else _tensor_at(trace, norm.gamma).reshape(-1)
    beta = torch.zeros(width) if norm.beta is None else _tensor_at(trace, norm.beta).reshape(-1)
    return {f"{name}.gamma": norm.factor * gamma, f"{name}.beta": beta}
