"""The native protocol under /v1: JSON or safetensors, in and out. Its bodies as types are what
requests are checked against, and what is documented.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import Batch, Padding, free, from_grid, from_lists, from_rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.heads import Spans
from addnorm.service.engine.manifest import InputRules, InputType, Pooling, Precision
from addnorm.service.engine.outputs import OUTPUTS, Output, OutputKind, OutputKinds, Value
from addnorm.service.engine.outputs.output import OutputParameters
from addnorm.service.engine.outputs.values import VectorDType
from addnorm.service.errors import InvalidInput, UnsupportedMediaType
from addnorm.service.wire.codec import safetensors_body as tensors
from addnorm.service.wire.codec.decoding import RawRequest
from addnorm.service.wire.codec.negotiation import JSON, negotiate, sent_type, written
from addnorm.service.wire.codec.payload import Encode, Payload
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS, Arrays
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.route import Route
from addnorm.service.wire.texts import spans
from addnorm.service.wire.texts.sequences import Integers, to_tokenize
from addnorm.service.wire.texts.spans import Ranges
from addnorm.service.wire.texts.texts import MODEL, PROMPT_NAME, Texts, Wish
from addnorm.service.wire.tools import Tools

Fields = TypeVar("Fields", bound="Options")
Kinds = Mapping[str, OutputKind]  # of the outputs that a request asks for, by name
Vector = Annotated[list[float], Field(fail_fast=True)]
Vectors = Annotated[list[Annotated[list[Vector], Field(fail_fast=True)]], Field(fail_fast=True)]


VECTORS = {"pooled", "token_vectors"}


class Named(Strict):
    """The names in a request."""

    output_kinds: ClassVar[OutputKinds]

    model: str | None = MODEL
    outputs: Annotated[list[str], Field(fail_fast=True)] | None = None


class Options(Named):
    """The options of the sequences, whatever they come in."""

    pooling: Pooling | None = Field(
        None, description="How `pooled` is made; by default as the bundle says."
    )
    normalize: bool = Field(
        False, description="Whether vectors, `pooled` and `token_vectors`, are scaled to length 1."
    )
    spans: Ranges | None = Field(
        None,
        description="For each sequence a list of ranges `[first, one past the last]`, of characters"
        " of a text or of places in input_ids: `pooled` then has a vector for each range, made of"
        " the tokens in it, in place of one for each sequence. A token is in the range that has"
        " its last character.",
    )
    precision: Precision | None = Field(
        None, description="One the model has; by default as the bundle says."
    )
    dtype: Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"] = Field(
        "float32",
        description="Of activations, logits and vectors in the answer; they are computed in"
        " float32. The last four are for `pooled` and `token_vectors` alone: int8 and uint8 by the"
        " bundle's ranges of its own vectors, binary and ubinary by their signs, eight dimensions a"
        " byte.",
    )

    @property
    def field(self) -> str:
        """The field that has the sequences."""
        return "input_ids"

    def output_names(self, bundle: Bundle) -> tuple[str, ...] | None:
        """The outputs asked for; None: those of the bundle's default."""
        return None if self.outputs is None else tuple(self.outputs)

    def rules(self, bundle: Bundle) -> InputRules | None:
        """Rules of the input type, which leave tokens out of token_vectors; None: all have one."""
        return None


class InferRequest(Options):
    """Token batches, rectangular with a mask or ragged; or texts, if the model has a tokenizer."""

    input_ids: Integers | None = Field(
        None, description="Token ids, a list per sequence. Either these or `texts`."
    )
    inputs: Vectors | None = Field(
        None,
        description="For models that take vectors in place of token ids: a list of vectors per"
        " sequence.",
    )
    attention_mask: Integers | None = Field(
        None, description="1 for a real token, 0 for a pad; shaped like input_ids."
    )
    token_type_ids: Integers | None = Field(
        None,
        description="Which text of a pair a token is of, for models that were trained with"
        " it; shaped like input_ids, 0 by default.",
    )
    texts: Texts | None = Field(
        None,
        description="Texts, and pairs of texts `[first, second]`: tokenized as the model expects,"
        " answered like ragged input_ids.",
    )
    prompt_name: str | None = PROMPT_NAME
    input_type: InputType | None = Field(
        None,
        description="For models with a vector for each token that tell queries from documents:"
        " their prompt, their limit, and `token_vectors` without the tokens that the model's"
        " authors leave out.",
    )
    truncate: bool | None = Field(
        None,
        description="Whether texts that are too long are cut, as the model's authors do it, instead"
        " of rejected.",
    )

    @property
    def field(self) -> str:
        field_names = (name for name in ("texts", "inputs") if getattr(self, name) is not None)
        return next(field_names, "input_ids")

    def rules(self, bundle: Bundle) -> InputRules | None:
        if self.input_type is None:
            return None
        return bundle.manifest.input_types[self.input_type]

    def output_names(self, bundle: Bundle) -> tuple[str, ...] | None:
        """For texts the class or the vector by default, not megabytes of their tokens' rows."""
        logits = bundle.manifest.heads.get("logits")
        is_of_sequences = logits is not None and logits.pick != "every"
        default_output = "logits" if is_of_sequences else "pooled" if bundle.has_vectors else None
        if self.texts is None or self.outputs is not None or default_output is None:
            return super().output_names(bundle)
        return (default_output,)


