"""Calls of a module that people wrote: one sequence at a time, with a mask and types if it needs
them."""

import copy
import inspect
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from addnorm.export.reference.original import Array, OriginalError, as_found
from addnorm.export.reference.trace import LOOKUPS, Enough, Unrecognized, trace_forward
from addnorm.export.wishes import UsageError

AGREES = 1e-3  # of the largest number, of float32 through all layers


class Mask(NamedTuple):
    """A mask that a module asks for: what stands in it for a real token."""

    real: int | bool
    dtype: torch.dtype


ONES = Mask(1, torch.int64)


class Asking(nn.Module):
    """ids `[1, S]`, and types if the module takes them -> what the module answers. Of a module that
    takes vectors `[1, S, width]` in place of ids. OriginalError if it fails."""

    def __init__(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        turned: bool = False,
        kinds: Sequence[str] = (),
        mask: Mask = ONES,
        num_pads: int = 0,
    ) -> None:
        """turned: the module takes `[S, 1]`. kinds: see `kinds_of`. num_pads: tokens at the end
        that its mask calls pads."""
        super().__init__()
        self.module, self.turned, self.has_types = module, turned, "types" in kinds
        self._call, self._kinds = (call,), kinds  # no submodule of its own
        self._mask, self._num_pads = mask, num_pads
        self.name = type(module).__qualname__

    def __call__(self, tokens: Tensor, types: Tensor | None = None) -> Any:
        try:
            return self.forward(tokens, types)
        except (Enough, Unrecognized):
            raise
        except Exception as error:  # it is the caller's code
            raise OriginalError(
                f"the module fails on a sequence of {tokens.shape[1]} tokens: {first_line(error)}"
            ) from error

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Any:
        extras: dict[str, Tensor] = {}  # PyTorch's exporter follows this
        if self.has_types:
            extras["types"] = torch.zeros_like(tokens) if types is None else types
        if "mask" in self._kinds:
            real, dtype = self._mask
            mask = torch.full(tokens.shape[:2], real, dtype=dtype, device=tokens.device)
            if self._num_pads:
                mask[:, -self._num_pads :] = 1 - int(real)
            extras["mask"] = mask
        inputs = [tokens, *(extras[kind] for kind in self._kinds)]
        return self._call[0](*(x.transpose(0, 1) if self.turned else x for x in inputs))


