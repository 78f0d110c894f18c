"""The native protocol under /v1: JSON or safetensors, in and out."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from addnorm.service.errors import InvalidInput, UnsupportedMediaType
from addnorm.service.inference.heads import Spans
from addnorm.service.inference.outputs import (
    BY_NAME,
    Attentions,
    HiddenStates,
    Logits,
    Output,
    Pooled,
    Sparse,
    TokenVectors,
    check_names,
    default_names,
)
from addnorm.service.inference.outputs.small_vectors import VectorDType
from addnorm.service.inference.request import InferenceRequest
from addnorm.service.models.registry import Model
from addnorm.service.protocols.codec import safetensors_body as tensors
from addnorm.service.protocols.codec.decoding import RawRequest, Tools
from addnorm.service.protocols.codec.negotiation import JSON, negotiated, sent_type
from addnorm.service.protocols.codec.openapi import (
    DEADLINE,
    ERRORS,
    by_name,
    examples,
    json_body,
)
from addnorm.service.protocols.codec.payload import Encode
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS, Arrays
from addnorm.service.protocols.inference_route import Endpoint
from addnorm.service.protocols.native.native_answer import encode, encode_tensors
from addnorm.service.protocols.native.native_schema import (
    ANSWER,
    BINARY,
    EXAMPLES,
    InferRequest,
    InferResponse,
    Options,
)
from addnorm.service.protocols.texts import spans
from addnorm.service.protocols.texts.texts import TextsToTokenize
from addnorm.service.runtime.batch import Batch, Padding
from addnorm.service.runtime.bundle import OF_LENS, Bundle
from addnorm.service.runtime.tokenizing.tokenizer import Text
from addnorm.service.runtime.unpadding import from_grid, from_lists, from_rows
from addnorm.service.scheduling.cooperative import one_step


async def decode(raw: RawRequest, tools: Tools) -> tuple[InferenceRequest, Encode]:
    """Body -> InferenceRequest, and how to encode its answer. InvalidInput names the field."""
    answer_type = negotiated(raw.headers, (JSON, SAFETENSORS))
    options, model, batch, padding, spans = await _read(raw, tools)
    request = InferenceRequest(
        model,
        batch,
        padding,
        _outputs(options, model.bundle, spans),
        options.precision,
        dtype="float16" if options.dtype == "float16" else "float32",
        binary=answer_type == SAFETENSORS,
        field=options.field,
    )
    return request, encode if answer_type == JSON else encode_tensors


class Read(NamedTuple):
    """What a body asks for, and of what."""

    options: Options
    model: Model
    batch: Batch
    padding: Padding
    spans: Spans | None


async def _read(raw: RawRequest, tools: Tools) -> Read:
    media_type = sent_type(raw.headers)
    if media_type == SAFETENSORS:
        return await _read_tensors(raw, tools)
    if media_type != JSON:
        raise UnsupportedMediaType(f"Content-Type is {media_type!r}: send {JSON} or {SAFETENSORS}")
    asked = await tools.bodies.read_json(InferRequest, raw.body, raw.deadline)
    model, prompt_name = raw.model_and_prompt(tools.models, asked.model, asked.prompt_name)
    if asked.texts is not None:
        return await _read_texts(asked, asked.texts, model, prompt_name, raw, tools)
    work = one_step(partial(_from_lists, asked, prompt_name))
    batch, padding = await tools.bodies.read(len(raw.body), work, raw.deadline)
    return Read(asked, model, batch, padding, await _token_spans(asked, padding, raw, tools))


async def _read_texts(
    asked: InferRequest,
    given: list[Text],
    model: Model,
    prompt_name: str | None,
    raw: RawRequest,
    tools: Tools,
) -> Read:
    if not (asked.input_ids is asked.attention_mask is asked.token_type_ids is None):
        raise InvalidInput(
            "texts stand alone: send either them, or input_ids with attention_mask and"
            " token_type_ids",
            param="texts",
        )
    if asked.input_type is None:
        texts = TextsToTokenize.prompted("texts", given, asked.truncate, model, prompt_name)
    elif prompt_name is None:
        texts = TextsToTokenize.typed("texts", given, asked.truncate, model, asked.input_type)
    else:
        raise InvalidInput(
            f"input_type is {asked.input_type!r}, and the prompt {prompt_name[:60]!r} is named too:"
            " the input type chooses the prompt",
            param="input_type",
        )
    _outputs(asked, model.bundle, None)  # what cannot be had is refused before texts are tokenized
    if asked.spans is None:
        return Read(asked, model, *await tools.texts.batch(texts, raw.deadline), None)
    batch, padding, encodings = await tools.texts.encoded(texts, raw.deadline)
    work = spans.read(asked.spans, spans.in_texts(given, texts, encodings), asked.field)
    found = await tools.bodies.read(len(raw.body), work, raw.deadline)
    return Read(asked, model, batch, padding, found)


async def _read_tensors(raw: RawRequest, tools: Tools) -> Read:
    bodies, num_bytes = tools.bodies, len(raw.body)
    work = one_step(partial(tensors.read, raw.body))
    found = await bodies.read(num_bytes, work, raw.deadline)
    options = await bodies.read_json(Options, found.request, raw.deadline)
    model = raw.model(tools.models, options.model)
    arrays = one_step(partial(_from_arrays, found.arrays))
    batch, padding = await bodies.read(num_bytes, arrays, raw.deadline)
    return Read(options, model, batch, padding, await _token_spans(options, padding, raw, tools))


async def _token_spans(
    asked: Options, padding: Padding, raw: RawRequest, tools: Tools
) -> Spans | None:
    """Of ranges of input_ids."""
    if asked.spans is None:
        return None
    work = spans.read(asked.spans, spans.in_layout(padding), asked.field)
    return await tools.bodies.read(len(raw.body), work, raw.deadline)


ENDPOINT = Endpoint(
    "/v1/infer",
    decode,
    {
        "name": "infer",
        "summary": "Normalized activations, logits, pooled vectors and LayerNorm statistics of"
        " token batches",
        "response_model": InferResponse,
        "responses": {
            200: {"content": {JSON: {"examples": examples({"a padded grid": ANSWER})}, **BINARY}},
            **ERRORS,
        },
        "openapi_extra": json_body(InferRequest, EXAMPLES, **BINARY) | DEADLINE,
        "generate_unique_id_function": by_name,
    },
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
        _has_axes(arrays, input_ids=1, lengths=1)
        return from_rows(input_ids, arrays["lengths"], types)
    if "lengths" in arrays:
        raise InvalidInput("attention_mask and lengths exclude each other", param="lengths")
    mask = arrays.setdefault("attention_mask", np.ones_like(input_ids))
    _has_axes(arrays, input_ids=2, attention_mask=2)
    return from_grid(input_ids, mask, types)


def _has_axes(arrays: Arrays, **num_axes: int) -> None:
    for name, num in num_axes.items():
        if arrays[name].ndim != num:
            raise InvalidInput(
                f"{name} has shape {list(arrays[name].shape)}: {num} axes, [batch, seq], or ragged"
                " [tokens] with lengths [batch]",
                param=name,
            )


def _outputs(asked: Options, bundle: Bundle, of_spans: Spans | None) -> tuple[Output, ...]:
    """Those asked for, with their options."""
    names = asked.wanted(bundle)
    if names is None:
        names = default_names(bundle)
    check_names(names, bundle)
    # an option of an output that is not asked for is a mistake, not something to ignore
    for field, output in (
        ("logits", "logits"),
        ("sparse", "sparse"),
        ("pooling", "pooled"),
        ("spans", "pooled"),
        ("hidden_states", "hidden_states"),
        ("attentions", "attentions"),
    ):
        if getattr(asked, field) and output not in names:
            raise InvalidInput(f"{field} is set, but outputs lacks {output!r}", param=field)
    if asked.normalize and not {"pooled", "token_vectors"} & set(names):
        raise InvalidInput(
            "normalize is set, but outputs lacks 'pooled' and 'token_vectors'", param="normalize"
        )
    dtype: VectorDType = "float32" if asked.dtype == "float16" else asked.dtype
    if dtype != "float32" and names != ("pooled",):
        raise InvalidInput(
            f"dtype is {dtype!r}, which is for pooled vectors alone, and outputs are"
            f' {", ".join(names)}: ask for "outputs": ["pooled"]',
            param="dtype",
        )
    _check_lens(names, asked, bundle)
    pooled = Pooled(asked.pooling, asked.normalize, dtype=dtype, spans=of_spans)
    return tuple(pooled if name == "pooled" else _output(name, asked, bundle) for name in names)


def _check_lens(names: Sequence[str], asked: Options, bundle: Bundle) -> None:
    """InvalidInput if the request is for a precision that no lens shows."""
    precision = asked.precision or bundle.manifest.default_precision
    shown = [name for name in names if name in OF_LENS]
    if shown and precision != "fp32":
        raise InvalidInput(
            f"{shown[0]} is of fp32, and this request is computed in {precision}: ask for"
            ' "precision": "fp32"',
            param="precision",
        )


def _output(name: str, asked: Options, bundle: Bundle) -> Output:
    """One that is not `pooled`, with its options."""
    if name == "logits" and asked.logits:
        return Logits(asked.logits.positions, asked.logits.top_k)
    if name == "sparse" and asked.sparse:
        return Sparse(asked.sparse.top_k)
    if name == "hidden_states" and asked.hidden_states:
        return HiddenStates(_numbers(asked.hidden_states.layers))
    if name == "attentions" and asked.attentions:
        return Attentions(_numbers(asked.attentions.layers), _numbers(asked.attentions.heads))
    if name == "token_vectors":
        return TokenVectors(asked.normalize, asked.skipped_ids(bundle))
    return BY_NAME[name]()


def _numbers(asked: list[int] | None) -> tuple[int, ...] | None:
    return None if asked is None else tuple(asked)
