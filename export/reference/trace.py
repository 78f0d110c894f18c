"""A forward as it computes: PyTorch's operators in order, with the values that went through them.

Names, classes and control flow of the code leave no mark here. Parts of it can be run again.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from addnorm.export.reference.original import OriginalError

# their values do not depend on those of what they are called with
SHAPE_ONLY = ("empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros",
              "ones_like", "zeros_like")  # fmt: skip
LOOKUPS = ("embedding", "index", "index_select", "gather")
# functions of tensors that answer with no tensor: of their shapes and kinds, not of their numbers
OF_SHAPES = ("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset",
             "__len__", "is_contiguous", "is_floating_point", "is_complex", "is_same_size",
             "is_signed", "is_inference", "get_device", "element_size", "type", "result_type",
             "can_cast", "broadcast_shapes", "__hash__", "register_hook", "requires_grad_",
             "has_names", "is_conj", "is_neg")  # fmt: skip
TORCH, HERE = str(Path(torch.__file__).parent), str(Path(__file__).parent)
OURS = str(Path(HERE).parent)


class Enough(Exception):
    """All that was wanted of this forward is there."""


@dataclass(eq=False, repr=False)  # they lead to each other
class Value:
    """A tensor that went through a forward.

    of_ids: it depends on the token ids. of_rows: on what was looked up for them, so a trained
    number reaches it by way of a token.
    """

    number: int
    tensor: Tensor
    step: "Step | None" = None  # that made it; None: a weight, a buffer, an input
    of_ids: bool = False
    of_rows: bool = False
    readers: list["Step"] = field(default_factory=list)
    version: int = 0

    @property
    def op(self) -> str:
        return self.step.op if self.step else ""


@dataclass(eq=False, repr=False)  # they lead to each other
class Step:
    """An operator's call; `Value`s stand where its tensors stood."""

    function: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    line: str = ""  # of the author's source
    values: list[Value] = field(default_factory=list)  # that it made
    parts: set[str] = field(default_factory=set)  # that a trial found it to belong to

    @property
    def op(self) -> str:
        return str(self.function.overloadpacket.__name__).removesuffix("_")

    @property
    def where(self) -> str:
        return f", at {self.line}" if self.line else ""

    @property
    def inputs(self) -> list[Value]:
        flat, _ = tree_flatten((self.arguments, self.options))
        return [value for value in flat if isinstance(value, Value)]

    @property
    def rows(self) -> list[Value]:
        """Inputs that depend on tokens' rows."""
        return [value for value in self.inputs if value.of_rows]

    @property
    def constants(self) -> list[Value]:
        return [value for value in self.inputs if not value.of_rows]


class Left(NamedTuple):
    """Numbers of a tensor that Python got, so that what it makes of them cannot be followed."""

    name: str
    value: Value
    line: str


class Trace(TorchDispatchMode):
    """One forward. values and steps: in order; the same code makes the same numbers each time."""

    def __init__(
        self,
        ids: Tensor,
        types: Tensor | None = None,
        enough: int | None = None,
        constants: Collection[int] = (),
    ) -> None:
        """enough: the number of the value after which the forward need not go on. constants:
        numbers of values that are made of ids, and are the same for all that are served."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self.answer: Any = None  # as the module gives it
        self._known: dict[int, Value] = {}  # by id() of a tensor, which the value keeps alive
        self._written: dict[int, int] = {}  # how often, by storage
        self._tainted: set[int] = set()  # storages that rows were written into
        self._alive: list[Tensor] = []  # so that no other tensor gets the id() of one
        self._enough, self._constants = enough, constants
        self.left: list[Left] = []
        self.ids, self.types = (None if x is None else self._new(x) for x in (ids, types))
        for value in (self.ids, self.types):
            if value:
                value.of_ids = True

    @property
    def length(self) -> int:
        """Tokens of the sequence."""
        assert self.ids
        return self.ids.tensor.numel()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        arguments, options = tree_map(self.value_of, (args, kwargs))
        step = Step(func, arguments, options, authors_line())
        destinations = [args[0]] if func._schema.is_mutable and isinstance(args[0], Tensor) else []
        for tensor in destinations:
            self._keep(tensor)
        output = func(*args, **kwargs)
        for tensor in destinations:
            self._written[_place(tensor)] = self._written.get(_place(tensor), 0) + 1
            if step.rows:
                self._tainted.add(_place(tensor))
        for value in step.inputs:
            value.readers.append(step)
        of_ids = step.op not in SHAPE_ONLY and any(value.of_ids for value in step.inputs)
        is_lookup = step.op in LOOKUPS and of_ids and not step.inputs[0].of_ids
        of_rows = bool(step.rows) or (is_lookup and step.inputs[0].tensor.is_floating_point())
        for tensor in tree_flatten(output)[0]:
            if isinstance(tensor, Tensor):
                value = self._new(tensor, step)
                if value.number not in self._constants:
                    value.of_ids, value.of_rows = of_ids, of_rows
                step.values.append(value)
        self.steps.append(step)
        if not step.values and not step.op.startswith("sym_"):
            self.leave(step.op, step.inputs)
        if self._enough is not None and len(self.values) > self._enough:
            raise Enough
        return output

    def _new(self, tensor: Tensor, step: Step | None = None) -> Value:
        value = Value(len(self.values), tensor, step, version=self._written.get(_place(tensor), 0))
        self.values.append(value)
        self._known[id(tensor)] = value
        return value

    def value_of(self, argument: Any) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        value = self._known.get(id(argument))
        if value is None:
            value = self._new(argument)
        elif value.version != self._written.get(_place(argument), 0):  # written by another name
            is_row = value.of_rows or _place(argument) in self._tainted
            of_ids = value.of_ids
            value = self._new(argument)
            value.of_ids, value.of_rows = of_ids, is_row
        return value

    def _keep(self, tensor: Tensor) -> None:
        """Copies what is about to be written over."""
        for value in self.values:
            if _place(value.tensor) == _place(tensor):
                self._alive.append(value.tensor)
                value.tensor = value.tensor.clone()

    def leave(self, name: str, values: Sequence[Value]) -> None:
        """Notes that Python got numbers of these."""
        line = authors_line()
        self.left += [Left(name, value, line) for value in values if value.of_ids or value.of_rows]


class Calls(TorchFunctionMode):
    """Sees the functions that no operator is made of, such as `tolist` and `numpy`."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "__get__" or name in OF_SHAPES or output is None:
            return output
        if not any(isinstance(x, Tensor) for x in tree_flatten(output)[0]):
            arguments, _ = tree_flatten((args, kwargs))
            values = [self._trace.value_of(x) for x in arguments if isinstance(x, Tensor)]
            self._trace.leave(name, values)
        return output


