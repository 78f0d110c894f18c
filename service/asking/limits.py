"""Every limit of a request is checked here, before any work; and what it will take is estimated."""

from collections.abc import Sequence

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.kept_rows import needed
from addnorm.service.engine.outputs.output import BINARY_BYTES
from addnorm.service.errors import InvalidInput
from addnorm.service.runtime.batch import Ints, Padding
from addnorm.service.runtime.manifest import Pick
from addnorm.service.settings import Settings


def check(ask: Ask, settings: Settings) -> None:
    """InvalidInput, with field, limit and value, for what no engine may see. Then it is known what
    computes it, and about how many bytes its answer has."""
    _check_size(ask, settings)
    _check_tokens(ask)
    _check_types(ask)
    for output in ask.outputs:
        output.check(ask.model.bundle)
    _check_lens(ask)
    _check_answer(ask, settings)
    ask.engine, ask.target = ask.model.runner(ask.precision)


def picks(ask: Ask) -> tuple[Pick, ...]:
    """What must be kept of its rows for all that it asks for."""
    return needed({output.needs(ask.model.bundle) for output in ask.outputs})


def kept_bytes(ask: Ask, picks: Sequence[Pick]) -> int:
    """What is kept until the answer is made: its rows, and what a head makes of some of them. A
    small answer may be made of both."""
    bundle, batch, engine = ask.model.bundle, ask.batch, ask.engine
    num_rows = sum(batch.num_tokens if pick == "every" else len(batch) for pick in picks)
    of_heads = (output.head_run_values(bundle, engine, batch) for output in ask.outputs)
    return BINARY_BYTES * (engine.d_model * num_rows + max(of_heads, default=0))


def batch_bytes(ask: Ask) -> int:
    """Bytes of its token ids and types."""
    batch = ask.batch
    return batch.tokens.nbytes + (0 if batch.types is None else batch.types.nbytes)


def has_lens(ask: Ask) -> bool:
    """Whether an output is made by a lens."""
    return any(output.is_of_lens for output in ask.outputs)


def _check_size(ask: Ask, settings: Settings) -> None:
    num_padded_tokens = ask.batch.num_tokens + ask.padding.num_pads
    for what, value, limit in (
        ("sequences", len(ask.padding.lengths), settings.max_sequences),
        ("tokens with pads", num_padded_tokens, settings.max_padded_tokens),
        ("real tokens", ask.batch.num_tokens, settings.max_tokens),
    ):
        if value > limit:
            raise InvalidInput(
                f"{ask.field} has {value} {what}, the limit is {limit}: send less at once",
                param=ask.field,
            )


def _check_lens(ask: Ask) -> None:
    """InvalidInput if the request is for a precision that no lens shows."""
    shown = next((output.name for output in ask.outputs if output.is_of_lens), None)
    if shown and ask.precision != "fp32":
        raise InvalidInput(
            f"{shown} is of fp32, and this request is computed in {ask.precision}: ask for"
            ' "precision": "fp32"',
            param="precision",
        )


def _check_tokens(ask: Ask) -> None:
    limits = ask.model.bundle.manifest.limits
    lengths, tokens = ask.padding.lengths, ask.batch.tokens
    if np.count_nonzero(lengths > limits.max_positions):
        row = int((lengths > limits.max_positions).argmax())
        raise InvalidInput(
            f"{ask.field}[{row}] has {lengths[row]} real tokens, the limit of"
            f" {ask.model.bundle.ref} is {limits.max_positions}",
            param=ask.field,
        )
    if outside := _outside(ask.padding, tokens, limits.vocab_size):
        raise InvalidInput(
            f"{ask.field}{outside}: ids of {ask.model.bundle.ref} are 0 to"
            f" {limits.vocab_size - 1}{ask.hint}",
            param=ask.field,
        )
    if limits.pad_id is not None and np.count_nonzero(pads := tokens == limits.pad_id):
        row, column = _place(ask.padding, int(pads.argmax()))
        raise InvalidInput(
            f"{ask.field}[{row}][{column}] is {limits.pad_id}: {ask.model.bundle.ref} takes"
            f" this id for a pad wherever it stands. Leave it out, or mask it{ask.hint}",
            param=ask.field,
        )


def _check_types(ask: Ask) -> None:
    """Zeros are accepted for every model: callers' tokenizers write them."""
    if (types := ask.batch.types) is None:
        return
    bundle = ask.model.bundle
    limit = bundle.manifest.limits.type_vocab_size
    if outside := _outside(ask.padding, types, limit):
        why = f"types of {bundle.ref} are 0 to {limit - 1}"
        if limit == 1:
            why = f"{bundle.ref} takes no token types: leave them out, or send zeros"
        raise InvalidInput(f"token_type_ids{outside}: {why}", param="token_type_ids")


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


def _check_answer(ask: Ask, settings: Settings) -> None:
    num_bytes = ask.answer_bytes
    if num_bytes is None:
        about = ask.model.bundle, ask.batch, ask.padding, ask.binary
        num_bytes = sum(output.num_bytes(*about) for output in ask.outputs)
    if num_bytes > settings.max_response_bytes:
        raise InvalidInput(
            f"the answer would have about {num_bytes / 2**20:.0f} MiB, the limit is"
            f" {settings.max_response_bytes / 2**20:.0f}: {_smaller(ask)}",
            param="outputs",
        )
    ask.num_bytes = num_bytes


def _smaller(ask: Ask) -> str:
    """What to ask for instead."""
    if ask.answer_bytes is not None:
        return f"send less in {ask.field} at once"
    for output in sorted(ask.outputs, key=lambda output: output.is_derived):
        if remedy := output.remedy:
            return remedy
    return 'ask for "outputs": ["pooled"], or send fewer sequences at once'