def kinds_of(call: Callable[..., Any]) -> list[str]:
    """The arguments that it needs behind ids or vectors: "mask" or "types". OriginalError if it
    asks for something else."""
    forward = call.forward if isinstance(call, nn.Module) else call
    parameters = [
        x.name for x in inspect.signature(forward).parameters.values()
        if x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    kinds = [
        "mask" if "mask" in name.lower() or "attn" in name.lower()
        else "types" if "type" in name.lower() or "seg" in name.lower()
        else ""
        for name in parameters[1:]
    ]  # fmt: skip
    if not parameters or "" in kinds or kinds.count("types") > 1:
        raise OriginalError(
            f"forward needs {', '.join(parameters) or 'no input'}: show how it is called with one"
            " sequence of token ids or vectors: reference=lambda x: module(x, ...)"
        )
    return kinds


def vocab_size(ask: Asking) -> int:
    """The rows of the smallest table that is read at the token ids. Where one is, others that are
    read at numbers made of them, such as ids % 100, set no limit. OriginalError if none is."""
    ids = torch.tensor([[0, 1, 0, 0, 1]])
    read = [
        step for step in trace_forward(ask, ids).steps
        if step.op in LOOKUPS and step.values[0].of_rows
        and torch.equal(step.inputs[-1].tensor.flatten(), ids[0])
    ]  # fmt: skip
    if not read:
        raise OriginalError(
            "no table is read at the token ids, so their number is unknown: set"
            " config={'vocab_size': N}"
        )
    storage = ids.untyped_storage().data_ptr()
    of_ids = [x for x in read if x.inputs[-1].tensor.untyped_storage().data_ptr() == storage]
    return min(len(step.inputs[0].tensor) for step in of_ids or read)


def longest(call: Callable[[int], object], limit: int) -> int:
    """The most tokens that a module takes, up to a limit. call: with so many. OriginalError if it
    does not even take one."""

    def fails(length: int) -> bool:
        try:
            call(length)
        except OriginalError:
            return True
        return False

    call(1)
    if not fails(limit):
        return limit
    return 1 + bisect_left(range(2, limit), True, key=fails)


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def unwrap(module: nn.Module) -> nn.Module:
    """The module that somebody wrote: inside what torch.compile and parallel training put around
    it. A copy of one whose tables have a max_norm, which each call applies to the rows that it
    reads: it is applied to all. UsageError, with the way on, for one without numbers of float32."""
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module) or (
        isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)
        and isinstance(inner := module.module, nn.Module)
    ):
        module = inner
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            "the operators of a TorchScript module cannot be read: export the module that it"
            " was compiled from"
        )
    name, tensors = type(module).__qualname__, [*module.parameters(), *module.buffers()]
    if any(isinstance(x, UninitializedTensorMixin) for x in tensors):
        raise UsageError(f"{name} has lazy layers without weights: call it once before the export")
    if any(x.is_meta for x in tensors):
        raise UsageError(f"{name} is on the meta device, without numbers: load its weights first")
    dtypes = {x.dtype for x in module.parameters() if x.is_floating_point()} - {torch.float32}
    if dtypes:
        types = ", ".join(sorted(str(x).removeprefix("torch.") for x in dtypes))
        raise UsageError(f"{name} has weights of {types}: call .float() on it before the export")
    for part in module.modules():
        if type(part).__module__.startswith("torch.ao."):
            raise UsageError(
                f"{name} has quantized layers ({type(part).__qualname__}): export the float32"
                " module that was quantized"
            )
    if torch.backends.mha.get_fastpath_enabled():
        for key, part in module.named_modules():
            if (share := _share_of_fast_path(part)) > AGREES:
                place = f"{name}.{key}" if key else name
                raise UsageError(
                    f"{place} ({type(part).__qualname__}): in evaluation mode PyTorch takes a"
                    " fast path, which skips this class's methods and layers, and its answer"
                    f" differs by {share:.2g} of the largest number. Call"
                    " torch.backends.mha.set_fastpath_enabled(False) in your program, and before"
                    " the export"
                )
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise UsageError(f"{name} has no forward")
    if any(getattr(part, "max_norm", None) for part in module.modules()):
        original, module = module, copy_module(module)
        if module is original:
            raise UsageError(
                f"{name} has an embedding with max_norm, which changes its table in each call,"
                " and a forward that was assigned to an instance: make it a method of the class"
            )
        for part in module.modules():
            if (limit := getattr(part, "max_norm", None)) and isinstance(part, nn.Embedding):
                ids = torch.arange(part.num_embeddings)
                torch.embedding_renorm_(part.weight.data, ids, limit, part.norm_type)
                part.max_norm = None
    return module


def _share_of_fast_path(layer: nn.Module) -> float:
    """The distance of the answer by PyTorch's fast path from the other, as a share of the largest
    number. 0 for what is none of its layers, or is called or normalized in another way."""
    weight = getattr(getattr(layer, "norm1", None), "weight", None)
    if not isinstance(layer, nn.TransformerEncoderLayer) or weight is None:
        return 0.0
    answers = list[Array]()
    rows = torch.randn(1, 5, len(weight), generator=torch.Generator().manual_seed(0))
    for fast_path in (False, True):
        with as_found(layer, fast_path), suppress(Exception):  # it is the caller's code
            answers.append(layer(rows.to(weight.device)).cpu().numpy())
    return share_of_largest(answers[1], answers[0]) if len(answers) == 2 else 0.0


def copy_module(module: nn.Module) -> nn.Module:
    """A copy on the CPU. Tensors that a module keeps from a step of training lose their history.
    The module itself where a forward was put on an instance: that of a copy may call the first."""
    if any("forward" in vars(part) for part in module.modules()):
        return module
    tensors = (x for part in module.modules() for x in vars(part).values() if isinstance(x, Tensor))
    memo = {id(x): x.detach().clone() for x in tensors if x.grad_fn is not None}
    return copy.deepcopy(module, memo).cpu()


def share_of_largest(rows: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest number."""
    return float(abs(rows - expected).max() / abs(expected).max())
