"""Every limit of a request is checked here, before any work; and what it will take is estimated."""

from dataclasses import replace
from typing import Any

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Ints, Padding, all_finite
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import InputType
from addnorm.service.engine.outputs.output import BINARY_BYTES, Output
from addnorm.service.engine.outputs.per_token import Activations
from addnorm.service.engine.outputs.pooled import VectorsOutput
from addnorm.service.engine.outputs.sparse import Sparse
from addnorm.service.errors import InvalidInput
from addnorm.service.settings import Settings


def check(ask: Ask, settings: Settings) -> None:
    """InvalidInput, with field, limit and value, for what no engine may see. Then it is known what
    computes it, what must be kept of its rows, and about how many bytes its answer has."""
    batch, padding, bundle = ask.batch, ask.padding, ask.model.bundle
    ask.record.real_tokens, ask.record.pad_tokens = batch.num_tokens, padding.num_pads
    ask.precision = ask.precision or ask.model.default_precision
    if ask.dimensions is not None:
        ask.outputs = tuple(_with_dimensions(output, ask.dimensions) for output in ask.outputs)
    if ask.input_type:
        ask.outputs = tuple(_of_type(output, ask.input_type, bundle) for output in ask.outputs)
    for noun, value, limit in (
        ("windows" if ask.windows else "sequences", len(padding.lengths), settings.max_sequences),
        ("tokens with pads", batch.num_tokens + ask.record.pad_tokens, settings.max_padded_tokens),
        ("real tokens", batch.num_tokens, settings.max_tokens),
    ):
        if value > limit:
            raise InvalidInput(
                f"{ask.field} has {value} {noun}, the limit is {limit}: send less at once",
                param=ask.field,
            )
    _check_tokens(ask)
    for output in ask.outputs:
        # protocols ask for some without naming them
        if bundle.manifest.as_it_is and not output.is_of(bundle):
            raise _not_answered(ask, output)
        output.check(bundle)
        if output.is_of_lens and ask.precision != "fp32":
            raise InvalidInput(
                f"{output.name} is available in fp32 only, but this request is computed in"
                f' {ask.precision}: send "precision": "fp32"',
                param="precision",
            )
    ask.sizes = [output.size(bundle, batch, padding) for output in ask.outputs]
    ask.num_bytes = sum(size.num_bytes(ask.binary) for size in ask.sizes)
    if ask.answer_bytes is not None:
        ask.num_bytes = ask.answer_bytes
    if ask.num_bytes > settings.max_response_bytes:
        raise _too_large(ask, settings.max_response_bytes)
    ask.engine, ask.target = ask.model.runner(ask.precision)
    picks = {size.needs for size in ask.sizes if size.needs}
    # the rows of all tokens serve every pick, and vectors of tokens beside one
    is_of_rows = "every" in picks or ("token_vectors" in picks and len(picks) > 1)
    ask.picks = ("every",) if is_of_rows else tuple(sorted(picks))
    if ask.engine.on_device and {*map(type, ask.outputs)} == {Activations}:
        ask.picks = ("halves" if ask.dtype == "float16" else "activations",)
    # what is kept until the answer is made: its rows, and what a head makes of some of them. A
    # small answer may be made of both. What a run of the lens makes is the answer.
    width = ask.engine.d_model
    num_kept = {
        **dict.fromkeys(("every", "activations", "halves"), width * batch.num_tokens),
        "token_vectors": bundle.width("token_vectors") * batch.num_tokens,
    }
    num_numbers = sum(num_kept.get(pick, width * len(batch)) for pick in ask.picks)
    num_made = 0
    for output, size in zip(ask.outputs, ask.sizes, strict=True):
        if size.head and not output.is_of_lens:
            num_run = min(ask.engine.head_rows(size.head), size.num_rows)
            num_made = max(num_made, size.head_width * num_run)
    ask.kept_bytes = BINARY_BYTES * (num_numbers + num_made)
    if batch.tokens.ndim > 1:  # ids are few bytes beside the rows
        ask.kept_bytes += batch.tokens.nbytes


def _with_dimensions(output: Output[Any], dimensions: int) -> Output[Any]:
    """The output with so many dimensions, unless it has none or the request says how many."""
    if isinstance(output, VectorsOutput) and not output.dimensions:
        return replace(output, dimensions=dimensions)
    return output


def _of_type(output: Output[Any], input_type: InputType, bundle: Bundle) -> Output[Any]:
    """The output for texts of this type. InvalidInput if no graph runs for them, and this is made
    by one."""
    rules = bundle.manifest.input_types.get(input_type)
    if rules is None or not rules.inference_free:
        return output
    if not isinstance(output, Sparse):
        raise InvalidInput(
            f"input_type is {input_type!r}: {bundle.ref} makes sparse vectors of it without a"
            f' graph, and no {output.name}: ask /v1/infer for "outputs": ["sparse"]',
            param="input_type",
        )
    return replace(output, inference_free=True)


