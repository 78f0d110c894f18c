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
    which weights, and what earlier calls made. length_tensors: tensors of the length alone."""

    op: str
    numbers: tuple[Any, ...]
    tensors: tuple[int, ...]
    length_tensors: tuple[Tensor, ...]


class Run(TorchDispatchMode):
    """One forward without numbers. calls: in order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        # what is not of the length alone, by id(); kept alive, so that no other tensor gets the id
        self._alive: list[Any] = [*module.parameters()]
        self._unknown = {id(x): number for number, x in enumerate(self._alive)}
        self._meta_outputs: dict[Any, Any] = {}  # layers are alike

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        numbers: list[Any] = []
        tensor_arguments: list[Tensor] = []
        for x in _flatten((*args, *kwargs.values())):
            tensor_arguments.append(x) if isinstance(x, Tensor) else numbers.append(x)
        numbers_by_id = self._unknown
        tensors = tuple([numbers_by_id[id(x)] for x in tensor_arguments if id(x) in numbers_by_id])
        if not tensors:
            return func(*args, **kwargs)
        length_tensors = tuple([x.clone() for x in tensor_arguments if id(x) not in numbers_by_id])
        if func not in _KINDS:
            _KINDS[func] = str(func.overloadpacket.__name__), bool(func._schema.is_mutable)
        op, is_mutable = _KINDS[func]
        self.calls.append(Call(op, tuple(numbers), tensors, length_tensors))
        if op in OF_NUMBERS or sum([x.numel() for x in tensor_arguments]) < SMALL:
            output = func(*args, **kwargs)
        elif is_mutable:
            output = args[0]
        else:
            key = (
                func,
                tuple(numbers),
                tuple([(x.shape, x.stride(), x.dtype) for x in tensor_arguments]),
            )
            if key not in self._meta_outputs:
                self._meta_outputs[key] = func(*tree_map(_meta, args), **tree_map(_meta, kwargs))
            output = _as_real(self._meta_outputs[key])
        for x in (output,) if isinstance(output, Tensor) else _flatten((output,)):
            if isinstance(x, Tensor):
                numbers_by_id[id(x)] = len(self._alive)
                self._alive.append(x)
        return output


def _flatten(values: Sequence[Any]) -> list[Any]:
    flat = []
    for x in values:
        if isinstance(x, list | tuple):
            flat += _flatten(x)
        else:
            flat.append(x)
    return flat


def _meta(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return torch.device("meta") if isinstance(argument, torch.device) else argument
    return torch.empty_strided(
        argument.shape, argument.stride(), dtype=argument.dtype, device="meta"
    )


def _as_real(output: Any) -> Any:
    """Tensors of these shapes, with any numbers."""
    if isinstance(output, Tensor):
        return torch.empty_strided(output.shape, output.stride(), dtype=output.dtype)
    return type(output)(map(_as_real, output)) if type(output) in (list, tuple) else output


def unlike_lengths(run: Callable[[int], list[Call]], longest: int) -> Iterator[int]:
    """Lengths whose forward is another than that of the longest. run: what a forward of so many
    tokens calls."""
    reference = run(longest)
    second = run(longest - 1) if longest > 1 else reference
    for length in range(1, longest):
        if not _are_alike(run(length), reference, second, longest - length):
            yield length


def _are_alike(calls: list[Call], longest: list[Call], second: list[Call], less: int) -> bool:
    """True if they are the same, but for what changes evenly with the length."""
    if len(calls) != len(longest):
        return False
    for number, (call, longest_call) in enumerate(zip(calls, longest, strict=True)):
        near = second[number] if number < len(second) else longest_call
        if call[:3] != longest_call[:3] and (
            (call.op, call.tensors) != (longest_call.op, longest_call.tensors)
            or not _are_even(call.numbers, longest_call.numbers, near.numbers, less)
        ):
            return False
        if len(call.length_tensors) != len(longest_call.length_tensors) or not all(
            map(_begins, call.length_tensors, longest_call.length_tensors)
        ):
            return False
    return True


def _are_even(numbers: Any, longest_numbers: Any, near: Any, less: int) -> bool:
    """True if numbers are those of the longest, or change by as much for each token."""
    if len(numbers) != len(longest_numbers) or len(near) != len(longest_numbers):
        return False
    for x, y, z in zip(numbers, longest_numbers, near, strict=True):
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
