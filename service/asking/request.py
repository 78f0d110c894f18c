"""A request and its response, in the form common to all protocols. Every limit is checked here,
before any work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.asking.kept_rows import needed
from addnorm.service.engine.outputs import DType, Output, Value
from addnorm.service.engine.outputs.output import BINARY_BYTES
from addnorm.service.models.model import Model, Runner
from addnorm.service.runtime.batch import Batch, Ints, Padding
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Pick
from addnorm.service.settings import Settings

Made = TypeVar("Made", bound=Value)


class InferenceRequest(NamedTuple):
    """What one caller asks for. None: as the bundle says."""

    model: Model
    batch: Batch
    padding: Padding
    outputs: tuple[Output[Value], ...]
    precision: str | None = None
    timeout_s: float | None = None  # from the body; the header wins over it
    coding: str | None = None  # of the response, if it is compressed
    route: str = ""  # how long a response takes is predicted from others of its route
    dtype: DType = "float32"  # of activations, logits and pooled vectors as they are sent
    binary: bool = False  # whether numbers are sent as bytes, not as text
    anew: bool = False  # whether all is computed, whatever the cache holds
    answer_bytes: int | None = None  # of the response, where it is not the outputs themselves
    field: str = "input_ids"  # the caller's name for the sequences, for errors
    hint: str = ""  # why one of the caller's ids may be outside the vocabulary

    @property
    def runner(self) -> Runner:
        """What computes it. InvalidInput if the model has no such precision."""
        return self.model.runner(self.precision)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of what computes the response: see `runtime/fingerprint.py`."""
        return self.runner.engine.fingerprint.digest


@dataclass(frozen=True)
class InferenceResponse:
    """values: by the class of the output that made each, in the order asked for.

    num_bytes: their encoded size, estimated.
    """

    request: InferenceRequest
    values: Mapping[type[Output[Any]], Value]
    num_bytes: int

    def value(self, kind: type[Output[Made]]) -> Made:
        """What the one output of this class made."""
        return cast(Made, self.values[kind])


def check(request: InferenceRequest, settings: Settings) -> int:
    """The estimated bytes of the response. InvalidInput, with field, limit and value, for what no
    engine may see."""
    _check_size(request, settings)
    _check_tokens(request)
    _check_types(request)
    for output in request.outputs:
        output.check(request.model.bundle)
    _check_lens(request)
    return _check_answer(request, settings)


def picks(request: InferenceRequest) -> tuple[Pick, ...]:
    """What must be kept of its rows for all that it asks for."""
    return needed({output.needs(request.model.bundle) for output in request.outputs})


def kept_bytes(request: InferenceRequest, engine: Engine, picks: Sequence[Pick]) -> int:
    """What is kept until the response is made: its rows, and what a head makes of some of them. A
    small response may be made of both."""
    bundle, batch = request.model.bundle, request.batch
    num_rows = sum(batch.num_tokens if pick == "every" else len(batch) for pick in picks)
    of_heads = (output.head_run_values(bundle, engine, batch) for output in request.outputs)
    return BINARY_BYTES * (engine.d_model * num_rows + max(of_heads, default=0))


def batch_bytes(request: InferenceRequest) -> int:
    """Bytes of its token ids and types."""
    batch = request.batch
    return batch.tokens.nbytes + (0 if batch.types is None else batch.types.nbytes)


def has_lens(request: InferenceRequest) -> bool:
    """Whether an output is made by a lens."""
    return any(output.is_of_lens for output in request.outputs)


def _check_size(request: InferenceRequest, settings: Settings) -> None:
    num_padded_tokens = request.batch.num_tokens + request.padding.num_pads
    for what, value, limit in (
        ("sequences", len(request.padding.lengths), settings.max_sequences),
        ("tokens with pads", num_padded_tokens, settings.max_padded_tokens),
        ("real tokens", request.batch.num_tokens, settings.max_tokens),
    ):
        if value > limit:
            raise InvalidInput(
                f"{request.field} has {value} {what}, the limit is {limit}: send less at once",
                param=request.field,
            )


def _check_lens(request: InferenceRequest) -> None:
    """InvalidInput if the request is for a precision that no lens shows."""
    shown = next((output.name for output in request.outputs if output.is_of_lens), None)
    if shown and request.precision != "fp32":
        raise InvalidInput(
            f"{shown} is of fp32, and this request is computed in {request.precision}: ask for"
            ' "precision": "fp32"',
            param="precision",
        )


def _check_tokens(request: InferenceRequest) -> None:
    limits = request.model.bundle.manifest.limits
    lengths, tokens = request.padding.lengths, request.batch.tokens
    if np.count_nonzero(lengths > limits.max_positions):
        row = int((lengths > limits.max_positions).argmax())
        raise InvalidInput(
            f"{request.field}[{row}] has {lengths[row]} real tokens, the limit of"
            f" {request.model.bundle.ref} is {limits.max_positions}",
            param=request.field,
        )
    if outside := _outside(request.padding, tokens, limits.vocab_size):
        raise InvalidInput(
            f"{request.field}{outside}: ids of {request.model.bundle.ref} are 0 to"
            f" {limits.vocab_size - 1}{request.hint}",
            param=request.field,
        )
    if limits.pad_id is not None and np.count_nonzero(pads := tokens == limits.pad_id):
        row, column = _place(request.padding, int(pads.argmax()))
        raise InvalidInput(
            f"{request.field}[{row}][{column}] is {limits.pad_id}: {request.model.bundle.ref} takes"
            f" this id for a pad wherever it stands. Leave it out, or mask it{request.hint}",
            param=request.field,
        )


def _check_types(request: InferenceRequest) -> None:
    """Zeros are accepted for every model: callers' tokenizers write them."""
    if (types := request.batch.types) is None:
        return
    bundle = request.model.bundle
    limit = bundle.manifest.limits.type_vocab_size
    if outside := _outside(request.padding, types, limit):
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


def _check_answer(request: InferenceRequest, settings: Settings) -> int:
    """The bytes of the response, estimated before any work."""
    num_bytes = request.answer_bytes
    if num_bytes is None:
        about = request.model.bundle, request.batch, request.padding, request.binary
        num_bytes = sum(output.num_bytes(*about) for output in request.outputs)
    if num_bytes > settings.max_response_bytes:
        raise InvalidInput(
            f"the answer would have about {num_bytes / 2**20:.0f} MiB, the limit is"
            f" {settings.max_response_bytes / 2**20:.0f}: {_smaller(request)}",
            param="outputs",
        )
    return num_bytes


def _smaller(request: InferenceRequest) -> str:
    """What to ask for instead."""
    if request.answer_bytes is not None:
        return f"send less in {request.field} at once"
    for output in sorted(request.outputs, key=lambda output: output.is_derived):
        if remedy := output.remedy:
            return remedy
    return 'ask for "outputs": ["pooled"], or send fewer sequences at once'
