"""The native protocol under /v1: JSON or safetensors, in and out."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from addnorm.service.errors import InvalidInput, UnsupportedMediaType
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.outputs import Output, Value
from addnorm.service.engine.outputs.output import Asked
from addnorm.service.engine.outputs.small_vectors import VectorDType
from addnorm.service.asking.request import InferenceRequest
from addnorm.service.asking.request_path import Call
from addnorm.service.models.model import Model
from addnorm.service.protocols.codec import safetensors_body as tensors
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, negotiate, sent_type
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS, Arrays
from addnorm.service.protocols.native.native_answer import encode, encode_tensors
from addnorm.service.protocols.native.native_schema import (
    ANSWER,
    BINARY,
    EXAMPLES,
    Bodies,
    InferRequest,
    Options,
)
from addnorm.service.protocols.route import Decoded, Route
from addnorm.service.protocols.texts import spans
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.protocols.texts.truncation import cuts
from addnorm.service.runtime.batch import Batch, Padding
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.tokenizing.tokenizer import Text
from addnorm.service.runtime.unpadding import from_grid, from_lists, from_rows


async def infer(asked: InferRequest, call: Call, tools: Tools) -> InferenceRequest:
    """The request for token ids or for texts. InvalidInput names the field."""
    return _request(asked, await _read(asked, call, tools))


async def infer_tensors(
    options: Options, arrays: Arrays, call: Call, tools: Tools
) -> InferenceRequest:
    """The request for token ids as arrays. InvalidInput names the field."""
    model = call.model(tools.models, options.model)
    about = call.num_bytes, call.deadline
    batch, padding = await tools.bodies.read(*about, _from_arrays, arrays)
    found = await _token_spans(options, padding, call, tools)
    return _request(options, Read(model, batch, padding, found, _names(options, model.bundle)))


class Read(NamedTuple):
    """What a body asks for is of this. names: of the outputs, checked."""

    model: Model
    batch: Batch
    padding: Padding
    spans: Spans | None
    names: Sequence[str]


def _request(options: Options, read: Read) -> InferenceRequest:
    return InferenceRequest(
        read.model,
        read.batch,
        read.padding,
        _outputs(options, read),
        options.precision,
        dtype="float16" if options.dtype == "float16" else "float32",
        field=options.field,
    )


async def _read(asked: InferRequest, call: Call, tools: Tools) -> Read:
    model, prompt_name = call.model_and_prompt(tools.models, asked.model, asked.prompt_name)
    if asked.texts is not None:
        return await _read_texts(asked, asked.texts, model, prompt_name, call, tools)
    about = call.num_bytes, call.deadline
    batch, padding = await tools.bodies.read(*about, _from_lists, asked, prompt_name)
    found = await _token_spans(asked, padding, call, tools)
    return Read(model, batch, padding, found, _names(asked, model.bundle))


async def _read_texts(
    asked: InferRequest,
    given: list[Text],
    model: Model,
    prompt_name: str | None,
    call: Call,
    tools: Tools,
) -> Read:
    if not (asked.input_ids is asked.attention_mask is asked.token_type_ids is None):
        raise InvalidInput(
            "texts stand alone: send either them, or input_ids with attention_mask and"
            " token_type_ids",
            param="texts",
        )
    truncate = cuts(tools, asked.truncate)
    if asked.input_type is None:
        texts = TextsToTokenize.prompted("texts", given, truncate, model, prompt_name)
    elif prompt_name is None:
        texts = TextsToTokenize.typed("texts", given, truncate, model, asked.input_type)
    else:
        raise InvalidInput(
            f"input_type is {asked.input_type!r}, and the prompt {prompt_name[:60]!r} is named too:"
            " the input type chooses the prompt",
            param="input_type",
        )
    names = _names(asked, model.bundle)  # what cannot be had is rejected before texts are tokenized
    if asked.spans is None:
        return Read(model, *await tools.texts.tokenize(texts, call.deadline), None, names)
    batch, padding, encodings = await tools.texts.tokenize_with_offsets(texts, call.deadline)
    places = spans.in_texts(given, texts, encodings)
    found = await tools.bodies.read(
        call.num_bytes, call.deadline, spans.read, asked.spans, places, asked.field
    )
    return Read(model, batch, padding, found, names)


async def _token_spans(asked: Options, padding: Padding, call: Call, tools: Tools) -> Spans | None:
    """Spans from ranges of input_ids."""
    if asked.spans is None:
        return None
    places = spans.in_layout(padding)
    return await tools.bodies.read(
        call.num_bytes, call.deadline, spans.read, asked.spans, places, asked.field
    )


async def _decode(bodies: Bodies, raw: RawRequest, call: Call, tools: Tools) -> Decoded:
    """JSON or safetensors, in and out."""
    answer_type = negotiate(raw.headers, (JSON, SAFETENSORS))
    media_type = sent_type(raw.headers)
    if media_type == JSON:
        asked = await tools.bodies.read_json(bodies.request, raw.body, call.deadline)
        request = await infer(asked, call, tools)
    elif media_type == SAFETENSORS:
        found = await tools.bodies.read(len(raw.body), call.deadline, tensors.read, raw.body)
        options = await tools.bodies.read_json(bodies.options, found.request, call.deadline)
        request = await infer_tensors(options, found.arrays, call, tools)
    else:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON} or {SAFETENSORS}")
    if answer_type == JSON:
        return request, encode
    return request._replace(binary=True), encode_tensors


def route(bodies: Bodies) -> Route:
    return Route(
        path="/v1/infer",
        name="infer",
        summary="Normalized activations, logits, pooled vectors and LayerNorm statistics of"
        " token batches",
        body=bodies.request,
        decode=partial(_decode, bodies),
        reads="bytes",
        response=bodies.response,
        examples=EXAMPLES,
        answers={"a padded grid": ANSWER},
        media_types=BINARY,
    )


def _from_lists(asked: InferRequest, prompt_name: str | None) -> tuple[Batch, Padding]:
    if asked.input_ids is None:
        raise InvalidInput("input_ids is missing: send token ids, or texts", param="input_ids")
    if asked.truncate:
        raise InvalidInput(
            "truncate is set, but it cuts texts only: cut input_ids yourself", param="truncate"
        )
    if prompt_name is not None:
        raise InvalidInput(
            "prompt_name is set, but prompts are for texts: put the prompt's ids into input_ids",
            param="prompt_name",
        )
    if asked.input_type is not None:
        raise InvalidInput("input_type is set, but it is for texts", param="input_type")
    return from_lists(asked.input_ids, asked.attention_mask, asked.token_type_ids)


def _from_arrays(arrays: Arrays) -> tuple[Batch, Padding]:
    input_ids, types = arrays["input_ids"], arrays.get("token_type_ids")
    if "lengths" in arrays and "attention_mask" not in arrays:
        _check_axes(arrays, input_ids=1, lengths=1)
        return from_rows(input_ids, arrays["lengths"], types)
    if "lengths" in arrays:
        raise InvalidInput("attention_mask and lengths exclude each other", param="lengths")
    mask = arrays.setdefault("attention_mask", np.ones_like(input_ids))
    _check_axes(arrays, input_ids=2, attention_mask=2)
    return from_grid(input_ids, mask, types)


def _check_axes(arrays: Arrays, **num_axes: int) -> None:
    for name, num in num_axes.items():
        if arrays[name].ndim != num:
            raise InvalidInput(
                f"{name} has shape {list(arrays[name].shape)}: {num} axes, [batch, seq], or ragged"
                " [tokens] with lengths [batch]",
                param=name,
            )


def _names(asked: Options, bundle: Bundle) -> Sequence[str]:
    """The outputs asked for. InvalidInput for what they, or options beside them, cannot be."""
    names = asked.wanted(bundle)
    if names is None:
        names = asked.known.default_names(bundle)
    asked.known.check_names(names, bundle)
    _check_fields(asked, names)
    _check_dtype(asked, names)
    return names


def _check_dtype(asked: Options, names: Sequence[str]) -> None:
    """InvalidInput for small vectors of other outputs."""
    if _vector_dtype(asked) != "float32" and names != ("pooled",):
        raise InvalidInput(
            f"dtype is {asked.dtype!r}, which is for pooled vectors alone, and outputs are"
            f' {", ".join(names)}: ask for "outputs": ["pooled"]',
            param="dtype",
        )


def _vector_dtype(asked: Options) -> VectorDType:
    return "float32" if asked.dtype == "float16" else asked.dtype


def _check_fields(asked: Options, names: Sequence[str]) -> None:
    """InvalidInput for an option of an output that is not asked for: it is a mistake, not something
    to ignore."""
    for field, output in asked.known.fields:
        if getattr(asked, field) and output not in names:
            raise InvalidInput(f"{field} is set, but outputs lacks {output!r}", param=field)
    if asked.normalize and not {"pooled", "token_vectors"} & set(names):
        raise InvalidInput(
            "normalize is set, but outputs lacks 'pooled' and 'token_vectors'", param="normalize"
        )


def _outputs(asked: Options, read: Read) -> tuple[Output[Value], ...]:
    """The outputs asked for, with their options."""
    dtype, skipped = _vector_dtype(asked), asked.skipped_ids(read.model.bundle)
    shared = Asked(None, asked.pooling, asked.normalize, dtype, read.spans, skipped)
    return tuple(_output(name, asked, shared) for name in read.names)


def _output(name: str, asked: Options, shared: Asked) -> Output[Value]:
    kind = asked.known.by_name[name]
    own = getattr(asked, name) if kind.options else None
    return kind.asked_for(shared._replace(own=own) if own else shared)