class Usage(BaseModel):
    real_tokens: int
    pad_tokens: int = Field(description="Pads, none of which was computed.")
    truncated_texts: int = Field(description="Texts that were cut to what the model takes.")


def usage(ask: Ask) -> dict[str, int]:
    """A `Usage`."""
    return {
        "real_tokens": ask.batch.num_tokens,
        "pad_tokens": ask.padding.num_pads,
        "truncated_texts": len(ask.cut),
    }


class Bodies(NamedTuple):
    """Bodies with fields for the outputs that a server knows. options: for a body whose token ids
    come as tensors."""

    request: type[InferRequest]
    options: type[Options]
    response: type[BaseModel]

    @classmethod
    def for_outputs(cls, output_kinds: OutputKinds) -> "Bodies":
        fields: dict[str, Any] = {
            kind.name: (kind.options | None, None) for kind in output_kinds.known if kind.options
        }
        own_options = create_model("OwnOptions", __base__=Named, **fields)
        own_options.output_kinds = output_kinds
        outputs: dict[str, Any] = {
            kind.name: (kind.json_type | None, Field(None, description=kind.description))
            for kind in output_kinds.known
        }
        response = create_model(
            "InferResponse",
            __doc__="The outputs asked for, in the caller's own layout, zeros at pads.",
            model=(str, ...),
            version=(str, ...),
            __config__=ConfigDict(extra="allow"),  # tensors of a module as it is, by their names
            **outputs,
            usage=(Usage, ...),
        )
        return cls(
            _with_names(InferRequest, own_options), _with_names(Options, own_options), response
        )


def _with_names(fields: type[Fields], own_options: type[Named]) -> type[Fields]:
    """Adds the names of the outputs, and the options that stand under them."""
    names: Any = Literal[tuple(kind.name for kind in own_options.output_kinds.known)] | str
    bases: Any = (fields, own_options)
    outputs = Field(
        None,
        description="By default activations, and what the model's head makes of them. Of texts"
        " `logits` alone if the model has one row of them a sequence, else `pooled` alone. Of a"
        " module that is served as it is: tensors by their own names, by default all.",
    )
    body_type = create_model(
        fields.__name__,
        __base__=bases,
        __doc__=fields.__doc__,
        outputs=(Annotated[list[names], Field(fail_fast=True)] | None, outputs),
    )
    return cast(type[Fields], body_type)


INFER = Bodies.for_outputs(OUTPUTS)
GRID = {
    "model": "notebook",
    "input_ids": [[0, 1, 0, 3, 4]],
    "attention_mask": [[0, 1, 0, 1, 1]],
    "outputs": ["logits", "norm_stats"],
    "logits": {"positions": "last", "top_k": 2},
}
EXAMPLES: dict[str, Any] = {
    "a padded grid": GRID,
    "pooled vectors of ragged rows": {
        "model": "notebook",
        "input_ids": [[1, 3, 4], [5]],
        "outputs": ["pooled"],
    },
    "texts": {
        "model": "all-minilm-l6-v2",
        "texts": ["Pads are dropped."],
        "outputs": ["pooled"],
        "normalize": True,
    },
    "a pair of texts": {
        "model": "all-minilm-l6-v2",
        "texts": [["Are pads computed?", "Pads are dropped."]],
        "outputs": ["pooled"],
    },
    "token types": {
        "model": "all-minilm-l6-v2",
        "input_ids": [[2, 4, 5, 3, 6, 3]],
        "token_type_ids": [[0, 0, 0, 0, 1, 1]],
        "outputs": ["pooled"],
    },
}
ANSWER: dict[str, Any] = {
    "model": "notebook",
    "version": "1",
    "logits": {"token_ids": [[4, 0]], "logprobs": [[-1.5515498, -1.562566]]},
    "norm_stats": {
        "mean": [[[0.0], [0.05210143], [0.0], [0.04436306], [0.04160607]]],
        "rstd": [[[0.0], [9.178609], [0.0], [9.080391], [8.880019]]],
    },
    "usage": {"real_tokens": 3, "pad_tokens": 2, "truncated_texts": 0},
}
BINARY = {
    SAFETENSORS: {"schema": {"type": "string", "format": "binary", "description": tensors.__doc__}}
}


