"""The output `logits`: of every token, of some, of each sequence's last, or of each sequence.
Whole, or only the likeliest."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from addnorm.service.engine.batch import Batch, Ints, Padding
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.heads import HeadRows, run_head, top_k
from addnorm.service.engine.manifest import Pick
from addnorm.service.engine.outputs.output import (
    Output,
    OutputInputs,
    OutputParameters,
    Size,
    Strict,
    Value_co,
)
from addnorm.service.engine.outputs.values import NO_TOKEN, ByRow, Dense, TopK, Value
from addnorm.service.errors import InvalidInput

Positions = Literal["all", "last"]
MAX_COMPARED = 4_000_000  # logits whose bits are compared at once; beyond it only each last token's


class LogitsOptions(Strict):
    positions: Positions | None = Field(
        None,
        description="Logits of every token, which is the default, or of each sequence's last. Only"
        " for models with logits of every token.",
    )
    top_k: int | None = Field(
        None, description="Only the k likeliest tokens or labels, with their log-probabilities."
    )


class TopTokens(BaseModel):
    token_ids: list[Any] = Field(
        description="[B][S][k], or [B][k] for positions `last`; null at pads."
    )
    logprobs: list[Any]


@dataclass(frozen=True, eq=False)
class LogitsOutput(Output[Value_co]):
    """Logits of the rows that the head is for. positions: see `/v1/infer`."""

    name = "logits"
    json_type = list[list[list[float]]] | list[list[float]] | TopTokens
    description = (
        "[B][S][V], or [B][V] for `last`; V is the number of labels if there are such, and a model"
        " that classifies whole sequences has [B][V]."
    )
    options = LogitsOptions
    positions: Positions | None = None

    def check(self, bundle: Bundle) -> None:
        if self.positions is not None and bundle.manifest.heads[self.name].pick != "every":
            raise InvalidInput(
                f"logits.positions is {self.positions!r}, but {bundle.ref} has one row of logits a"
                " sequence: leave it out",
                param="logits.positions",
            )

    def pick(self, bundle: Bundle) -> Pick:
        return "last" if self.positions == "last" else super().pick(bundle)


@dataclass(frozen=True, eq=False)
class Logits(LogitsOutput[ByRow]):
    remedy = 'ask for "outputs": ["activations"], or "logits": {"top_k": 5}'

    @classmethod
    def asked_for(cls, request: OutputParameters) -> Output[Value]:
        options: LogitsOptions | None = request.options
        if options is None:
            return Logits()
        if options.top_k is None:
            return Logits(options.positions)
        return TopLogits(options.positions, options.top_k)

    @classmethod
    def compared_options(cls, bundle: Bundle, num_tokens: int) -> Mapping[str, Any]:
        """Empty where there is one row of logits a sequence."""
        head = bundle.manifest.heads[cls.name]
        if head.pick != "every":
            return {}
        return {"positions": "all" if num_tokens * head.width <= MAX_COMPARED else "last"}

    def make(self, inputs: OutputInputs) -> ByRow:
        rows = inputs.head_rows(self.pick(inputs.bundle))
        logits = run_head(inputs.engine, self.name, rows, self.width(inputs.bundle))
        return self.laid_out(logits, inputs)


@dataclass(frozen=True, eq=False)
class LogitsAt(LogitsOutput[Dense]):
    """Logits of some tokens, whatever their sequence, `[n, w]`. tokens: their indices in the
    batch."""

    tokens: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def size(self, bundle: Bundle, batch: Batch, padding: Padding) -> Size:
        size, num_rows = super().size(bundle, batch, padding), len(self.tokens)
        num_values = num_rows * self.width(bundle)
        return size._replace(num_rows=num_rows, num_values=num_values, num_pads=0)

    def make(self, inputs: OutputInputs) -> Dense:
        rows = HeadRows.at(self.tokens, inputs.rows.activations, inputs.batch)
        return Dense(run_head(inputs.engine, self.name, rows, self.width(inputs.bundle)))


@dataclass(frozen=True, eq=False)
class TopLogits(LogitsOutput[TopK]):
    """Only the k likeliest of each row, with their log-probabilities."""

    top_k: int = 1

    def check(self, bundle: Bundle) -> None:
        width = bundle.width(self.name)
        if not 1 <= self.top_k <= width:
            raise InvalidInput(
                f"logits.top_k is {self.top_k}: 1 to {width} for {bundle.ref}",
                param="logits.top_k",
            )
        super().check(bundle)

    def width(self, bundle: Bundle) -> int:
        return 2 * self.top_k

    @property
    def cost(self) -> Hashable:
        """Sorting the likeliest tokens takes longer for a larger k."""
        return self.name, self.top_k.bit_length()

    def make(self, inputs: OutputInputs) -> TopK:
        rows = inputs.head_rows(self.pick(inputs.bundle))
        token_ids, logprobs = top_k(inputs.engine, rows, self.top_k)
        return TopK(self.laid_out(token_ids, inputs, NO_TOKEN), self.laid_out(logprobs, inputs))
