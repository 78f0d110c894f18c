"""/v1/infer's bodies as types: what requests are checked against, and what is documented."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from addnorm.service.inference.outputs import Positions
from addnorm.service.protocols.codec import safetensors_body
from addnorm.service.protocols.codec.openapi import Strict
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS
from addnorm.service.protocols.texts.sequences import Integers
from addnorm.service.protocols.texts.spans import Ranges
from addnorm.service.protocols.texts.texts import PROMPT_NAME, Texts
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import InputType, Pooling, Precision

Output = Literal[
    "activations",
    "logits",
    "token_vectors",
    "sparse",
    "pooled",
    "norm_stats",
    "prompt_logprobs",
    "hidden_states",
    "attentions",
]


class LogitsOptions(Strict):
    positions: Positions | None = Field(
        None,
        description="Logits of every token, which is the default, or of each sequence's last. Only"
        " for models with logits of every token.",
    )
    top_k: int | None = Field(
        None, description="Only the k likeliest tokens or labels, with their log-probabilities."
    )


class SparseOptions(Strict):
    top_k: int | None = Field(
        None, description="Only the k largest entries; by default all that are not zero."
    )


Numbers = Annotated[list[int], Field(fail_fast=True)]


class HiddenStatesOptions(Strict):
    layers: Numbers | None = Field(
        None,
        description="Which: 0 is what enters the first layer, n_layers what leaves the last. By"
        " default all.",
    )


class AttentionsOptions(Strict):
    layers: Numbers | None = Field(None, description="Which, from 0 on. By default all.")
    heads: Numbers | None = Field(
        None, description="Which of each layer, from 0 on. By default all."
    )


class Options(Strict):
    """What is asked of the sequences, whatever they come in."""

    model: str | None = Field(
        None, description="`name` or `name/version`; the latest version by default."
    )
    outputs: Annotated[list[Output], Field(fail_fast=True)] | None = Field(
        None,
        description="By default activations, and what the model's head makes of them. Of texts"
        " `logits` alone if the model has one row of them a sequence, else `pooled` alone.",
    )
    logits: LogitsOptions | None = None
    sparse: SparseOptions | None = None
    hidden_states: HiddenStatesOptions | None = None
    attentions: AttentionsOptions | None = None
    pooling: Pooling | None = Field(
        None, description="How `pooled` is made; by default as the bundle says."
    )
    normalize: bool = Field(
        False,
        description="Whether vectors, `pooled` and `token_vectors`, are scaled to length 1.",
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
    truncate: bool = Field(
        False,
        description="Whether texts that are too long are cut, as the model's authors do it, instead"
        " of refused.",
    )

    @property
    def field(self) -> str:
        return "input_ids" if self.texts is None else "texts"

    def skipped_ids(self, bundle: Bundle) -> tuple[int, ...] | None:
        if self.input_type is None:
            return None
        return bundle.manifest.input_types[self.input_type].skipped_ids

    def wanted(self, bundle: Bundle) -> tuple[str, ...] | None:
        """Who sends a text wants its class or its vector, not megabytes of its tokens' rows."""
        if self.texts is None or self.outputs is not None:
            return super().wanted(bundle)
        logits = bundle.manifest.heads.get("logits")
        return ("logits",) if logits and logits.pick != "every" else ("pooled",)


class TopTokens(BaseModel):
    token_ids: list[Any] = Field(
        description="[B][S][k], or [B][k] for positions `last`; null at pads."
    )
    logprobs: list[Any]


class SparseVector(BaseModel):
    """The entries that are not zero."""

    indices: list[int] = Field(description="Token ids, ascending.")
    values: list[float]


class NormStats(BaseModel):
    mean: list[list[list[float]]] = Field(description="[B][S][n_norms]")
    rstd: list[list[list[float]]] = Field(description="[B][S][n_norms], 1 / sqrt(variance + eps)")


class Usage(BaseModel):
    real_tokens: int
    pad_tokens: int = Field(description="Pads, none of which was computed.")


class InferResponse(BaseModel):
    """The outputs asked for, in the caller's own layout, zeros at pads."""

    model: str
    version: str
    activations: list[list[list[float]]] | None = Field(None, description="[B][S][d_model]")
    logits: list[list[list[float]]] | list[list[float]] | TopTokens | None = Field(
        None,
        description="[B][S][V], or [B][V] for `last`; V is the number of labels if there are such,"
        " and a model that classifies whole sequences has [B][V].",
    )
    token_vectors: list[list[list[float]]] | None = Field(
        None,
        description="[B][S][width], of models that compare texts token by token; with `input_type`"
        " of the tokens that count.",
    )
    sparse: list[SparseVector] | None = Field(
        None,
        description="[B], of models that predict masked tokens: the largest of each sequence's"
        " log(1 + max(0, logits)), as SPLADE's vectors are.",
    )
    pooled: list[list[float]] | list[list[int]] | list[list[list[float]]] | None = Field(
        None,
        description="[B][d_model], or as wide as the model's own vectors; with `spans` a list of"
        " such for each sequence.",
    )
    norm_stats: NormStats | None = None
    prompt_logprobs: list[list[float | None]] | None = Field(
        None,
        description="[B][S], of language models: the log-probability of each token given those"
        " before it; null for a sequence's first token and at pads.",
    )
    hidden_states: list[list[list[list[float]]]] | None = Field(
        None,
        description="[layers][B][S][d_model], of bundles exported with a lens, in the order asked"
        " for. The last layer's are `activations`, after a final norm if the model has one.",
    )
    attentions: list[list[list[list[list[float]]]]] | None = Field(
        None,
        description="[layers][B][heads][S][S], queries before keys, of bundles exported with a"
        " lens: what each token's attention takes of each token. A real token's add up to 1.",
    )
    usage: Usage


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
    "usage": {"real_tokens": 3, "pad_tokens": 2},
}
BINARY = {
    SAFETENSORS: {
        "schema": {"type": "string", "format": "binary", "description": safetensors_body.__doc__}
    }
}