async def infer(body: InferRequest, ask: Ask, tools: Tools) -> None:
    """Takes a request of token ids or of texts. InvalidInput names the field."""
    if body.texts is None:
        model, prompt_name = ask.find_model_and_prompt(tools.models, body.model, body.prompt_name)
        ask.batch, ask.padding = await tools.bodies.read(
            ask.num_body_bytes, ask, _from_lists, body, prompt_name
        )
        token_spans = await _token_spans(body, ask, tools)
        _want(ask, body, token_spans, _kinds(body, model.bundle))
        return
    token_fields = (body.input_ids, body.inputs, body.attention_mask, body.token_type_ids)
    if any(field_value is not None for field_value in token_fields):
        raise InvalidInput(
            "texts cannot be combined with token ids: send either texts, or input_ids with"
            " attention_mask and token_type_ids",
            param="texts",
        )
    wish = Wish(
        model=body.model,
        field="texts",
        texts=body.texts,
        prompt_name=body.prompt_name,
        exact_type=body.input_type,
        truncate=body.truncate,
    )
    texts = to_tokenize(wish, ask, tools)
    # what cannot be had is rejected before texts are tokenized
    kinds = _kinds(body, texts.model.bundle)
    if body.spans is None:
        ask.batch, ask.padding = await tools.texts.tokenize(texts, ask)
        _want(ask, body, None, kinds)
        return
    ask.batch, ask.padding, encodings = await tools.texts.tokenize_with_offsets(texts, ask)
    places = spans.in_texts(body.texts, texts, encodings)
    token_spans = await tools.bodies.read(
        ask.num_body_bytes, ask, spans.read, body.spans, places, body.field
    )
    _want(ask, body, token_spans, kinds)


async def infer_tensors(options: Options, arrays: Arrays, ask: Ask, tools: Tools) -> None:
    """Takes a request of token ids as arrays. InvalidInput names the field."""
    model = ask.find_model(tools.models, options.model)
    ask.batch, ask.padding = await tools.bodies.read(ask.num_body_bytes, ask, _from_arrays, arrays)
    token_spans = await _token_spans(options, ask, tools)
    _want(ask, options, token_spans, _kinds(options, model.bundle))
    ask.field = ask.batch.field


def _want(ask: Ask, options: Options, token_spans: Spans | None, kinds: Kinds) -> None:
    dtype, rules = _vector_dtype(options), options.rules(ask.model.bundle)
    common = OutputParameters(None, options.pooling, options.normalize, dtype, token_spans, rules)
    outputs = list[Output[Value]]()
    for name, kind in kinds.items():
        kind_options = getattr(options, name) if kind.options else None
        outputs.append(
            kind.asked_for(common._replace(options=kind_options) if kind_options else common)
        )
    ask.outputs = tuple(outputs)
    ask.precision = options.precision or ask.precision
    ask.dtype = "float16" if options.dtype == "float16" else "float32"
    ask.field = options.field


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
        content = await tools.bodies.read(len(raw.body), ask, tensors.read, raw.body)
        options = await tools.bodies.read_json(bodies.options, content.request, ask)
        await infer_tensors(options, content.arrays, ask, tools)
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
        is_ours=True,
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
            f"truncate is set, but applies to texts only: shorten {body.field} yourself",
            param="truncate",
        )
    if prompt_name is not None:
        raise InvalidInput(
            "prompt_name is set, but applies to texts only: put the prompt's ids into input_ids",
            param="prompt_name",
        )
    if body.input_type is not None:
        raise InvalidInput(
            "input_type is set, but applies to texts only: leave it out", param="input_type"
        )
    batch_padding = from_lists(rows, body.attention_mask, body.token_type_ids, body.field)
    free(rows, body.attention_mask, body.token_type_ids)
    return batch_padding


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
                f"{name} has shape {list(arrays[name].shape)}: send {num} axes, [batch,"
                f" seq{width}], or ragged [tokens{width}] with lengths [batch]",
                param=name,
            )


def _kinds(body: Options, bundle: Bundle) -> Kinds:
    """The outputs asked for. InvalidInput for what they, or options beside them, cannot be: an
    option of an output that is not asked for is a mistake, not something to ignore."""
    kinds = body.output_kinds.chosen(body.output_names(bundle), bundle)
    for field, output in body.output_kinds.fields:
        if getattr(body, field) and output not in kinds:
            raise InvalidInput(f"{field} is set, but outputs lacks {output!r}", param=field)
    if body.normalize and not VECTORS & kinds.keys():
        raise InvalidInput(
            "normalize is set, but outputs lacks 'pooled' and 'token_vectors'", param="normalize"
        )
    if _vector_dtype(body) != "float32" and not {*kinds} <= VECTORS:
        raise InvalidInput(
            f"dtype is {body.dtype!r}, which applies to pooled and token_vectors only, but"
            f" outputs are {', '.join(kinds)}: request only those, or leave dtype out",
            param="dtype",
        )
    return kinds


def _vector_dtype(body: Options) -> VectorDType:
    return "float32" if body.dtype == "float16" else body.dtype


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