def authors_line() -> str:
    """`file:line` of the code that is neither PyTorch's nor ours, the innermost; "" if there is
    none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((TORCH, HERE, "<")):
            return "" if file.startswith(OURS) else f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as the operators that it is made of; on one thread, since sequences are short."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.set_num_threads(threads)


def run_again(
    targets: Sequence[Value], replacements: Mapping[Value, Tensor], exact: bool = True
) -> list[Tensor]:
    """Runs again what lies between the values with replacements and the targets. All others are as
    they were. exact: in float64."""
    tensors = {value: _wide(tensor) if exact else tensor for value, tensor in replacements.items()}

    def argument(entry: Any) -> Any:
        if not isinstance(entry, Value):
            return torch.float64 if exact and entry is torch.float32 else entry
        if (tensor := tensors.get(entry)) is not None:
            return tensor.clone()  # an operator may write into it
        return _wide(entry.tensor) if exact else entry.tensor

    for step in steps_between(targets, replacements):
        arguments, options = tree_map(argument, (step.arguments, dict(step.options)))
        output = step.function(*arguments, **options)
        outputs = [x for x in tree_flatten(output)[0] if isinstance(x, Tensor)]
        tensors.update(zip(step.values, outputs, strict=True))
    return [tensors.get(value, value.tensor) for value in targets]


def steps_between(targets: Sequence[Value], replacements: Mapping[Value, Tensor]) -> list[Step]:
    """Steps that a target needs and that depend on the replacements, in order."""
    depends: dict[Value, bool] = dict.fromkeys(replacements, True)
    todo, order = list(targets), {}
    while todo:
        value = todo[-1]
        if value in depends or value.step is None:
            depends.setdefault(value, False)
            todo.pop()
            continue
        inputs = value.step.inputs
        if open_ones := [x for x in inputs if x not in depends]:
            todo += open_ones
            continue
        todo.pop()
        depends[value] = any(depends[x] for x in inputs)
        if depends[value]:
            order[value.step] = value.number
    return sorted(order, key=order.__getitem__)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class Unrecognized(ValueError):
    """A part that no `Transformer` has, or whose like was not found. Says where it runs."""

    def __init__(self, reason: str, value: Value | None = None) -> None:
        super().__init__(reason + (value.step.where if value is not None and value.step else ""))


def trace_forward(
    ask: Callable[..., Any],
    ids: Tensor,
    types: Tensor | None = None,
    enough: int | None = None,
    constants: Collection[int] = (),
) -> Trace:
    """OriginalError if the module fails.

    Before, it is asked for one token, so that it keeps nothing of this length, such as a mask."""
    with suppress(OriginalError):
        ask(ids[:, :1], None if types is None else types[:, :1])
    trace = Trace(ids, types, enough, constants)
    with suppress(Enough), trace, Calls(trace):
        trace.answer = ask(ids, types)
    return trace
