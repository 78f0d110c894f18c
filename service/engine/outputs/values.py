"""Values of outputs, in the caller's layout: for each kind its form as JSON, as tensors and in
float16. Knows no protocol."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from addnorm.service.engine.batch import Floats, Ints, Padding
from addnorm.service.errors import InvalidInput

NO_TOKEN = -1
Array = NDArray[Any]
VectorDType = Literal["float32", "int8", "uint8", "binary", "ubinary"]


class Value(ABC):
    """The value of one output in one request."""

    @abstractmethod
    def for_json(self) -> Any:
        """Arrays, lists and dictionaries of them, as a writer of JSON takes them. No number becomes
        an object."""

    @abstractmethod
    def tensors(self, name: str) -> dict[str, Array]:
        """Tensors by name: the output's name, or that and a part's. Ragged rows are end to end."""

    def halved(self, name: str) -> Self:
        """The value in float16. InvalidInput if it has a finite value that float16 does not hold.

        Values whose numbers range widely, and those of a few numbers, stay as they are.
        """
        return self


@dataclass(frozen=True, eq=False, slots=True)
class Dense(Value):
    """joined: `[rows, seq, w]`, `[rows, seq]` or `[rows, w]`."""

    joined: Array

    @property
    def rows(self) -> Array:
        return self.joined

    @property
    def is_by_token(self) -> bool:
        """Each token has w numbers, not each row."""
        return self.joined.ndim > 2

    def for_json(self) -> Array:
        return self.joined

    def tensors(self, name: str) -> dict[str, Array]:
        return {name: self.joined}

    def halved(self, name: str) -> "Dense":
        return Dense(_half(name, self.joined))

    def without_width(self) -> "Dense":
        """Without the last axis, of length 1."""
        return Dense(self.joined[..., 0])


@dataclass(frozen=True, eq=False, slots=True)
class Ragged(Value):
    """rows: `[n, w]` or `[n]` for each of the caller's rows, `[h, n, n]` of attention.

    has_own_lengths: whether n is another number than that of the row's tokens.
    """

    rows: list[Array]
    has_own_lengths: bool = False
    is_by_token: ClassVar[bool] = True

    @property
    def joined(self) -> Array:
        """Rows end to end; attention, whose rows differ in two axes, as a list of its numbers."""
        return np.concatenate([row.reshape(-1) if row.ndim > 2 else row for row in self.rows])

    def for_json(self) -> list[Array]:
        return self.rows

    def tensors(self, name: str) -> dict[str, Array]:
        lengths = {f"{name}.lengths": _lengths(self.rows)} if self.has_own_lengths else {}
        return {name: self.joined, **lengths}

    def halved(self, name: str) -> "Ragged":
        return Ragged([_half(name, row) for row in self.rows], self.has_own_lengths)

    def without_width(self) -> "Ragged":
        """`[n, 1]` of each row -> `[n]`."""
        return Ragged([row[:, 0] for row in self.rows], self.has_own_lengths)


ByRow = Dense | Ragged  # numbers of each of the caller's rows


def by_token(padding: Padding, values: Array, fill: float = 0.0) -> ByRow:
    """Values of each token `[num_tokens, w]`, with `fill` at pads."""
    if padding.mask is None:
        return Ragged(padding.split(values))
    return Dense(padding.scatter(values, fill))


@dataclass(frozen=True, eq=False, slots=True)
class Parts(Value):
    """Several values of one output, by name."""

    parts: Mapping[str, ByRow]

    def for_json(self) -> dict[str, Any]:
        return {part: value.for_json() for part, value in self.parts.items()}

    def tensors(self, name: str) -> dict[str, Array]:
        tensors: dict[str, Array] = {}
        for part, value in self.parts.items():
            tensors |= value.tensors(f"{name}.{part}")
        return tensors


@dataclass(frozen=True, eq=False, slots=True)
class TopK(Value):
    """The k likeliest tokens or labels, likeliest first, of each token or of each row; NO_TOKEN and
    0.0 at pads."""

    token_ids: ByRow
    logprobs: ByRow

    def for_json(self) -> dict[str, Any]:
        """null at pads."""
        return {
            "token_ids": self._with_null(self.token_ids),
            "logprobs": self._with_null(self.logprobs),
        }

    def _with_null(self, values: ByRow) -> Any:
        if not self.token_ids.is_by_token:
            return _or_null(self.token_ids.joined, values.joined)
        rows = zip(self.token_ids.rows, values.rows, strict=True)
        return [_or_null(token_ids, numbers) for token_ids, numbers in rows]

    def tensors(self, name: str) -> dict[str, Array]:
        return {
            **self.token_ids.tensors(f"{name}.token_ids"),
            **self.logprobs.tensors(f"{name}.logprobs"),
        }


def _or_null(token_ids: Ints, values: Array) -> Any:
    """values `[n, k]`, null in place of those k where token_ids has none."""
    is_real = token_ids[:, 0] != NO_TOKEN
    if is_real.all():
        return values
    return [value if real else None for value, real in zip(values, is_real.tolist(), strict=True)]


@dataclass(frozen=True, eq=False, slots=True)
class SparseVectors(Value):
    """For each of the caller's rows the entries that are not zero; none for a row of pads only."""

    indices: list[Ints]  # ascending
    values: list[Floats]

    def for_json(self) -> list[Any]:
        entries = zip(self.indices, self.values, strict=True)
        return [{"indices": indices, "values": values} for indices, values in entries]

    def tensors(self, name: str) -> dict[str, Array]:
        return {
            f"{name}.indices": np.concatenate(self.indices),
            f"{name}.values": np.concatenate(self.values),
            f"{name}.lengths": _lengths(self.indices),
        }


@dataclass(frozen=True, eq=False, slots=True)
class ByLayer(Value):
    """values: one for each of the layers."""

    layers: Sequence[int]
    values: list[ByRow]

    def for_json(self) -> list[Any]:
        return [value.for_json() for value in self.values]

    def tensors(self, name: str) -> dict[str, Array]:
        tensors: dict[str, Array] = {}
        for layer, value in zip(self.layers, self.values, strict=True):
            tensors |= value.tensors(f"{name}.{layer}")
        return tensors

    def halved(self, name: str) -> "ByLayer":
        return ByLayer(self.layers, [value.halved(name) for value in self.values])


def _lengths(rows: Sequence[Array]) -> Ints:
    return np.array(list(map(len, rows)), np.int64)


def _half(name: str, values: Floats) -> Array:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16, copy=False)
    # a device has halved finite values
    beyond = np.isinf(half) & (half is values or np.isfinite(values))
    if beyond.any():
        raise InvalidInput(
            f"{name} has the value {values[beyond][0]}, the limit of float16 is"
            f' {np.finfo(np.float16).max:.0f}: send "dtype": "float32"',
            param="dtype",
        )
    return half
