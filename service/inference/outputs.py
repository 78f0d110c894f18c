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
    Spans,
    check_finite,
    headed,
    token_logprobs,
    top_k,
    unit,
)
from addnorm.service.inference.sparse import SparseVectors, entries, largest_logits
from addnorm.service.runtime.batch import Batch, Floats, Ints, Padding, Rows
from addnorm.service.runtime.bundle import Bundle, Pick, Pooling
from addnorm.service.runtime.engine import Engine
from addnorm.service.scheduling.cooperative import Steps

Positions = Literal["all", "last"]
DType = Literal["float32", "float16"]
NO_TOKEN = -1
# Entries of sparse vectors for each token. SPLADE models have 1 to 10; models that were not trained
# so have them for half of the vocabulary.
ENTRIES_PER_TOKEN = 32


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
    """A vector for each sequence, or for each span: then it is a list of `[n, w]`. pooling: None:
    as the bundle says. dimensions: only the first so many, which are scaled after they are cut."""

    name = "pooled"
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: int | None = None
    spans: Spans | None = None

    @property
    def has_own_lengths(self) -> bool:
        return self.spans is not None

    def check(self, bundle: Bundle) -> None:
        width = bundle.width(self.name)
        if self.dimensions is not None and not 1 <= self.dimensions <= width:
            raise InvalidInput(
                f"dimensions is {self.dimensions}: 1 to {width} for {bundle.ref}",
                param="dimensions",
            )

    def pick(self, bundle: Bundle) -> Pooling:
        return self.pooling or bundle.manifest.pooling

    def width(self, bundle: Bundle) -> int:
        return self.dimensions or super().width(bundle)

    def num_rows(self, bundle: Bundle, batch: Batch) -> int:
        return len(batch) if self.spans is None else len(self.spans.ranges)

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        return super().num_pads(bundle, padding) if self.spans is None else 0

    def make(self, of: Computed) -> Steps[Any]:
        pooling, activations = self.pick(of.bundle), of.rows.activations
        if self.spans is None:
            rows = HeadRows.of(pooling, activations, of.batch)
        else:
            rows = yield from HeadRows.pooled_in(self.spans, pooling, activations, of.batch)
        vectors = rows.activations
        if self.head(of.bundle):
            width = super().width(of.bundle)
            vectors = yield from headed(of.engine, self.name, rows, width)
        yield
        vectors = np.ascontiguousarray(vectors[:, : self.dimensions])
        return self.laid_out(unit(vectors) if self.normalize else vectors, of)

    def laid_out(self, values: Any, of: Computed, fill: float = 0.0) -> Any:
        if self.spans is None:
            return super().laid_out(values, of, fill)
        return np.split(values, self.spans.lengths.cumsum()[:-1])


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
    """A sparse vector for each sequence, see `sparse.py`. top_k: only its k largest entries."""

    name = "sparse"
    is_estimated = True
    has_own_lengths = True
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
        return 2 * self._max_entries(bundle, batch)

    def num_pads(self, bundle: Bundle, padding: Padding) -> int:
        return 0

    def make(self, of: Computed) -> Steps[SparseVectors]:
        width, limit = self.width(of.bundle), self._max_entries(of.bundle, of.batch)
        num_left = max(limit, width)  # one sequence alone is never refused
        rows = HeadRows.of(self.pick(of.bundle), of.rows.activations, of.batch)
        found = list[tuple[Ints, Floats]]()
        for largest in largest_logits(of.engine, rows, width):
            if largest is not None:
                found.append(entries(largest, self.top_k))
                num_left -= len(found[-1][0])
            if num_left < 0:
                raise _too_many_entries(of, limit)
            yield
        sequences = iter(found)
        none = np.empty(0, np.int64), np.empty(0, np.float32)
        by_row = [next(sequences) if length else none for length in of.padding.lengths.tolist()]
        indices, values = zip(*by_row, strict=True)
        return SparseVectors(list(indices), list(values))

    def _max_entries(self, bundle: Bundle, batch: Batch) -> int:
        if self.top_k is not None:
            return self.top_k * len(batch)
        return int(np.minimum(ENTRIES_PER_TOKEN * batch.lengths, self.width(bundle)).sum())


def _too_many_entries(of: Computed, limit: int) -> InvalidInput:
    return InvalidInput(
        f"sparse vectors have more than {limit} entries that are not zero, the limit for"
        f" {len(of.batch)} sequences of {of.batch.num_tokens} tokens: ask for"
        ' "sparse": {"top_k": 256}, or send fewer sequences at once',
        param="sparse",
    )


BY_NAME: dict[str, Callable[[], Output]] = {
    kind.name: kind
    for kind in (Activations, Logits, TokenVectors, Pooled, NormStats, PromptLogprobs, Sparse)
}


def default_names(bundle: Bundle) -> tuple[str, ...]:
    """Activations, and what heads make of them."""
    others = ("sparse", "pooled", "norm_stats", "prompt_logprobs")
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

    norm_stats, whose values range widely, log-probabilities, the likeliest tokens and sparse
    vectors stay as they are.
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
