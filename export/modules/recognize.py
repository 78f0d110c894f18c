"""A module -> the `Transformer` that it is, and how it is asked; or the reason why it is none."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.export.modules import weights, words
from addnorm.export.modules.parts import Parts, Unrecognized
from addnorm.export.modules.shape import Shape
from addnorm.export.modules.trace import LOOKUPS, Enough, Trace, Value, plainly
from addnorm.export.original import Original, OriginalError, as_found, tensor_of
from addnorm.model.config import Pick
from addnorm.model.transformer import Transformer

LENGTHS = (7, 5, 3)  # of the sequences that are followed: the first that the module takes
NO_LIMIT = 512  # positions, where the module sets no limit
COMPARISONS = ("eq", "ne", "gt")
AGREES = 1e-3  # of the largest number, of float32 through all layers with weights drawn anew


@dataclass(frozen=True)
class Recognized:
    """model: with the module's weights. ask: calls the module. lines: what was found, and how.

    pad: an id that the module takes for a pad wherever it stands. pooling: how it makes a row of a
    sequence."""

    model: Transformer
    ask: "Asking"
    lines: list[str]
    pad: int | None
    pooling: Pick


class Asking(nn.Module):
    """ids `[1, S]`, and types if the module takes them -> what the module answers."""

    def __init__(self, call: Callable[..., Any], module: nn.Module, turned: bool) -> None:
        """turned: the module takes `[S, 1]`."""
        super().__init__()
        self.module, self.turned = module, turned
        self._call = (call,)  # no submodule of its own
        self.name = type(module).__qualname__

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Any:
        inputs = [ids] if types is None else [ids, types]
        return self._call[0](*(x.T if self.turned else x for x in inputs))


def recognized(
    module: nn.Module, reference: Callable[..., Any] | None, max_positions: int | None
) -> Recognized:
    """reference: how the module is called, if not `module(ids)`. max_positions: where the module
    sets no limit.

    Unrecognized, in words.
    """
    twin = module if reference else copy.deepcopy(module).cpu()
    call = reference or twin
    has_types = reference is None and _takes_types(module)
    error: Exception | None = None
    for turned in (False, True):
        ask = Asking(call, twin, turned)
        try:
            with as_found(ask), plainly():
                found = _of(ask, has_types, max_positions)
        except (Unrecognized, OriginalError) as raised:
            error = error or raised
            continue
        whole = Asking(reference or module, module, turned)
        return replace(found, ask=whole)
    assert error
    raise Unrecognized(str(error)) from error


def _of(ask: Asking, has_types: bool, max_positions: int | None) -> Recognized:
    with _drawn_anew(ask.module):
        first = _first(ask, has_types)
        pads = _pads(first)
        ids = _ids(first.length, _vocab_size(first), pads)
        trace = traced(ask, *_inputs(ids, has_types))
        shape = Shape(Parts(trace), _answer(trace))
        limits = weights.limits(shape)
        limit = min([*limits, *([max_positions] if max_positions else [])], default=NO_LIMIT)
        config = weights.config(shape, limit)
        drawn = weights.filled(shape, config, trace, _places(ask, shape, has_types, limit))
        _refuse_unlike(drawn, ask, shape, has_types, pads)
    real = traced(ask, *_inputs(ids, has_types))
    if [step.op for step in real.steps] != [step.op for step in trace.steps]:
        raise Unrecognized("the forward takes another way with other weights")
    model = weights.filled(shape, config, real, _places(ask, shape, has_types, limit))
    found = words.lines(shape, config, limits)
    pooling = "mean" if config.heads else shape.head.pick or "mean"
    return Recognized(model, ask, found, min(pads, default=None), pooling)


def traced(ask: Asking, ids: Tensor, types: Tensor | None, enough: int | None = None) -> Trace:
    """OriginalError if the module fails, or answers with no tensor."""
    trace = Trace(ids, types, enough)
    inputs = [ids] if types is None else [ids, types]
    try:
        with trace.named(ask.module), trace:
            answer = ask(*inputs)
    except Enough:
        return trace
    except Unrecognized:
        raise
    except Exception as error:  # it is the caller's code
        raise OriginalError(
            f"the module fails on a sequence of {ids.shape[1]} tokens:"
            f" {type(error).__name__}: {error}"
        ) from error
    trace.answer = trace.value_of(tensor_of(answer))
    return trace


@contextmanager
def _drawn_anew(module: nn.Module) -> Iterator[None]:
    """All weights drawn, until the block ends: with those that training begins with, attention is
    nearly uniform, gammas are 1 and biases 0, and most mistakes do not show."""
    generator = torch.Generator().manual_seed(0)
    before = [(parameter, parameter.data) for parameter in module.parameters()]
    try:
        for parameter, data in before:
            drawn = torch.randn(data.shape, generator=generator)
            narrow = data.dim() < 2
            drawn = 0.7 + 0.3 * drawn if narrow else drawn * 1.2 * data.shape[-1] ** -0.5
            parameter.data = drawn.to(data)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def _takes_types(module: nn.Module) -> bool:
    """Unrecognized where more is needed than ids and token types."""
    found = inspect.signature(module.forward).parameters.values()
    names = [
        x.name for x in found
        if x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    has_types = len(names) == 2 and any(word in names[1].lower() for word in ("type", "seg"))
    if len(names) > 1 + has_types:
        raise Unrecognized(
            f"forward needs {', '.join(names)}: say how it is called with one sequence without"
            f" pads, reference=lambda {names[0]}: module({names[0]}, ...)"
        )
    return has_types


def _inputs(ids: Sequence[int], has_types: bool) -> tuple[Tensor, Tensor | None]:
    types = torch.arange(len(ids)) * 2 // len(ids) if has_types else None
    return torch.tensor([ids]), None if types is None else types[None]


def _first(ask: Asking, has_types: bool) -> Trace:
    """Of the longest sequence of LENGTHS that the module takes."""
    for length in LENGTHS:
        try:
            return traced(ask, *_inputs([1] * length, has_types))
        except OriginalError as error:
            why = error
    raise why


def _vocab_size(first: Trace) -> int:
    assert first.ids
    for step in first.steps:
        if step.op in LOOKUPS and step.values[0].of_rows:
            numbers = step.inputs[-1].tensor.flatten()
            if torch.equal(numbers, first.ids.tensor.flatten()):
                return len(step.inputs[0].tensor)
    raise Unrecognized("no table is read at the token ids: inputs that are no ids are not served")


def _pads(trace: Trace) -> set[int]:
    """Ids that the module compares its input with."""
    assert trace.ids
    parts, found = (trace.ids.tensor.flatten(), set())
    for step in trace.steps:
        if step.op not in COMPARISONS or not step.inputs[0].of_ids or step.rows:
            continue
        if torch.equal(step.inputs[0].tensor.flatten(), parts):
            found |= {int(x) for x in step.arguments[1:] if isinstance(x, int)}
            found |= {int(x.tensor) for x in step.inputs[1:] if x.tensor.numel() == 1}
    return found


def _ids(length: int, vocab_size: int, pads: set[int], seed: int = 0) -> list[int]:
    """Different ones, where there are so many."""
    known = [index for index in range(vocab_size) if index not in pads]
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(max(length, len(known)), generator=generator)[:length]
    return [known[place % len(known)] for place in places.tolist()]


def _answer(trace: Trace) -> Value:
    assert trace.answer
    if not trace.answer.of_rows:
        raise Unrecognized("the answer does not depend on the tokens, or is written in place")
    return trace.answer


def _places(ask: Asking, shape: Shape, has_types: bool, length: int) -> Tensor:
    last = weights.last_place(shape)
    if last is None:
        assert shape.embedding.tokens
        return torch.zeros(length, shape.embedding.tokens.tensor.shape[1])
    trace = traced(ask, *_inputs([1] * length, has_types), enough=last)
    return weights.places(shape, trace, length)


def _refuse_unlike(
    drawn: Transformer, ask: Asking, shape: Shape, has_types: bool, pads: set[int]
) -> None:
    """Unrecognized unless the whole, with weights drawn anew, answers as the module."""
    config = drawn.config
    original = Original(ask, config, shape.head.pick or "mean", min(pads, default=None))
    for seed, length in enumerate((1, 2, 19)):
        length = min(length, config.max_positions)
        ids, types = _inputs(_ids(length, config.vocab_size, pads, seed), has_types)
        row = None if types is None else types[0].tolist()
        expected = original.rows(ids[0].tolist(), row)
        found = original.of_model(drawn, ids[0].tolist(), row)
        difference = abs(found - expected).max() / abs(expected).max()
        if not difference <= AGREES:
            raise Unrecognized(
                f"each part agrees, and the whole does not: of {length} tokens,"
                f" {original.compared.output} differ by {difference:.2g} of the largest number;"
                f" {_departs(drawn, ask, shape, has_types)}"
            )


def _departs(drawn: Transformer, ask: Asking, shape: Shape, has_types: bool) -> str:
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
