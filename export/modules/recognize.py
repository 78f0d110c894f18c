"""A module -> the `Transformer` that it is, and how it is asked; or the reason why it is none."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.export.modules import words
from addnorm.export.modules.asking import (
    Asking,
    Recognized,
    as_inputs,
    drawn_anew,
    drawn_ids,
    pads_of,
    takes_types,
    traced,
)
from addnorm.export.modules.operators import weights
from addnorm.export.modules.operators.parts import Parts, Unrecognized
from addnorm.export.modules.operators.shape import Shape
from addnorm.export.modules.operators.trace import LOOKUPS, Trace, Value, plainly
from addnorm.export.sources.original import Original, OriginalError, as_found
from addnorm.model.transformer import Transformer

LENGTHS = (7, 5, 3)  # of the sequences that are followed: the first that the module takes
COMPARED = (1, 2, 19, 512)  # lengths of the sequences that the whole is compared on, if there
NO_LIMIT = 512  # positions, where the module sets no limit
AGREES = 1e-3  # of the largest number, of float32 through all layers with weights drawn anew


def recognized(
    module: nn.Module, reference: Callable[..., Any] | None, max_positions: int | None
) -> Recognized:
    """reference: how the module is called, if not `module(ids)`. max_positions: where the module
    sets no limit.

    Unrecognized, in words.
    """
    twin = module if reference else copy.deepcopy(module).cpu()
    call = reference or twin
    has_types = takes_types(reference or module.forward)
    error: Exception | None = None
    for turned in (False, True):
        ask = Asking(call, twin, turned, has_types)
        try:
            with as_found(ask), plainly():
                found = _of(ask, max_positions)
        except (Unrecognized, OriginalError) as raised:
            error = error or raised
            continue
        whole = Asking(reference or module, module, turned, has_types)
        return replace(found, ask=whole)
    assert error
    raise Unrecognized(str(error)) from error


def _of(ask: Asking, max_positions: int | None) -> Recognized:
    with drawn_anew(ask.module):
        first = _first(ask)
        vocab_size = _vocab_size(first)
        _refuse_random(first, traced(ask, *as_inputs([1] * first.length, ask)))
        pads = pads_of(first)
        ids = drawn_ids(first.length, vocab_size, pads)
        trace = traced(ask, *as_inputs(ids, ask))
        shape = Shape(Parts(trace), _answer(trace))
        limits = weights.limits(shape)
        limit = min([*limits, *([max_positions] if max_positions else [])], default=NO_LIMIT)
        config = weights.config(shape, limit)
        drawn = weights.filled(shape, config, trace, _places(ask, shape, limit))
        _refuse_unlike(drawn, ask, shape, pads)
    real = traced(ask, *as_inputs(ids, ask))
    if [step.op for step in real.steps] != [step.op for step in trace.steps]:
        raise Unrecognized("the forward takes another way with other weights")
    model = weights.filled(shape, config, real, _places(ask, shape, limit))
    found = words.lines(shape, config, limits)
    pooling = "mean" if config.heads else shape.head.pick or "mean"
    return Recognized(model, ask, found, min(pads, default=None), pooling)


def _first(ask: Asking) -> Trace:
    """The trace of the longest sequence of LENGTHS that the module takes."""
    for length in LENGTHS:
        try:
            return traced(ask, *as_inputs([1] * length, ask))
        except OriginalError as error:
            why = error
    raise why


def _refuse_random(first: Trace, second: Trace) -> None:
    if not torch.equal(_answer(first).tensor, _answer(second).tensor):
        raise Unrecognized(
            "it gives two answers to one sequence: something in it is random, such as dropout that"
            " evaluation mode does not end"
        )


def _vocab_size(first: Trace) -> int:
    assert first.ids
    for step in first.steps:
        if step.op in LOOKUPS and step.values[0].of_rows:
            numbers = step.inputs[-1].tensor.flatten()
            if torch.equal(numbers, first.ids.tensor.flatten()):
                return len(step.inputs[0].tensor)
    raise Unrecognized("no table is read at the token ids: inputs that are no ids are not served")


def _answer(trace: Trace) -> Value:
    assert trace.answer
    if not trace.answer.of_rows:
        raise Unrecognized("the answer does not depend on the tokens, or is written in place")
    return trace.answer


def _places(ask: Asking, shape: Shape, length: int) -> Tensor:
    last = weights.last_place(shape)
    if last is None:
        assert shape.embedding.tokens
        return torch.zeros(length, shape.embedding.tokens.tensor.shape[1])
    trace = traced(ask, *as_inputs([1] * length, ask), enough=last)
    return weights.places(shape, trace, length)


def _refuse_unlike(drawn: Transformer, ask: Asking, shape: Shape, pads: set[int]) -> None:
    """Unrecognized unless the whole, with weights drawn anew, answers as the module."""
    config = drawn.config
    original = Original(ask, config, shape.head.pick or "mean", min(pads, default=None))
    for seed, length in enumerate(COMPARED):
        length = min(length, config.max_positions)
        ids, types = as_inputs(drawn_ids(length, config.vocab_size, pads, seed), ask)
        row = None if types is None else types[0].tolist()
        expected = original.rows(ids[0].tolist(), row)
        found = original.of_model(drawn, ids[0].tolist(), row)
        difference = abs(found - expected).max() / abs(expected).max()
        if not difference <= AGREES:
            raise Unrecognized(
                f"each part agrees, and the whole does not: of {length} tokens,"
                f" {original.compared.output} differ by {difference:.2g} of the largest number;"
                f" {_departs(drawn, shape)}"
            )


def _departs(drawn: Transformer, shape: Shape) -> str:
    """Where the first hidden state is another than the module's."""
    trace = shape.parts.trace
    assert trace.ids
    ids = trace.ids.tensor.reshape(1, -1)
    types = None if trace.types is None else trace.types.tensor.reshape(1, -1)
    heads = [torch.zeros(1, dtype=torch.int64)] * drawn.config.n_layers
    hidden, _ = drawn.lens(ids, torch.ones_like(ids), types, heads)
    ends = [shape.blocks[0].entry, *(block.exit_ for block in shape.blocks)]
    for number, (ours, end) in enumerate(zip(hidden, ends, strict=True)):
        theirs = end.tensor.reshape(ours.shape)
        if (ours - theirs).abs().max() > AGREES * theirs.abs().max():
            return f"they depart in {f'block {number - 1}' if number else 'the embeddings'}"
    return f"the {len(hidden)} hidden states of {ids.shape[1]} tokens agree"
