"""The native protocol under /v1: JSON or safetensors, in and out."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.native.native_schema import (
    ANSWER,
    BINARY,
    EXAMPLES,
    Bodies,
    InferRequest,
    Options,
    usage,
)
from addnorm.service.engine.batch import Batch, Padding, from_grid, from_lists, from_rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.outputs import Output, Value
from addnorm.service.engine.outputs.output import Asked
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import InvalidInput, UnsupportedMediaType
from addnorm.service.wire.codec import safetensors_body as tensors
from addnorm.service.wire.codec.decoding import RawRequest, Tools
from addnorm.service.wire.codec.negotiation import JSON, negotiate, sent_type, written
from addnorm.service.wire.codec.payload import Encode, Payload
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS, Arrays
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts import spans
from addnorm.service.wire.texts.texts import TextsToTokenize


async def infer(body: InferRequest, ask: Ask, tools: Tools) -> None:
    """What is asked of token ids or of texts. InvalidInput names the field."""
    model, prompt_name = ask.find_model_and_prompt(tools.models, body.model, body.prompt_name)
    if body.texts is not None:
        await _read_texts(body, body.texts, prompt_name, ask, tools)
        return
    about = ask.num_body_bytes, ask
    ask.batch, ask.padding = await tools.bodies.read(*about, _from_lists, body, prompt_name)
    found = await _token_spans(body, ask, tools)
    _want(ask, body, found, _names(body, model.bundle))


async def infer_tensors(options: Options, arrays: Arrays, ask: Ask, tools: Tools) -> None:
    """What is asked of token ids as arrays. InvalidInput names the field."""
    model = ask.find_model(tools.models, options.model)
    about = ask.num_body_bytes, ask
    ask.batch, ask.padding = await tools.bodies.read(*about, _from_arrays, arrays)
    found = await _token_spans(options, ask, tools)
    _want(ask, options, found, _names(options, model.bundle))
    ask.field = ask.batch.field


def _want(ask: Ask, options: Options, found: Spans | None, names: Sequence[str]) -> None:
    """names: of the outputs, checked."""
    dtype, skipped = _vector_dtype(options), options.skipped_ids(ask.model.bundle)
    shared = Asked(None, options.pooling, options.normalize, dtype, found, skipped)
    ask.outputs = tuple(_output(name, options, shared) for name in names)
    ask.precision = options.precision or ask.precision
    ask.dtype = "float16" if options.dtype == "float16" else "float32"
    ask.field = options.field


async def _read_texts(
    body: InferRequest, given: list[Text], prompt_name: str | None, ask: Ask, tools: Tools
) -> None:
    others = (body.input_ids, body.inputs, body.attention_mask, body.token_type_ids)
    if any(other is not None for other in others):
        raise InvalidInput(
            "texts stand alone: send either them, or input_ids with attention_mask and"
            " token_type_ids",
            param="texts",
        )
    model, truncate = ask.model, tools.texts.cuts(body.truncate)
    if body.input_type is None:
        texts = TextsToTokenize.prompted("texts", given, truncate, model, prompt_name)
    elif prompt_name is None:
        texts = TextsToTokenize.typed("texts", given, truncate, model, body.input_type)
    else:
        raise InvalidInput(
            f"input_type is {body.input_type!r}, and the prompt {prompt_name[:60]!r} is named too:"
            " the input type chooses the prompt",
            param="input_type",
        )
    names = _names(body, model.bundle)  # what cannot be had is rejected before texts are tokenized
    if body.spans is None:
        ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
        _want(ask, body, None, names)
        return
    ask.batch, ask.padding, encodings = await tools.texts.tokenize_with_offsets(texts, ask)
    places = spans.in_texts(given, texts, encodings)
    found = await tools.bodies.read(
        ask.num_body_bytes, ask, spans.read, body.spans, places, body.field
    )
    _want(ask, body, found, names)


async def _token_spans(body: Options, ask: Ask, tools: Tools) -> Spans | None:
    """Spans from ranges of input_ids."""
    if body.spans is None:
        return None
    places = spans.in_layout(ask.padding)
    return await tools.bodies.read(
        ask.num_body_bytes, ask, spans.read, body.spans, places, body.field
    )


async def _decode(bodies: Bodies, raw: RawRequest, ask: Ask, tools: Tools) -> Encode:
    """JSON or safetensors, in and out."""
    answer_type = negotiate(raw.headers, (JSON, SAFETENSORS))
    media_type = sent_type(raw.headers)
    if media_type == JSON:
        body = await tools.bodies.read_json(bodies.request, raw.body, ask)
        await infer(body, ask, tools)
    elif media_type == SAFETENSORS:
        found = await tools.bodies.read(len(raw.body), ask, tensors.read, raw.body)
        options = await tools.bodies.read_json(bodies.options, found.request, ask)
        await infer_tensors(options, found.arrays, ask, tools)
    else:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON} or {SAFETENSORS}")
    ask.binary = answer_type != JSON
    return encode_tensors if ask.binary else encode


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


def _from_lists(body: InferRequest, prompt_name: str | None) -> tuple[Batch, Padding]:
    rows = body.input_ids if body.inputs is None else body.inputs
    if rows is None:
        raise InvalidInput("input_ids is missing: send token ids, or texts", param="input_ids")
    if body.input_ids is not None and body.inputs is not None:
        raise InvalidInput(
            "inputs and input_ids exclude each other: send what the model takes", param="inputs"
        )
    if body.truncate:
        raise InvalidInput(
            f"truncate is set, but it cuts texts only: cut {body.field} yourself", param="truncate"
        )
    if prompt_name is not None:
        raise InvalidInput(
            "prompt_name is set, but prompts are for texts: put the prompt's ids into input_ids",
            param="prompt_name",
        )
    if body.input_type is not None:
        raise InvalidInput("input_type is set, but it is for texts", param="input_type")
    return from_lists(rows, body.attention_mask, body.token_type_ids, body.field)


def _from_arrays(arrays: Arrays) -> tuple[Batch, Padding]:
    if "input_ids" in arrays and "inputs" in arrays:
        raise InvalidInput(
            "inputs and input_ids exclude each other: send what the model takes", param="inputs"
        )
    field = "inputs" if "inputs" in arrays else "input_ids"
    tokens, types, of_vectors = arrays[field], arrays.get("token_type_ids"), field == "inputs"
    if "lengths" in arrays and "attention_mask" not in arrays:
        _check_axes(arrays, {field: 1 + of_vectors, "lengths": 1})
        return from_rows(tokens, arrays["lengths"], types, field)
    if "lengths" in arrays:
        raise InvalidInput("attention_mask and lengths exclude each other", param="lengths")
    mask = arrays.setdefault("attention_mask", np.ones(tokens.shape[:2], np.int64))
    _check_axes(arrays, {field: 2 + of_vectors, "attention_mask": 2})
    return from_grid(tokens, mask, types, field)


def _check_axes(arrays: Arrays, num_axes: Mapping[str, int]) -> None:
    for name, num in num_axes.items():
        if arrays[name].ndim != num:
            width = ", width" if name == "inputs" else ""
            raise InvalidInput(
                f"{name} has shape {list(arrays[name].shape)}: {num} axes, [batch, seq{width}], or"
                f" ragged [tokens{width}] with lengths [batch]",
                param=name,
            )


def _names(body: Options, bundle: Bundle) -> Sequence[str]:
    """The outputs asked for. InvalidInput for what they, or options beside them, cannot be: an
    option of an output that is not asked for is a mistake, not something to ignore."""
    names = body.wanted(bundle)
    if names is None:
        names = body.known.default_names(bundle)
    body.known.check_names(names, bundle)
    for field, output in body.known.fields:
        if getattr(body, field) and output not in names:
            raise InvalidInput(f"{field} is set, but outputs lacks {output!r}", param=field)
    if body.normalize and not {"pooled", "token_vectors"} & set(names):
        raise InvalidInput(
            "normalize is set, but outputs lacks 'pooled' and 'token_vectors'", param="normalize"
        )
    if _vector_dtype(body) != "float32" and names != ("pooled",):
        raise InvalidInput(
            f"dtype is {body.dtype!r}, which is for pooled vectors alone, and outputs are"
            f' {", ".join(names)}: ask for "outputs": ["pooled"]',
            param="dtype",
        )
    return names


def _vector_dtype(body: Options) -> VectorDType:
    return "float32" if body.dtype == "float16" else body.dtype


def _output(name: str, options: Options, shared: Asked) -> Output[Value]:
    kind = options.known.by_name[name]
    own = getattr(options, name) if kind.options else None
    return kind.asked_for(shared._replace(own=own) if own else shared)


def encode(ask: Ask) -> Payload:
    """Outputs -> JSON, floats with the fewest digits that give the same float back."""
    body = {
        "model": ask.model.answered_name,
        "version": str(ask.model.bundle.manifest.version),
        **{output.name: value.for_json() for output, value in ask.values.items()},
        "usage": usage(ask),
    }
    return Payload(written(body, ask.num_bytes))


def encode_tensors(ask: Ask) -> Payload:
    """Outputs -> safetensors: ragged rows end to end, with their lengths."""
    arrays: Arrays = {}
    for output, value in ask.values.items():
        arrays |= value.tensors(output.name)
        checkpoint()
    if ask.padding.mask is None:
        arrays["lengths"] = ask.padding.lengths
    metadata = {
        "model": ask.model.answered_name,
        "version": str(ask.model.bundle.manifest.version),
        **{name: str(number) for name, number in usage(ask).items()},
    }
    return Payload(tensors.write(arrays, metadata), SAFETENSORS)
