"""Outputs of every token: activations, LayerNorm statistics, vectors and logits.

A head of sequences makes its logits of one row a sequence.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.heads import HeadRows, headed, top_k, unit
from addnorm.service.inference.outputs.output import NO_TOKEN, Computed, Output, TopK
from addnorm.service.runtime.batch import Batch, Ints, Padding
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Pick
from addnorm.service.scheduling.cooperative import Steps

Positions = Literal["all", "last"]


class Activations(Output):
    name = "activations"

    def make(self, of: Computed) -> Steps[Any]:
        yield
        return of.padding.scatter(of.rows.activations)


class NormStats(Output):
    name = "norm_stats"

    def make(self, of: Computed) -> Steps[Any]:
        yield
        parts = {"mean": of.rows.norm_mean, "rstd": of.rows.norm_rstd}
        return {part: of.padding.scatter(values) for part, values in parts.items()}


@dataclass(frozen=True, eq=False)
class TokenVectors(Output):
    """skipped_ids: tokens that are left out; then the answer is a list of `[n, w]`. None: every
    token has a vector."""

    name = "token_vectors"
    normalize: bool = False
    skipped_ids: tuple[int, ...] | None = None

    @property
    def has_own_lengths(self) -> bool:
        return self.skipped_ids is not None

    def num_rows(self, bundle: Bundle, batch: Batch) -> int:
        return len(self._tokens(batch))

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        return 0 if self.has_own_lengths else super().num_pads(bundle, padding)

    def make(self, of: Computed) -> Steps[Any]:
        rows = HeadRows.at(self._tokens(of.batch), of.rows.activations, of.batch)
        vectors = yield from headed(of.engine, self.name, rows, self.width(of.bundle))
        yield
        if self.normalize:
            vectors = unit(vectors)
        if not self.has_own_lengths:
            return self.laid_out(vectors, of)
        lengths = np.zeros(len(of.padding.lengths), np.int64)
        lengths[of.padding.lengths > 0] = np.bincount(rows.sequences, minlength=len(of.batch))
        return np.split(vectors, lengths.cumsum()[:-1])

    def _tokens(self, batch: Batch) -> Ints:
        """Indices of those that have a vector."""
        return np.flatnonzero(~np.isin(batch.tokens, self.skipped_ids or ()))


@dataclass(frozen=True, eq=False)
class Logits(Output):
    """Of the rows that the head is for. positions and top_k: see `/v1/infer`; positions may also be
    indices of tokens in the batch, and then the answer is `[n, w]`."""

    name = "logits"
    positions: Positions | Ints | None = None
    top_k: int | None = None

    def check(self, bundle: Bundle) -> None:
        width, pick = bundle.width("logits"), bundle.manifest.heads["logits"].pick
        if self.top_k is not None and not 1 <= self.top_k <= width:
            raise InvalidInput(
                f"logits.top_k is {self.top_k}: 1 to {width} for {bundle.ref}",
                param="logits.top_k",
            )
        if self.positions is not None and pick != "every":
            raise InvalidInput(
                f"logits.positions is {self.positions!r}, but {bundle.ref} has one row of logits a"
                " sequence: leave it out",
                param="logits.positions",
            )

    def pick(self, bundle: Bundle) -> Pick:
        is_last = not self._has_tokens and self.positions == "last"
        return "last" if is_last else super().pick(bundle)

    def width(self, bundle: Bundle) -> int:
        return super().width(bundle) if self.top_k is None else 2 * self.top_k

    def num_rows(self, bundle: Bundle, batch: Batch) -> int:
        return len(self._tokens) if self._has_tokens else super().num_rows(bundle, batch)

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        return 0 if self._has_tokens else super().num_pads(bundle, padding)

    @property
    def cost(self) -> Hashable:
        """Sorting the likeliest tokens takes longer for a larger k."""
        return self.name, (self.top_k or 0).bit_length()

    def make(self, of: Computed) -> Steps[Any]:
        if self.top_k is None and not self._has_tokens:
            return (yield from super().make(of))
        if self.top_k is None:
            return (yield from headed(of.engine, "logits", self._rows(of), self.width(of.bundle)))
        token_ids, logprobs = yield from top_k(of.engine, self._rows(of), self.top_k)
        return TopK(self.laid_out(token_ids, of, NO_TOKEN), self.laid_out(logprobs, of))

    def laid_out(self, values: Any, of: Computed, fill: float = 0.0) -> Any:
        return values if self._has_tokens else super().laid_out(values, of, fill)

    def _rows(self, of: Computed) -> HeadRows:
        if self._has_tokens:
            return HeadRows.at(self._tokens, of.rows.activations, of.batch)
        return of.head_rows(self.pick(of.bundle))

    @property
    def _has_tokens(self) -> bool:
        return isinstance(self.positions, np.ndarray)

    @property
    def _tokens(self) -> Ints:
        assert isinstance(self.positions, np.ndarray)
        return self.positions