def _not_answered(ask: Ask, output: Output[Any]) -> InvalidInput:
    """For an output that a module as its authors wrote it does not answer with."""
    bundle = ask.model.bundle
    names = ", ".join(kind.name for kind in bundle.manifest.as_it_is or ())
    return InvalidInput(
        f"{bundle.ref} is served as its authors wrote it: it has no {output.name}, but answers with"
        f" {names}. Send the request to /v1/infer",
        param="model",
    )


def _too_large(ask: Ask, limit: int) -> InvalidInput:
    """For an answer of too many bytes."""
    return InvalidInput(
        f"the answer would have about {ask.num_bytes / 2**20:.0f} MiB, the limit is"
        f" {limit / 2**20:.0f}: {_smaller(ask)}",
        param="outputs",
    )


def _check_tokens(ask: Ask) -> None:
    bundle, lengths, tokens = ask.model.bundle, ask.padding.lengths, ask.batch.tokens
    limits = bundle.manifest.limits
    if np.count_nonzero(lengths > ask.model.longest):
        raise _too_long(ask, int((lengths > ask.model.longest).argmax()))
    width = limits.input_width
    if width is None and tokens.ndim > 1:
        raise InvalidInput(
            f"{ask.field} has vectors, but {bundle.ref} takes token ids: send input_ids",
            param=ask.field,
        )
    if width is not None:
        if tokens.shape[1:] != (width,):
            sent = f"vectors of {tokens.shape[1]} numbers" if tokens.ndim > 1 else "token ids"
            raise InvalidInput(
                f"{ask.field} has {sent}, but {bundle.ref} takes vectors of {width} numbers: send"
                f" inputs, [batch][seq][{width}]",
                param=ask.field,
            )
        if not all_finite(tokens):
            index, at = np.argwhere(~np.isfinite(tokens))[0].tolist()
            row, column = _place(ask.padding, index)
            raise InvalidInput(
                f"{ask.field}[{row}][{column}][{at}] is {tokens[index, at]}: it must be a finite"
                " number of float32",
                param=ask.field,
            )
    elif outside := _outside(ask.padding, tokens, limits.vocab_size):
        raise InvalidInput(
            f"{ask.field}{outside}: ids of {bundle.ref} are 0 to {limits.vocab_size - 1}{ask.hint}",
            param=ask.field,
        )
    elif limits.pad_id is not None and np.count_nonzero(pads := tokens == limits.pad_id):
        row, column = _place(ask.padding, int(pads.argmax()))
        raise InvalidInput(
            f"{ask.field}[{row}][{column}] is {limits.pad_id}: {bundle.ref} treats this id as"
            f" padding at every position. Leave it out, or mask it{ask.hint}",
            param=ask.field,
        )
    types, limit = ask.batch.types, limits.type_vocab_size
    # zeros are accepted for every model: callers' tokenizers write them
    if types is not None and (outside := _outside(ask.padding, types, limit)):
        reason = f"types of {bundle.ref} are 0 to {limit - 1}"
        if limit == 1:
            reason = f"{bundle.ref} takes no token types: leave them out, or send zeros"
        raise InvalidInput(f"token_type_ids{outside}: {reason}", param="token_type_ids")


def _too_long(ask: Ask, row: int) -> InvalidInput:
    """For a sequence that the model does not take, or not in this server's memory."""
    bundle, length = ask.model.bundle, int(ask.padding.lengths[row])
    max_length = bundle.manifest.limits.max_positions
    reason = f"the limit of {bundle.ref} is {max_length}"
    if length <= max_length:
        run_mib, limit = bundle.run_bytes(length) / 2**20, ask.model.max_run_bytes / 2**20
        reason = (
            f"which take {run_mib:,.0f} MiB of memory in a run of {bundle.ref}, the limit is"
            f" {limit:,.0f} (ADDNORM_MAX_RUN_BYTES): send at most {ask.model.longest} tokens"
        )
    if ask.windows:
        row = ask.windows.text_of(row)
    return InvalidInput(f"{ask.field}[{row}] has {length} real tokens, {reason}", param=ask.field)


def _outside(padding: Padding, values: Ints, limit: int) -> str | None:
    """The first value of a real token that is negative or not below the limit, and its place in
    the caller's layout."""
    outside = values.view(np.uint64) >= limit  # negative ones are huge as unsigned
    if not np.count_nonzero(outside):
        return None
    index = int(outside.argmax())
    row, column = _place(padding, index)
    return f"[{row}][{column}] is {values[index]}"


def _place(padding: Padding, index: int) -> tuple[int, int]:
    """Row and column of the index-th real token in the caller's layout."""
    if padding.mask is not None:
        row, column = np.argwhere(padding.mask)[index]
        return int(row), int(column)
    row = int(np.searchsorted(padding.lengths.cumsum(), index, side="right"))
    return row, index - int(padding.lengths[:row].sum())


def _smaller(ask: Ask) -> str:
    """A remedy: what to ask for instead."""
    if ask.answer_bytes is not None:
        return f"send less in {ask.field} at once"
    for output in sorted(ask.outputs, key=lambda output: output.is_derived):
        if remedy := output.remedy:
            return remedy
    return 'ask for "outputs": ["pooled"], or send fewer sequences at once'
