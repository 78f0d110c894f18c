"""The output `prompt_logprobs`: how likely each token of a prompt is after those before it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from addnorm.service.inference.heads import check_finite, token_logprobs
from addnorm.service.inference.outputs.output import NO_TOKEN, Computed, Output, TopK
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.scheduling.cooperative import Steps


class Scored(NamedTuple):
    """logprobs: see `PromptLogprobs`. next: the likeliest tokens after each token."""

    logprobs: Any
    next: TopK


@dataclass(frozen=True, eq=False)
class PromptLogprobs(Output):
    """The log-probability of each token given those before it in its sequence: NaN for the first,
    and at pads. top_k: also the likeliest next tokens of every row; then the answer is `Scored`."""

    name = "prompt_logprobs"
    top_k: int | None = None

    def head(self, bundle: Bundle) -> str | None:
        return "logits"

    def width(self, bundle: Bundle) -> int:
        return super().width(bundle) + 2 * (self.top_k or 0)

    @property
    def cost(self) -> Hashable:
        return self.name, (self.top_k or 0).bit_length()

    def make(self, of: Computed) -> Steps[Any]:
        """`[rows, seq]`, or a list of `[n]` if ragged."""
        rows = of.head_rows("every")
        # each row is asked for the token after it; a sequence's last for one that is not its own
        asked = np.roll(of.batch.tokens, -1)
        made = yield from token_logprobs(of.engine, rows, asked, self.top_k or 0)
        logprobs, firsts = np.roll(made[0], 1), of.batch.offsets[:-1]
        logprobs[firsts] = 0.0
        check_finite(self.name, logprobs[:, None], rows.sequences)
        logprobs[firsts] = np.nan
        own = _without_width(self.laid_out(logprobs[:, None], of, np.nan))
        if self.top_k is None:
            return own
        return Scored(own, TopK(self.laid_out(made[1], of, NO_TOKEN), self.laid_out(made[2], of)))


def _without_width(values: Any) -> Any:
    """`[rows, seq, 1]`, or a list of `[n, 1]`, without the last axis."""
    return [row[:, 0] for row in values] if isinstance(values, list) else values[..., 0]
