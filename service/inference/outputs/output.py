"""What all outputs share: which rows one is made of, how many numbers it has, and how it is made,
in the caller's layout.

Outputs are made in steps (`scheduling/cooperative.py`).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from addnorm.service.inference.heads import HeadRows, headed
from addnorm.service.inference.kept_rows import KeptRows
from addnorm.service.runtime.batch import Batch, Padding, Rows
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Pick
from addnorm.service.scheduling.cooperative import Steps

NO_TOKEN = -1


class Computed(NamedTuple):
    """What outputs are made of."""

    bundle: Bundle
    engine: Engine
    batch: Batch
    padding: Padding
    kept: KeptRows

    @property
    def rows(self) -> Rows:
        """Of every token. Only if an output needs "every"."""
        assert self.kept.rows
        return self.kept.rows

    def head_rows(self, pick: Pick) -> HeadRows:
        """Of every token, or one for each sequence."""
        if pick == "every":
            return HeadRows.every(self.rows.activations, self.batch)
        return HeadRows(self.kept.of(pick), np.arange(len(self.batch)))


class TopK(NamedTuple):
    """The k likeliest tokens or labels, likeliest first; NO_TOKEN and 0.0 at pads. In the caller's
    layout, or `[rows, k]` for one row of logits a sequence."""

    token_ids: Any
    logprobs: Any


@dataclass(frozen=True, eq=False)
class Output:
    """One that is asked for, with its options. By default: a head's answer for every row that it
    runs on."""

    name: ClassVar[str]
    is_estimated: ClassVar[bool] = False  # whether it may have less numbers than num_values

    @property
    def has_own_lengths(self) -> bool:
        """Whether each of the caller's rows has a number of vectors, or entries, of its own."""
        return False

    def check(self, bundle: Bundle) -> None:
        """InvalidInput if an option does not fit the model."""

    def head(self, bundle: Bundle) -> str | None:
        """The head that makes it, if one does."""
        return self.name if self.name in bundle.manifest.heads else None

    def pick(self, bundle: Bundle) -> Pick:
        """The rows it is made of: every token's, or one for each sequence."""
        head = self.head(bundle)
        return bundle.manifest.heads[head].pick if head else "every"

    def needs(self, bundle: Bundle) -> Pick:
        """The rows that must be kept for it."""
        return self.pick(bundle)

    def width(self, bundle: Bundle) -> int:
        """Numbers for each row."""
        return bundle.width(self.name)

    def num_rows(self, bundle: Bundle, batch: Batch) -> int:
        """How many rows it is made of."""
        return batch.num_tokens if self.pick(bundle) == "every" else len(batch)

    def num_values(self, bundle: Bundle, batch: Batch) -> int:
        """How many numbers it has, pads left out."""
        return self.num_rows(bundle, batch) * self.width(bundle)

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        """Rows of the caller's layout that stay empty."""
        if self.pick(bundle) == "every":
            return padding.num_pads
        return padding.num_empty_rows

    @property
    def is_small(self) -> bool:
        """Whether its numbers are sent as int8 or uint8."""
        return False

    @property
    def cost(self) -> Hashable:
        """Requests with equal ones take the same time for each row."""
        return self.name

    def make(self, of: Computed) -> Steps[Any]:
        """In the caller's layout: `[rows, seq, w]` or `[rows, w]`; a list of `[n, w]` if ragged."""
        rows = of.head_rows(self.pick(of.bundle))
        made = yield from headed(of.engine, self.name, rows, self.width(of.bundle))
        return self.laid_out(made, of)

    def laid_out(self, values: Any, of: Computed, fill: float = 0.0) -> Any:
        """Values of its rows in the caller's layout, with `fill` at pads."""
        if self.pick(of.bundle) == "every":
            return of.padding.scatter(values, fill)
        return of.padding.scatter_rows(values, fill)
