"""The output `prompt_logprobs`: the log-probability of each token of a prompt after the tokens
before it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.heads import check_finite, token_logprobs
from addnorm.service.engine.outputs.output import Output, OutputInputs, Value_co
from addnorm.service.engine.outputs.values import NO_TOKEN, Array, ByRow, TopK, Value


@dataclass(frozen=True, eq=False, slots=True)
class Logprobs(Value):
    """logprobs: `[rows, seq]`, or `[n]` for each row if ragged."""

    logprobs: ByRow

    def for_json(self) -> Any:
        return self.logprobs.for_json()

    def tensors(self, name: str) -> dict[str, Array]:
        return self.logprobs.tensors(name)


@dataclass(frozen=True, eq=False, slots=True)
class Scored(Value):
    """logprobs: see `Logprobs`. next: the likeliest tokens after each token."""

    logprobs: ByRow
    next: TopK

    def for_json(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs.for_json(), "next": self.next.for_json()}

    def tensors(self, name: str) -> dict[str, Array]:
        return {**self.logprobs.tensors(f"{name}.logprobs"), **self.next.tensors(f"{name}.next")}


@dataclass(frozen=True, eq=False)
class PromptOutput(Output[Value_co]):
    """The log-probability of each token given those before it in its sequence: NaN for the first,
    and at pads."""

    name = "prompt_logprobs"
    json_type = list[list[float | None]]
    description = (
        "[B][S], of language models: the log-probability of each token given those before it; null"
        " for a sequence's first token and at pads."
    )
    head = "logits"
    is_default = False
    is_derived = True

    @classmethod
    def is_of(cls, bundle: Bundle) -> bool:
        return "complete" in bundle.tasks

    def width(self, bundle: Bundle) -> int:
        return 1

    def _logprobs(self, inputs: OutputInputs, top_k: int) -> tuple[ByRow, Ints, Floats]:
        """Log-probabilities of the tokens; and the most likely tokens after each, their ids and
        log-probabilities `[n, k]`."""
        rows = inputs.head_rows("every")
        # each row is asked for the token after it; a sequence's last for one that is not its own
        next_tokens = np.roll(inputs.batch.tokens, -1)
        next_logprobs, token_ids, best = token_logprobs(inputs.engine, rows, next_tokens, top_k)
        logprobs, firsts = np.roll(next_logprobs, 1), inputs.batch.offsets[:-1]
        logprobs[firsts] = 0.0
        check_finite(self.name, logprobs[:, None], rows.sequences)
        logprobs[firsts] = np.nan
        by_row = self.laid_out(logprobs[:, None], inputs, np.nan).without_width()
        return by_row, token_ids, best


@dataclass(frozen=True, eq=False)
class PromptLogprobs(PromptOutput[Logprobs]):
    def make(self, inputs: OutputInputs) -> Logprobs:
        logprobs, *_ = self._logprobs(inputs, 0)
        return Logprobs(logprobs)


@dataclass(frozen=True, eq=False)
class ScoredPrompts(PromptOutput[Scored]):
    """top_k: also the likeliest next tokens of every row."""

    top_k: int = 1

    def width(self, bundle: Bundle) -> int:
        return 1 + 2 * self.top_k

    @property
    def cost(self) -> Hashable:
        return self.name, self.top_k.bit_length()

    def make(self, inputs: OutputInputs) -> Scored:
        logprobs, token_ids, best = self._logprobs(inputs, self.top_k)
        return Scored(
            logprobs, TopK(self.laid_out(token_ids, inputs, NO_TOKEN), self.laid_out(best, inputs))
        )
