"""Follows for all ids at once what a forward makes of them beside reading their rows.

Every operator on ids runs again on the whole vocabulary, so an id that is told from others shows
however the code says it. Ids may be read in a table as they are. What is the same for all ids but a
few is a constant wherever these few are not. Anything else is refused.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from addnorm.export.modules.operators.explained import VIEWS
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.modules.operators.trace import LOOKUPS, SHAPE_ONLY, Step, Trace, Value

NUM_TOLD = 16  # ids that may be told from all others; more are no few
NUM_SHOWN = 3  # of them
CALLED = {"_local_scalar_dense": "item()", "__bool__": "bool()"}


class Told:
    """ids: those that are told from others, with the step that does. constants: values that are the
    same for all sequences without them."""

    def __init__(self, trace: Trace, vocab_size: int) -> None:
        """Unrecognized for an operator that makes something else of ids."""
        assert trace.ids
        self._length = trace.length
        self.ids: dict[int, Step] = {}
        self.constants: set[Value] = set()
        self._all = torch.arange(vocab_size)
        self._order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0))
        # of a value, its number for each id, and which token each of its entries is of
        self._live: dict[Value, tuple[Tensor | None, Tensor]] = {}
        for given, table in ((trace.ids, self._all), (trace.types, None)):
            if given:
                places = torch.arange(given.tensor.numel()).view(given.tensor.shape)
                self._live[given] = table, places
        for step in trace.steps:
            if any(x.of_ids and not x.of_rows for x in step.inputs):
                self._follow(step)
        for name, value, line in trace.left:
            if value not in self.constants:
                raise Unrecognized(
                    f"{CALLED.get(name, name)}{f', at {line},' if line else ''} gives Python"
                    f" {'activations' if value.of_rows else 'token ids'}: what the code does with"
                    " them, such as a branch, cannot be followed. Leave it out"
                )

    def _follow(self, step: Step) -> None:
        given = [x for x in step.inputs if x.of_ids and not x.of_rows]
        live = [x for x in given if x in self._live]
        if any(x not in self._live and x not in self.constants for x in given):
            raise _refusal(step, "reads ids, a part of which was written in place")
        if not live:
            self.constants.update(x for x in step.values if not x.of_rows)
        elif step.op in LOOKUPS and step.values[0].of_rows and step.inputs[0] not in live:
            # a table is read at the ids themselves
            for numbers, _ in (self._live[x] for x in live):
                if numbers is None:
                    continue
                other = (numbers.double() != self._all.double()).nonzero().flatten().tolist()
                if len(numbers) == len(other):
                    why = "a table is read at numbers that are no token ids"
                    raise Unrecognized(why, step.values[0])
                if other:
                    read = ", ".join(f"{x} as {numbers[x]:g}" for x in other[:NUM_SHOWN])
                    raise _refusal(step, f"reads ids as others: {read}")
        elif step.rows:
            raise _refusal(step, "computes with activations and the numbers of token ids")
        elif step.op in VIEWS:
            table, places = self._live[live[0]]
            for made, tensor in zip(step.values, _run(step, {live[0]: places}), strict=True):
                self._live[made] = table, tensor
        elif step.op not in SHAPE_ONLY:
            self._tell(step, live)

    def _tell(self, step: Step, live: list[Value]) -> None:
        """An operator on each id by itself."""
        tables = {x: self._live[x][0] for x in live}
        places = [self._live[x][1].flatten() for x in live]
        known = {x: table for x, table in tables.items() if table is not None}
        alone = len(known) == len(live) and all(torch.equal(places[0], x) for x in places)
        found = self._of_each(step, known, len(places[0])) if alone else None
        if found is None:
            raise _refusal(step, "makes something of token ids that cannot be followed")
        numbers, of_each = found.unique(return_inverse=True)
        counts = of_each.bincount(minlength=len(numbers))
        # of equal shares the one of the highest id
        usual = of_each[-1] if counts[of_each[-1]] == counts.max() else counts.argmax()
        others = (of_each != usual).nonzero().flatten().tolist()
        (made,) = step.values
        if len(others) <= NUM_TOLD and len(others) < len(found):
            if others and len(places[0].unique()) < self._length:
                raise _refusal(step, f"tells ids from others at some places: {others[:NUM_SHOWN]}")
            self.ids |= {index: self.ids.get(index, step) for index in others}
            self.constants.add(made)
        else:
            self._live[made] = found, self._live[live[0]][1]

    def _of_each(self, step: Step, tables: dict[Value, Tensor], length: int) -> Tensor | None:
        """`[vocab_size]`, or None for an operator on more than one id."""
        given = dict(tables)
        if step.op not in LOOKUPS:
            for x in step.inputs:  # the same number for all tokens
                flat = x.tensor.flatten()
                if x not in tables and len(flat) in (1, length) and bool((flat == flat[0]).all()):
                    given[x] = flat[0]
        try:
            (found,) = _run(step, given)
            turned = {x: table[self._order] for x, table in tables.items()}
            (again,) = _run(step, {**given, **turned})
        except Exception:  # shapes that do not fit: it is of the sequence
            return None
        if found.shape != self._all.shape or not torch.equal(found[self._order], again):
            return None
        return found


def _run(step: Step, given: dict[Value, Tensor]) -> list[Tensor]:
    def argument(found: Any) -> Any:
        return given.get(found, found.tensor).clone() if isinstance(found, Value) else found

    arguments, options = tree_map(argument, (step.arguments, dict(step.options)))
    result = step.function(*arguments, **options)
    return [x for x in tree_flatten(result)[0] if isinstance(x, Tensor)]


def _refusal(step: Step, why: str) -> Unrecognized:
    return Unrecognized(f"{step.op}{step.where} {why}. Leave it out")
