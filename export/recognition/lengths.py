"""Finds lengths of sequences whose forward is another: it runs on each of them.

What the code makes of a length alone, such as masks, places and branches, is as it is. Large
rows are not computed: an operator on them makes a tensor of the right shape.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from addnorm.export.recognition.explained import VIEWS
from addnorm.export.reference.trace import LOOKUPS

SMALL = 100_000  # numbers, that are computed sooner than a shape is derived

# computed: views, which cost nothing, and what is not of shapes alone
OF_NUMBERS = {*VIEWS, *LOOKUPS, "_local_scalar_dense", "equal"} - {"clone", "reshape"}
_KINDS: dict[Any, tuple[str, bool]] = {}


class Call(NamedTuple):
    """An operator on rows or weights. numbers: what it is called with beside tensors. tensors:
    which weights, and what earlier calls made. given: tensors of the length alone."""

    op: str
    numbers: tuple[Any, ...]
    tensors: tuple[int, ...]
    given: tuple[Tensor, ...]


class Run(TorchDispatchMode):
    """One forward without numbers. calls: in order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        # what is not of the length alone, by id(); kept alive, so that no other tensor gets the id
        self._alive: list[Any] = [*module.parameters()]
        self._unknown = {id(x): number for number, x in enumerate(self._alive)}
        self._made: dict[Any, Any] = {}  # layers are alike

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        numbers: list[Any] = []
        found: list[Tensor] = []
        for x in _flatten((*args, *kwargs.values())):
            found.append(x) if isinstance(x, Tensor) else numbers.append(x)
        known = self._unknown
        tensors = tuple([known[id(x)] for x in found if id(x) in known])
        if not tensors:
            return func(*args, **kwargs)
        given = tuple([x.clone() for x in found if id(x) not in known])
        if func not in _KINDS:
            _KINDS[func] = str(func.overloadpacket.__name__), bool(func._schema.is_mutable)
        op, is_mutable = _KINDS[func]
        self.calls.append(Call(op, tuple(numbers), tensors, given))
        if op in OF_NUMBERS or sum([x.numel() for x in found]) < SMALL:
            result = func(*args, **kwargs)
        elif is_mutable:
            result = args[0]
        else:
            key = func, tuple(numbers), tuple([(x.shape, x.stride(), x.dtype) for x in found])
            if key not in self._made:
                self._made[key] = func(*tree_map(_meta, args), **tree_map(_meta, kwargs))
            result = _as_real(self._made[key])
        for x in (result,) if isinstance(result, Tensor) else _flatten((result,)):
            if isinstance(x, Tensor):
                known[id(x)] = len(self._alive)
                self._alive.append(x)
        return result


def _flatten(found: Sequence[Any]) -> list[Any]:
    flat = []
    for x in found:
        if isinstance(x, list | tuple):
            flat += _flatten(x)
        else:
            flat.append(x)
    return flat


def _meta(found: Any) -> Any:
    if not isinstance(found, Tensor):
        return torch.device("meta") if isinstance(found, torch.device) else found
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="meta")


def _as_real(found: Any) -> Any:
    """Tensors of these shapes, with any numbers."""
    if isinstance(found, Tensor):
        return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype)
    return type(found)(map(_as_real, found)) if type(found) in (list, tuple) else found


def unlike_lengths(run: Callable[[int], list[Call]], longest: int) -> Iterator[int]:
    """Lengths whose forward is another than that of the longest. run: what a forward of so many
    tokens calls."""
    reference = run(longest)
    second = run(longest - 1) if longest > 1 else reference
    for length in range(1, longest):
        if not _are_alike(run(length), reference, second, longest - length):
            yield length


def _are_alike(calls: list[Call], longest: list[Call], second: list[Call], less: int) -> bool:
    """Whether they are the same, but for what changes evenly with the length."""
    if len(calls) != len(longest):
        return False
    for number, (ours, theirs) in enumerate(zip(calls, longest, strict=True)):
        near = second[number] if number < len(second) else theirs
        if ours[:3] != theirs[:3] and (
            (ours.op, ours.tensors) != (theirs.op, theirs.tensors)
            or not _are_even(ours.numbers, theirs.numbers, near.numbers, less)
        ):
            return False
        if len(ours.given) != len(theirs.given) or not all(map(_begins, ours.given, theirs.given)):
            return False
    return True


def _are_even(ours: Any, theirs: Any, near: Any, less: int) -> bool:
    """True if numbers are those of the longest, or change by as much for each token."""
    if len(ours) != len(theirs) or len(near) != len(theirs):
        return False
    for x, y, z in zip(ours, theirs, near, strict=True):
        if x != y and (
            not all(isinstance(n, int | float) for n in (x, y, z)) or x != y - less * (y - z)
        ):
            return False
    return True


def _begins(short: Tensor, long: Tensor) -> bool:
    """True if the long tensor begins with the short one."""
    if short.dim() != long.dim() or short.dtype != long.dtype:
        return False
    part = long[tuple(slice(size) for size in short.shape)]
    return part.shape == short.shape and bool(torch.equal(part, short))
