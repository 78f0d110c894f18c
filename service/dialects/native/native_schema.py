"""/v1/infer's bodies as types: what requests are checked against, and what is documented."""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from pydantic import BaseModel, Field, create_model

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import InputType, Pooling, Precision
from addnorm.service.engine.outputs import OUTPUTS, OutputKinds
from addnorm.service.wire.codec import safetensors_body
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from addnorm.service.wire.codec.validation import Strict
from addnorm.service.wire.texts.sequences import Integers
from addnorm.service.wire.texts.spans import Ranges
from addnorm.service.wire.texts.texts import MODEL, PROMPT_NAME, Texts

Fields = TypeVar("Fields", bound="Options")
Vector = Annotated[list[float], Field(fail_fast=True)]
Vectors = Annotated[list[Annotated[list[Vector], Field(fail_fast=True)]], Field(fail_fast=True)]


class Named(Strict):
    """What a request names."""

    known: ClassVar[OutputKinds]

    model: str | None = MODEL
    outputs: Annotated[list[str], Field(fail_fast=True)] | None = None


class Options(Named):
    """What is asked of the sequences, whatever they come in."""

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
        description="Of activations, logits and pooled vectors in the answer; they are computed in"
        " float32. The last four are for `pooled` alone: int8 and uint8 by the bundle's ranges of"
        " its own vectors, binary and ubinary by their signs, eight dimensions a byte.",
    )

    @property
    def field(self) -> str:
        """Where the sequences stand."""
        return "input_ids"

    def wanted(self, bundle: Bundle) -> tuple[str, ...] | None:
        """The outputs asked for; None: those of the bundle's default."""
        return None if self.outputs is None else tuple(self.outputs)

    def skipped_ids(self, bundle: Bundle) -> tuple[int, ...] | None:
        """Tokens that have no place in token_vectors; None: all have one."""
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
        sent = (name for name in ("texts", "inputs") if getattr(self, name) is not None)
        return next(sent, "input_ids")

    def skipped_ids(self, bundle: Bundle) -> tuple[int, ...] | None:
        if self.input_type is None:
            return None
        return bundle.manifest.input_types[self.input_type].skipped_ids

    def wanted(self, bundle: Bundle) -> tuple[str, ...] | None:
        """Who sends a text wants its class or its vector, not megabytes of its tokens' rows."""
        if self.texts is None or self.outputs is not None or bundle.manifest.as_it_is:
            return super().wanted(bundle)
        logits = bundle.manifest.heads.get("logits")
        return ("logits",) if logits and logits.pick != "every" else ("pooled",)


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
    def of(cls, known: OutputKinds) -> "Bodies":
        fields: dict[str, Any] = {
            kind.name: (kind.options | None, None) for kind in known.known if kind.options
        }
        own_options = create_model("OwnOptions", __base__=Named, **fields)
        own_options.known = known
        return cls(
            _named(InferRequest, own_options), _named(Options, own_options), _response(known)
        )


def _named(fields: type[Fields], own_options: type[Named]) -> type[Fields]:
    """Adds the names of the outputs, and the options that stand under them."""
    names: Any = Literal[tuple(own_options.known.by_name)]
    bases: Any = (fields, own_options)
    outputs = Field(
        None,
        description="By default activations, and what the model's head makes of them. Of texts"
        " `logits` alone if the model has one row of them a sequence, else `pooled` alone.",
    )
    made = create_model(
        fields.__name__,
        __base__=bases,
        __doc__=fields.__doc__,
        outputs=(Annotated[list[names], Field(fail_fast=True)] | None, outputs),
    )
    return cast(type[Fields], made)


def _response(known: OutputKinds) -> type[BaseModel]:
    outputs: dict[str, Any] = {
        kind.name: (kind.json_type | None, Field(None, description=kind.description))
        for kind in known.known
    }
    return create_model(
        "InferResponse",
        __doc__="The outputs asked for, in the caller's own layout, zeros at pads.",
        model=(str, ...),
        version=(str, ...),
        **outputs,
        usage=(Usage, ...),
    )


INFER = Bodies.of(OUTPUTS)
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
    SAFETENSORS: {
        "schema": {"type": "string", "format": "binary", "description": safetensors_body.__doc__}
    }
}
