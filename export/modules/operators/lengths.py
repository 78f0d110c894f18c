"""Whether a forward is the same for sequences of all lengths: it runs on each of them.

What the code makes of a length alone, such as masks, places and branches, is as it is. Large
rows are not computed: an operator on them makes a tensor of the right shape.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from addnorm.export.modules.operators.trace import LOOKUPS, authors_line

SMALL = 100_000  # numbers, that are computed sooner than a shape is derived

OF_NUMBERS = (*LOOKUPS, "_local_scalar_dense", "equal")  # what they make is not of shapes alone


class Call(NamedTuple):
    """An operator on rows or weights. numbers: what it is called with beside tensors. given:
    tensors of the length alone."""

    op: str
    line: str
    numbers: tuple[Any, ...]
    given: tuple[Tensor, ...]

    def __str__(self) -> str:
        return f"{self.op}{f' at {self.line}' if self.line else ''}"


class Run(TorchDispatchMode):
    """One forward without numbers. calls: in order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        # by id() of a tensor, which is kept alive
        self._unknown: dict[int, Tensor] = {id(x): x for x in module.parameters()}
        self._made: dict[Any, Any] = {}  # layers are alike

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        flat = [*_flat((args, [*kwargs.values()]))]
        tensors = [x for x in flat if isinstance(x, Tensor)]
        if not any(id(x) in self._unknown for x in tensors):
            return func(*args, **kwargs)
        numbers = tuple(x for x in flat if not isinstance(x, Tensor))
        given = tuple(x.clone() for x in tensors if id(x) not in self._unknown)
        op = func.overloadpacket.__name__
        self.calls.append(Call(op, authors_line(), numbers, given))
        if sum(x.numel() for x in tensors) < SMALL or op in OF_NUMBERS:
            result = func(*args, **kwargs)
        else:
            key = func, numbers, tuple((x.shape, x.stride(), x.dtype) for x in tensors)
            if key not in self._made:
                self._made[key] = func(*tree_map(_meta, args), **tree_map(_meta, kwargs))
            result = tree_map(_zeros, self._made[key])
            if func._schema.is_mutable:
                result = args[0]
        self._unknown |= {id(x): x for x in _flat([result]) if isinstance(x, Tensor)}
        return result


def _flat(found: Any) -> Iterator[Any]:
    for x in found:
        if isinstance(x, list | tuple):
            yield from _flat(x)
        else:
            yield x


def _meta(found: Any) -> Any:
    if not isinstance(found, Tensor):
        return torch.device("meta") if isinstance(found, torch.device) else found
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="meta")


def _zeros(found: Any) -> Any:
    if not isinstance(found, Tensor):
        return found
    size = 1 + sum((n - 1) * step for n, step in zip(found.shape, found.stride(), strict=True))
    return torch.zeros(size, dtype=found.dtype).as_strided(found.shape, found.stride())


def unlike(run: Callable[[int], list[Call]], longest: int) -> Iterator[tuple[int, str]]:
    """Lengths whose forward is another than that of the longest, and where they part. run: what a
    forward of so many tokens calls."""
    reference = run(longest)
    second = run(longest - 1) if longest > 1 else reference
    for length in range(1, longest):
        calls = run(length)
        if where := _parting(calls, reference, second, longest - length):
            yield length, where


def _parting(calls: list[Call], longest: list[Call], second: list[Call], less: int) -> str:
    """ "" where they are the same, but for what changes evenly with the length."""
    for ours, theirs, near in zip_longest(calls, longest, second):
        if not ours or not theirs or (ours.op, ours.line) != (theirs.op, theirs.line):
            return str(ours or theirs)
        steps = (
            near.numbers if near and len(near.numbers) == len(theirs.numbers) else theirs.numbers
        )
        if not _are_even(ours.numbers, theirs.numbers, steps, less):
            return str(ours)
        if len(ours.given) != len(theirs.given):
            return str(ours)
        if not all(_begins(x, y) for x, y in zip(ours.given, theirs.given, strict=True)):
            return str(ours)
    return ""


def _are_even(ours: Any, theirs: Any, near: Any, less: int) -> bool:
    """Whether numbers are those of the longest, or change by as much for each token."""
    if len(ours) != len(theirs):
        return False
    for x, y, z in zip(ours, theirs, near, strict=True):
        is_number = all(isinstance(n, int | float) for n in (x, y, z))
        if x != (y - less * (y - z) if is_number and y != z else y):
            return False
    return True


def _begins(short: Tensor, long: Tensor) -> bool:
    """Whether a tensor is what another begins with."""
    if short.dim() != long.dim() or short.dtype != long.dtype:
        return False
    part = long[tuple(slice(size) for size in short.shape)]
    return part.shape == short.shape and bool(torch.equal(part, short))
