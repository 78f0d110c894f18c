"""A module that somebody wrote -> the `Transformer` that it is, and how it is asked, as the source
of a bundle; or the reason why it is none."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.export import sources
from addnorm.export.recognition import weights, whole
from addnorm.export.recognition.explained import (
    leading_to,
    refuse_unexplained,
    refuse_unlisted,
)
from addnorm.export.recognition.ids import IdUses
from addnorm.export.recognition.parts import Parts
from addnorm.export.recognition.shape import Shape
from addnorm.export.recognition.whole import Recognized, as_inputs, drawn_anew, fill_ids, list_calls
from addnorm.export.reference import asking
from addnorm.export.reference.asking import Asking, copy_module, first_line, kinds_of
from addnorm.export.reference.original import OriginalError, as_found, digest, tensor_of
from addnorm.export.reference.trace import (
    Trace,
    Unrecognized,
    Value,
    plain_attention,
    trace_forward,
)
from addnorm.export.sources import Source
from addnorm.export.wishes import NO_WISHES, OF_MODELS, UsageError, Wishes
from addnorm.model.config import Config

NUM_FOLLOWED = 7  # tokens of the sequence that is followed, if the module takes as many
# fields of `Wishes` that a recognized module reads
MODULE_READS = (*OF_MODELS, "reference", "max_positions", "vocab_size", "batch_first")
NOTHING: Mapping[str, Any] = MappingProxyType({})
WIDTH = 14  # of names in the findings
NO_LIMIT = 512  # positions, where no table sets a limit
WAYS_ON = (
    "To go on, set reference=lambda ids: ... to show how the module is called and which answer is"
    " used; without as_it_is=False, the module's own graph is served; see docs/own-models.md"
)


class NotRecognized(UsageError):
    """The module is none that is understood. why: without what its caller can do about it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. {WAYS_ON}")
        self.why = reason


def recognize(
    module: nn.Module,
    reference: Callable[..., Any] | None,
    max_positions: int | None,
    batch_first: bool | None = None,
) -> Recognized:
    """reference: how the module is called, if not `module(ids)`. max_positions: where the module
    sets no limit. batch_first: whether it takes `[1, S]`, else `[S, 1]`; None: it is tried.

    Unrecognized, in words.
    """
    twin = module if reference else copy_module(module)
    call = reference or twin
    kinds = kinds_of(reference or module)
    if "mask" in kinds:
        raise Unrecognized(
            "it needs a mask: show how it is called with reference=lambda ids: module(ids, ...)"
        )
    error: Exception | None = None
    for turned in (False, True) if batch_first is None else (not batch_first,):
        ask = Asking(call, twin, turned, kinds)
        try:
            with as_found(ask), plain_attention():
                recognized = _follow(ask, max_positions)
        except (Unrecognized, OriginalError) as raised:
            error = error or raised
            continue
        if turned and batch_first is None:
            _refuse_either(recognized, Asking(call, twin, False, kinds), error)
        real_ask = Asking(reference or module, module, turned, kinds)
        return replace(recognized, ask=real_ask)
    assert error
    raise Unrecognized(str(error)) from error


def _refuse_either(recognized: Recognized, unturned: Asking, error: Exception | None) -> None:
    """Unrecognized for a module that takes `[S, 1]`, answers `[1, S]` too, and shows by no mask and
    no places along which axis it counts tokens."""
    config = recognized.model.config
    if config.causal or recognized.model.positions.weight.any():
        return
    try:
        with as_found(unturned):
            unturned(*as_inputs([1] * 3, unturned))
    except OriginalError:
        return
    raise Unrecognized(
        "it answers ids of the shapes [1, S] and [S, 1] differently: set batch_first=False if"
        f" your code calls it with [S, B], and True if with [B, S], which is refused: {error}"
    )


def _follow(ask: Asking, max_positions: int | None) -> Recognized:
    def calls(ids: list[int]) -> Callable[[int], object]:
        return lambda length: list_calls(ask, *as_inputs(ids * length, ask))

    with drawn_anew(ask.module):
        num_ids, num_tokens = asking.vocab_size(ask), asking.longest(calls([1]), NUM_FOLLOWED)
        # ids that the module tells from no others, and those that it does
        distinct_ids: set[int] = set()
        while True:
            ids = fill_ids(num_tokens, num_ids, distinct_ids)
            id_uses = IdUses(trace_forward(ask, *as_inputs(ids, ask)), num_ids)
            if {*id_uses.ids} <= distinct_ids:
                break
            distinct_ids |= {*id_uses.ids}
        constants = {value.number for value in id_uses.constants}
        trace = trace_forward(ask, *as_inputs(ids, ask), constants=constants)
        answer = _answer(trace)
        refuse_unlisted(leading_to(answer))
        shape = Shape(Parts(trace), answer)
        refuse_unexplained(answer)
        sizes = weights.table_sizes(shape)
        limit = min(filter(None, [*sizes, max_positions]), default=NO_LIMIT)
        limit = asking.longest(calls(ids[:1]), limit)
        config = weights.config(shape, limit)
        drawn_model = weights.fill_model(
            shape, config, trace, _places(ask, shape, limit, ids[0], constants)
        )
        pooling = "mean" if config.heads else shape.head.pick or "mean"
        pad = whole.pad_of(drawn_model, ask, pooling, id_uses)
        try:
            whole.refuse_unlike(drawn_model, ask, pooling, pad)
        except Unrecognized as error:
            raise Unrecognized(f"each part agrees, but the whole does not: {error}") from error
    real = trace_forward(ask, *as_inputs(ids, ask), constants=constants)
    if [step.op for step in real.steps] != [step.op for step in trace.steps]:
        raise Unrecognized("the forward takes a different path with different weights")
    model = weights.fill_model(shape, config, real, _places(ask, shape, limit, ids[0], constants))
    is_limited = bool(sizes) or limit != (max_positions or NO_LIMIT)
    findings = _findings(shape, config, is_limited)
    lines = [f"  {name:{WIDTH}}{words}" for name, words in findings.items()]
    return Recognized(model, ask, lines, pad, pooling)


