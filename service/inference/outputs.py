"""What a request may ask for: a class for each output. Each says which rows it is made of, how many
numbers it has, and how it is made, in the caller's layout.

Outputs are made in steps (`scheduling/cooperative.py`).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.heads import (
    HeadRows,
    check_finite,
    headed,
    largest_logits,
    token_logprobs,
    top_k,
    unit,
)
from addnorm.service.runtime.batch import Batch, Floats, Ints, Padding, Rows
from addnorm.service.runtime.bundle import Bundle, Pick, Pooling
from addnorm.service.runtime.engine import Engine
from addnorm.service.scheduling.cooperative import Steps

Positions = Literal["all", "last"]
DType = Literal["float32", "float16"]
NO_TOKEN = -1
# Of a sparse vector, for each token of its sequence: SPLADE models have 2 to 10.
ENTRIES_PER_TOKEN = 32  # more are refused: other models have some for most of the vocabulary


class Computed(NamedTuple):
    """What outputs are made of."""

    bundle: Bundle
    engine: Engine
    batch: Batch
    padding: Padding
    rows: Rows


class TopK(NamedTuple):
    """The k likeliest tokens or labels, likeliest first; NO_TOKEN and 0.0 at pads. In the caller's
    layout, or `[rows, k]` for one row of logits a sequence."""

    token_ids: Any
    logprobs: Any


class Scored(NamedTuple):
    """logprobs: see `PromptLogprobs`. next: the likeliest tokens after each token."""

    logprobs: Any
    next: TopK


class SparseVectors(NamedTuple):
    """Those entries of a vector for each of the caller's rows that are not zero; none for rows of
    pads only."""

    indices: list[Ints]  # ascending
    values: list[Floats]


@dataclass(frozen=True, eq=False)
class Output:
    """One that is asked for, with its options. By default: a head's answer for every row that it
    runs on."""

    name: ClassVar[str]
    is_estimated: ClassVar[bool] = False  # whether it may have less numbers than num_values

    def check(self, bundle: Bundle) -> None:
        """InvalidInput if an option does not fit the model."""

    def head(self, bundle: Bundle) -> str | None:
        """The head that makes it, if one does."""
        return self.name if self.name in bundle.manifest.heads else None

    def pick(self, bundle: Bundle) -> Pick:
        """The rows it is made of: every token's, or one for each sequence."""
        head = self.head(bundle)
        return bundle.manifest.heads[head].pick if head else "every"

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
        return int((padding.lengths == 0).sum())

    @property
    def cost(self) -> Hashable:
        """Requests with equal ones take the same time for each row."""
        return self.name

    def make(self, of: Computed) -> Steps[Any]:
        """In the caller's layout: `[rows, seq, w]` or `[rows, w]`; a list of `[n, w]` if ragged."""
        rows = HeadRows.of(self.pick(of.bundle), of.rows.activations, of.batch)
        made = yield from headed(of.engine, self.name, rows, self.width(of.bundle))
        return self.laid_out(made, of)

    def laid_out(self, values: Any, of: Computed, fill: float = 0.0) -> Any:
        """Values of its rows in the caller's layout, with `fill` at pads."""
        if self.pick(of.bundle) == "every":
            return of.padding.scatter(values, fill)
        return of.padding.scatter_rows(values, fill)


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


class TokenVectors(Output):
    name = "token_vectors"


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
        return "last" if self.positions == "last" else super().pick(bundle)

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
        return HeadRows.of(self.pick(of.bundle), of.rows.activations, of.batch)

    @property
    def _has_tokens(self) -> bool:
        return isinstance(self.positions, np.ndarray)

    @property
    def _tokens(self) -> Ints:
        assert isinstance(self.positions, np.ndarray)
        return self.positions


@dataclass(frozen=True, eq=False)
class Pooled(Output):
    """A vector for each sequence. pooling: None: as the bundle says. dimensions: only the first so
    many, which are scaled after they are cut."""

    name = "pooled"
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: int | None = None

    def check(self, bundle: Bundle) -> None:
        width = bundle.width(self.name)
        if self.dimensions is not None and not 1 <= self.dimensions <= width:
            raise InvalidInput(
                f"dimensions is {self.dimensions}: 1 to {width} for {bundle.ref}",
                param="dimensions",
            )

    def pick(self, bundle: Bundle) -> Pick:
        return self.pooling or bundle.manifest.pooling

    def width(self, bundle: Bundle) -> int:
        return self.dimensions or super().width(bundle)

    def make(self, of: Computed) -> Steps[Any]:
        rows = HeadRows.of(self.pick(of.bundle), of.rows.activations, of.batch)
        vectors = rows.activations
        if self.head(of.bundle):
            width = super().width(of.bundle)
            vectors = yield from headed(of.engine, self.name, rows, width)
        yield
        vectors = np.ascontiguousarray(vectors[:, : self.dimensions])
        return self.laid_out(unit(vectors) if self.normalize else vectors, of)


