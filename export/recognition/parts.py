"""The operators of a trace -> the parts of a transformer, by what leads from one to the next.

Landmarks are what rows go through: lookups, matrix products, sums of two streams. What lies between
two landmarks is a function of one of them, and `trial` says which.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from addnorm.export.reference.trace import LOOKUPS, Step, Trace, Unrecognized, Value

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
JOINS = ("cat", "stack")
Kind = Literal["lookup", "linear", "add", "shift", "product", "join"]


@dataclass(eq=False, repr=False)  # they lead to each other
class Landmark:
    """kind "linear": weight `[in, out]` is multiplied with rows `[.., in]` from the right;
    "shift": a constant of every token is added; "product": of two streams, as in attention."""

    kind: Kind
    value: Value
    inputs: tuple[Value, ...] = ()
    weight: Value | None = None
    bias: Value | None = None

    @property
    def width(self) -> int:
        return self.value.tensor.shape[-1]


@dataclass(eq=False, repr=False)  # they lead to each other
class Parts:
    """The parts of one trace. origins: the landmark that each value with rows is a function of."""

    trace: Trace
    origins: dict[Value, Landmark] = field(default_factory=dict)
    _same: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Unrecognized for an operator that mixes tokens."""
        for step in self.trace.steps:
            if not step.rows and not self._is_lookup(step):
                continue
            landmark = self._landmark(step)
            for value in step.values:
                self.origins[value] = landmark or self.origin(step.rows[0])

    def original(self, value: Value) -> Value:
        """The first value with these numbers in this order: without views, dropout and the like."""
        if value not in self._same:
            earliest, rows = value, {*value.step.rows} if value.step else set()
            while len(rows) == 1:
                (row,) = rows
                values, row_values = earliest.tensor.reshape(-1), row.tensor.reshape(-1)
                if len(values) != len(row_values) or not torch.equal(values, row_values):
                    break
                earliest, rows = row, {*row.step.rows} if row.step else set()
            self._same[value] = earliest
        return self._same[value]

    def origin(self, value: Value) -> Landmark:
        if value not in self.origins:
            raise Unrecognized("a part of a tensor is written in place, which cannot be traced")
        return self.origins[value]

    def _landmark(self, step: Step) -> Landmark | None:
        """None where the step only continues what an earlier one began."""
        if self._is_lookup(step):
            return Landmark("lookup", step.values[0], tuple(step.inputs[1:]), step.inputs[0])
        if step.op in PRODUCTS:
            return self._product(step)
        value = step.values[0]
        origins = {self.origin(row) for row in step.rows}
        if len(origins) == 1:
            return self._with_bias(step, *origins) or self._shift(step, *origins)
        if step.op in JOINS:
            return Landmark("join", value, tuple(step.rows))
        if step.op == "add" and step.options.get("alpha", 1) == 1 and len(step.rows) == 2:
            return Landmark("add", value, tuple(step.rows))
        if step.op == "mul":
            raise Unrecognized("two streams are multiplied, as in a gated feed-forward", value)
        raise Unrecognized(f"{step.op} joins {len(origins)} streams", value)

    def _product(self, step: Step) -> Landmark:
        *addends, left_factor, right_factor = step.inputs
        value = step.values[0]
        if left_factor.of_rows and right_factor.of_rows:
            return Landmark("product", value, (left_factor, right_factor))
        if right_factor.of_rows or right_factor.of_ids or any(x.of_rows for x in addends):
            raise Unrecognized("rows are multiplied with a matrix from the left", value)
        if right_factor.tensor.dim() != 2:
            raise Unrecognized("rows are multiplied with several matrices at once", value)
        if addends and addends[0].tensor.numel() != right_factor.tensor.shape[-1]:
            raise Unrecognized(f"{step.op} adds more than a bias", value)
        return Landmark(
            "linear", value, (left_factor,), right_factor, addends[0] if addends else None
        )

    def _with_bias(self, step: Step, origin: Landmark) -> Landmark | None:
        """A bias that an operator of its own adds to a matrix product."""
        adds = step.op == "add" and origin.kind == "linear" and origin.bias is None
        if not adds or self.original(step.rows[0]) is not origin.value or not step.constants:
            return None
        bias = step.constants[0]
        if bias.of_ids or bias.tensor.numel() != origin.width or origin.width == 1:
            return None
        return Landmark("linear", step.values[0], origin.inputs, origin.weight, bias)

    def _shift(self, step: Step, origin: Landmark) -> Landmark | None:
        """A constant that is added to each token, by its place."""
        if step.op != "add" or not step.constants or origin.kind == "product":
            return None
        shift, width = step.constants[0], step.values[0].tensor.shape[-1]
        if shift.tensor.dim() < 2 or shift.tensor.numel() != self.trace.length * width:
            return None
        if shift.of_ids:
            raise Unrecognized(
                "the rows that are added to tokens depend on their ids", step.values[0]
            )
        return Landmark("shift", step.values[0], (step.rows[0],), shift)

    def _is_lookup(self, step: Step) -> bool:
        return (
            step.op in LOOKUPS
            and step.values[0].of_rows
            and not any(x.of_rows for x in step.inputs)
        )


def roots(parts: Parts, value: Value) -> Iterator[Landmark]:
    """The landmarks that a value is of, those behind a join one by one."""
    landmark = parts.origin(value)
    if landmark.kind != "join":
        yield landmark
        return
    for row in landmark.inputs:
        yield from roots(parts, row)