def _answer(trace: Trace) -> Value:
    answer: Value = trace.value_of(tensor_of(trace.answer))
    if not answer.of_rows:
        raise Unrecognized("the answer does not depend on the tokens, or is written in place")
    return answer


def _places(
    ask: Asking, shape: Shape, length: int, plain_id: int, constants: Collection[int]
) -> Tensor:
    """plain_id: an id that is told from no other."""
    if not shape.embedding.places:
        return torch.zeros(length, shape.tokens.shape[1])
    last = max(value.number for value, _ in shape.embedding.places)
    trace = trace_forward(ask, *as_inputs([plain_id] * length, ask), last, constants)
    return weights.places(shape, trace, length)


def _findings(shape: Shape, config: Config, is_limited: bool) -> dict[str, str]:
    """The findings, by name."""
    heads, head = f"{config.n_heads} heads of {config.head_dims}", shape.head
    extra = {"embeddings": config.embedding_norm, "the last block": config.final_norm}
    norm_places = " and ".join(name for name, has_norm in extra.items() if has_norm)
    pick = f"of a {head.pick} row" if head.pick else "of every token"
    logits = config.heads.get("logits")
    dense = (
        f", after a layer of {logits.dense} and {logits.activation}"
        if logits and logits.dense
        else ""
    )
    if logits and head.pick == "last" and logits.pick == "every":
        pick = "for the last token, served for every token"
    no_limit = '; the module has no limit: config={"max_positions": N} sets a different one'
    return {
        "tokens": f"{config.vocab_size:,} ids, width {config.d_model}"
        + (f", times {config.embedding_scale:g}" if config.embedding_scale != 1 else ""),
        "positions": f"{config.max_positions:,}, "
        + ("added to tokens" if shape.embedding.places else "none are added")
        + ("" if is_limited else no_limit),
        **({"types": f"{config.type_vocab_size}"} if config.type_vocab_size > 1 else {}),
        "blocks": f"{config.n_layers}, order {config.block}"
        + (f", a norm after {norm_places}" if norm_places else ""),
        "attention": f"{heads}, {shape.blocks[0].attention.scores}",
        "feed-forward": f"{config.d_ff}, {config.activation}",
        "norms": f"eps {config.eps:g}{', beside the deviation' if config.norm == 'std' else ''}",
        "head": f"logits: {logits.width:,} {pick}{dense}"
        if logits else f"none: its answer is the activations {pick}",
    }  # fmt: skip


def of_module(
    module: nn.Module, wishes: Wishes = NO_WISHES, origin: Mapping[str, Any] = NOTHING
) -> Source:
    """origin: more of where it is from. NotRecognized, in words."""
    wishes.check_read("a graph of ours", MODULE_READS)
    name = type(module).__qualname__
    try:
        recognized = recognize(module, wishes.reference, wishes.max_positions, wishes.batch_first)
        config = recognized.model.config
        if (wishes.max_positions or 0) > config.max_positions:
            raise Unrecognized(
                f"config has max_positions {wishes.max_positions}, the limit of the module is"
                f" {config.max_positions}"
            )
        if wishes.vocab_size not in (None, config.vocab_size):
            raise Unrecognized(
                f"config has vocab_size {wishes.vocab_size}, the module has {config.vocab_size}"
            )
    except (Unrecognized, OriginalError) as error:
        raise NotRecognized(f"{name}: {error}") from error
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise NotRecognized(f"{name} cannot be traced: {first_line(error)}") from error
    print(f"recognized {name}:", *recognized.lines, sep="\n", flush=True)
    pooling: Any = wishes.pooling or recognized.pooling
    of_model = replace(wishes, reference=recognized.ask, pooling=pooling)
    source = sources.module(recognized.model, of_model, recognized.pad)
    length_fields = {key: source.origin[key] for key in ("max_length",) if key in source.origin}
    origin = {"module": name, "sha256": digest(module), **length_fields, **origin}
    return replace(source, name=name, origin=origin)