@dataclass(frozen=True, eq=False)
class PromptLogprobs(Output):
    """The log-probability of each token given those before it in its sequence: NaN for the first,
    and at pads. top_k: also the likeliest next tokens of every row; then the answer is `Scored`."""

    name = "prompt_logprobs"
    top_k: int | None = None

    def head(self, bundle: Bundle) -> str | None:
        return "logits"

    def width(self, bundle: Bundle) -> int:
        # with the likeliest each token is answered by about its id, text and place too
        return 1 if self.top_k is None else 4 + 2 * self.top_k

    @property
    def cost(self) -> Hashable:
        return self.name, (self.top_k or 0).bit_length()

    def make(self, of: Computed) -> Steps[Any]:
        """`[rows, seq]`, or a list of `[n]` if ragged."""
        rows = HeadRows.of("every", of.rows.activations, of.batch)
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


@dataclass(frozen=True, eq=False)
class Sparse(Output):
    """For each sequence the largest of its tokens' log1p(relu(logits)), as SPLADE's vectors are
    (arXiv 2109.10086, equation 6). Special tokens count. top_k: only the k largest entries, lower
    indices first."""

    name = "sparse"
    is_estimated = True
    top_k: int | None = None

    def check(self, bundle: Bundle) -> None:
        width = self.width(bundle)
        if self.top_k is not None and not 1 <= self.top_k <= width:
            raise InvalidInput(
                f"sparse.top_k is {self.top_k}: 1 to {width} for {bundle.ref}",
                param="sparse.top_k",
            )

    def head(self, bundle: Bundle) -> str | None:
        return "logits"

    def width(self, bundle: Bundle) -> int:
        return bundle.width("logits")

    def num_values(self, bundle: Bundle, batch: Batch) -> int:
        """At most so many, but for one sequence alone."""
        width = self.width(bundle)
        if self.top_k is not None:
            return 2 * self.top_k * len(batch)
        return 2 * int(np.minimum(ENTRIES_PER_TOKEN * batch.lengths, width).sum())

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        return 0

    def make(self, of: Computed) -> Steps[SparseVectors]:
        width = self.width(of.bundle)
        rows = HeadRows.of(self.pick(of.bundle), of.rows.activations, of.batch)
        num_left = max(width, self.num_values(of.bundle, of.batch) // 2)
        found = list[tuple[Ints, Floats]]()
        for largest in largest_logits(of.engine, rows, width):
            if largest is not None:
                found.append(self._entries(largest))
                num_left -= len(found[-1][0])
            if num_left < 0:
                raise self._too_many(of)
            yield
        by_row = iter(found)
        none = np.empty(0, np.int64), np.empty(0, np.float32)
        rows_found = [next(by_row) if length else none for length in of.padding.lengths.tolist()]
        return SparseVectors(*map(list, zip(*rows_found, strict=True)))

    def _entries(self, largest: Floats) -> tuple[Ints, Floats]:
        """Indices and values of a sequence's largest logits `[V]`."""
        indices = np.flatnonzero(largest > 0)
        if self.top_k is not None and len(indices) > self.top_k:
            order = np.argsort(-largest[indices], kind="stable")
            indices = np.sort(indices[order[: self.top_k]])
        return indices, np.log1p(largest[indices])

    def _too_many(self, of: Computed) -> InvalidInput:
        limit = self.num_values(of.bundle, of.batch) // 2
        return InvalidInput(
            f"sparse has more than {limit} entries that are not zero, the limit for"
            f" {len(of.batch)} sequences of together {of.batch.num_tokens} tokens: ask for"
            ' "sparse": {"top_k": 256}, or send fewer sequences at once',
            param="sparse",
        )


BY_NAME: dict[str, Callable[[], Output]] = {
    kind.name: kind
    for kind in (Activations, Logits, TokenVectors, Pooled, NormStats, PromptLogprobs, Sparse)
}


def default_names(bundle: Bundle) -> tuple[str, ...]:
    """Activations, and what heads make of them."""
    others = ("pooled", "norm_stats", "prompt_logprobs", "sparse")
    return tuple(name for name in bundle.outputs if name not in others)


def check_names(names: Sequence[str], bundle: Bundle) -> None:
    """InvalidInput unless the model has all of them and each is named once."""
    known = ", ".join(bundle.outputs)
    if not names:
        raise InvalidInput(f"outputs is empty: ask for some of {known}", param="outputs")
    for name in names:
        if name not in bundle.outputs:
            raise InvalidInput(
                f"outputs has {name!r}: {bundle.ref} has {known}",
                param="outputs",
            )
        if names.count(name) > 1:
            raise InvalidInput(f"outputs has {name!r} twice", param="outputs")


def halved(name: str, output: Any) -> Any:
    """An output as float16. InvalidInput if it has a finite value that float16 does not hold.

    norm_stats, whose values range widely, log-probabilities, the likeliest tokens and sparse vectors
    stay as they are.
    """
    if name in ("norm_stats", "prompt_logprobs") or isinstance(output, TopK | SparseVectors):
        return output
    return [_half(name, row) for row in output] if isinstance(output, list) else _half(name, output)


def _half(name: str, values: Floats) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    beyond = np.isinf(half) & np.isfinite(values)
    if beyond.any():
        raise InvalidInput(
            f"{name} has the value {values[beyond][0]}, float16 holds at most"
            f' {np.finfo(np.float16).max:.0f}: ask for "dtype": "float32"',
            param="dtype",
        )
    return half
