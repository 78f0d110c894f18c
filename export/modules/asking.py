"""How a module is asked: with one sequence at a time, on its own weights or on drawn ones. And the
whole beside the `Transformer` that it is found to be, both with weights drawn anew."""

import copy
import inspect
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from addnorm.export.modules.operators import lengths
from addnorm.export.modules.operators.ids import Told
from addnorm.export.modules.operators.lengths import Call, Run
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.modules.operators.trace import LOOKUPS, Calls, Enough, Trace
from addnorm.export.sources import UsageError
from addnorm.export.sources.original import Array, Original, OriginalError, as_found
from addnorm.model.config import Config, Pick
from addnorm.model.transformer import Transformer
from addnorm.service.engine import selfcheck
from addnorm.service.engine.manifest import Limits

COMPARED = (1, 2, 19, 512)  # lengths of the sequences, if there, and the longest
AGREES = 1e-3  # of the largest number, of float32 through all layers
NEAR = 1e-5  # where the forward of a length is another than that of the longest


@dataclass(frozen=True)
class Recognized:
    """model: with the module's weights. ask: calls the module. lines: what was found, and how.

    pad: an id that the module takes for a pad wherever it stands. pooling: how it makes a row of a
    sequence."""

    model: Transformer
    ask: "Asking"
    lines: list[str]
    pad: int | None
    pooling: Pick


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
        given: dict[str, Tensor] = {}  # PyTorch's exporter follows this
        if self.has_types:
            given["types"] = torch.zeros_like(tokens) if types is None else types
        if "mask" in self._kinds:
            real, dtype = self._mask
            mask = torch.full(tokens.shape[:2], real, dtype=dtype, device=tokens.device)
            if self._num_pads:
                mask[:, -self._num_pads :] = 1 - int(real)
            given["mask"] = mask
        inputs = [tokens, *(given[kind] for kind in self._kinds)]
        return self._call[0](*(x.transpose(0, 1) if self.turned else x for x in inputs))


def kinds_of(call: Callable[..., Any]) -> list[str]:
    """What it is called with behind ids or vectors: "mask" or "types". OriginalError if it asks for
    something else."""
    forward = call.forward if isinstance(call, nn.Module) else call
    needed = [
        x.name for x in inspect.signature(forward).parameters.values()
        if x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    kinds = [
        "mask" if "mask" in name.lower() or "attn" in name.lower()
        else "types" if "type" in name.lower() or "seg" in name.lower()
        else ""
        for name in needed[1:]
    ]  # fmt: skip
    if not needed or "" in kinds or kinds.count("types") > 1:
        raise OriginalError(
            f"forward needs {', '.join(needed) or 'no input'}: say how it is called with one"
            " sequence of token ids or vectors, reference=lambda x: module(x, ...)"
        )
    return kinds


def trace_forward(
    ask: Asking,
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


def list_calls(ask: Asking, ids: Tensor, types: Tensor | None = None) -> list[Call]:
    """The operators that the module calls, without numbers. OriginalError if it fails."""
    run = Run(ask.module)
    with run:
        ask(ids, types)
    return run.calls


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
            "no table is read at the token ids: say how many there are, config={'vocab_size': N}"
        )
    given = ids.untyped_storage().data_ptr()
    of_ids = [x for x in read if x.inputs[-1].tensor.untyped_storage().data_ptr() == given]
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


def unwrapped(module: nn.Module) -> nn.Module:
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
            "a module of TorchScript shows no operators: give the module it is made of"
        )
    name, tensors = type(module).__qualname__, [*module.parameters(), *module.buffers()]
    if any(isinstance(x, UninitializedTensorMixin) for x in tensors):
        raise UsageError(
            f"{name} has lazy layers without weights: call it once, and export it then"
        )
    if any(x.is_meta for x in tensors):
        raise UsageError(f"{name} is on the meta device, without numbers: load its weights first")
    dtypes = {x.dtype for x in module.parameters() if x.is_floating_point()} - {torch.float32}
    if dtypes:
        named = ", ".join(sorted(str(x).removeprefix("torch.") for x in dtypes))
        raise UsageError(f"{name} has weights of {named}: call .float() on it before the export")
    for part in module.modules():
        if type(part).__module__.startswith("torch.ao."):
            raise UsageError(
                f"{name} has quantized layers ({type(part).__qualname__}): export the module of"
                " float32 that they were made of"
            )
    if torch.backends.mha.get_fastpath_enabled():
        for key, part in module.named_modules():
            if (share := _share_of_fast_path(part)) > AGREES:
                place = f"{name}.{key}" if key else name
                raise UsageError(
                    f"{place} ({type(part).__qualname__}): in evaluation mode PyTorch takes a fast"
                    " path, which calls none of its own methods and layers, and answers"
                    f" otherwise, by {share:.2g} of the largest number. Call"
                    " torch.backends.mha.set_fastpath_enabled(False) in your program, and before"
                    " the export"
                )
    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise UsageError(f"{name} has no forward")
    if any(getattr(part, "max_norm", None) for part in module.modules()):
        own, module = module, copy_module(module)
        if module is own:
            raise UsageError(
                f"{name} has an embedding with max_norm, which changes its table in each call, and"
                " a forward that was put on an instance: make that a method of its class"
            )
        for part in module.modules():
            if (limit := getattr(part, "max_norm", None)) and isinstance(part, nn.Embedding):
                ids = torch.arange(part.num_embeddings)
                torch.embedding_renorm_(part.weight.data, ids, limit, part.norm_type)
                part.max_norm = None
    return module


def _share_of_fast_path(layer: nn.Module) -> float:
    """How far the answer by PyTorch's fast path is from the other, as a share of the largest
    number. 0 for what is none of its layers, or is called or normalized in another way."""
    weight = getattr(getattr(layer, "norm1", None), "weight", None)
    if not isinstance(layer, nn.TransformerEncoderLayer) or weight is None:
        return 0.0
    answers = list[Array]()
    rows = torch.randn(1, 5, len(weight), generator=torch.Generator().manual_seed(0))
    for fast_path in (False, True):
        with as_found(layer, fast_path), suppress(Exception):  # it is the caller's code
            answers.append(layer(rows.to(weight.device)).cpu().numpy())
    return _share(answers[1], answers[0]) if len(answers) == 2 else 0.0


def copy_module(module: nn.Module) -> nn.Module:
    """A copy on the CPU. Tensors that a module keeps from a step of training lose their history.
    The module itself where a forward was put on an instance: that of a copy may call the first."""
    if any("forward" in vars(part) for part in module.modules()):
        return module
    kept = (x for part in module.modules() for x in vars(part).values() if isinstance(x, Tensor))
    memo = {id(x): x.detach().clone() for x in kept if x.grad_fn is not None}
    return copy.deepcopy(module, memo).cpu()


@contextmanager
def drawn_anew(module: nn.Module) -> Iterator[None]:
    """All weights drawn, until the block ends: with those that training begins with, attention is
    nearly uniform, gammas are 1 and biases 0, and most mistakes do not show."""
    generator = torch.Generator().manual_seed(0)
    before = [(x, x.data) for x in module.parameters()]
    try:
        for parameter, _ in before:
            # a matrix's numbers keep the size of rows, a vector's are around 0.7
            drawn = torch.randn(parameter.shape, generator=generator)
            if drawn.dim() < 2:
                drawn.mul_(0.3).add_(0.7)
            else:
                drawn.mul_(1.2 * drawn.shape[-1] ** -0.5)
            parameter.data = drawn.to(parameter.device, parameter.dtype)
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


def as_inputs(ids: Sequence[int], ask: Asking) -> tuple[Tensor, Tensor | None]:
    types = torch.arange(len(ids)) * 2 // len(ids) if ask.has_types else None
    return torch.tensor([ids]), None if types is None else types[None]


def fill_ids(length: int, vocab_size: int, pads: set[int]) -> list[int]:
    """Different ones, where there are so many, the highest first."""
    known = [index for index in reversed(range(vocab_size)) if index not in pads][:length]
    return [known[place % len(known)] for place in range(length)]


def _sequence(
    config: Config, length: int, pad: int | None, seed: int = 0
) -> tuple[list[int], list[int] | None]:
    """Drawn ids and types."""
    limits = Limits(
        max_positions=config.max_positions, vocab_size=config.vocab_size,
        type_vocab_size=config.type_vocab_size, pad_id=pad,
    )  # fmt: skip
    drawn = selfcheck.sequences(limits, [length], seed)
    return drawn.tokens.tolist(), None if drawn.types is None else drawn.types.tolist()


def pad_of(drawn: Transformer, ask: Asking, pooling: Pick, told: Told) -> int | None:
    """The id that the module tells from others. Unrecognized unless it is a pad: behind other
    tokens it changes no answer."""
    if not told.ids:
        return None
    named = ", ".join(f"{index} ({step.op}{step.where})" for index, step in told.ids.items())
    pad, *more = told.ids
    config = drawn.config
    length = min(5, config.max_positions - 2)
    if not more and length > 0:
        original = Original(ask, config, pooling, pad)
        ids, types = _sequence(config, length, pad)
        inputs = [*ids, pad, pad], types and [*types, 0, 0]
        expected, found = original.rows(*inputs), original.rows_of_model(drawn, *inputs, 2)
        if _share(found, expected[:length] if expected.ndim == 2 else expected) <= AGREES:
            return pad
    raise Unrecognized(
        f"it tells token ids from others: {named}; one id can be a pad, which is refused inside"
        " texts, if the answer to what comes before it is the same with and without it"
    )


def _share(found: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest number."""
    return float(abs(found - expected).max() / abs(expected).max())


def refuse_unlike(drawn: Transformer, ask: Asking, pooling: Pick, pad: int | None) -> None:
    """Unrecognized unless the whole, with weights drawn anew, answers as the module: on some
    lengths, and on all whose forward is another than that of the longest."""
    config, longest = drawn.config, drawn.config.max_positions
    original = Original(ask, config, pooling, pad)
    usual, _ = _sequence(config, longest, pad)
    unlike = {
        *lengths.unlike_lengths(lambda n: list_calls(ask, *as_inputs(usual[:n], ask)), longest)
    }
    known = sorted({min(length, longest) for length in (*COMPARED, longest)})
    near = 0.0
    for seed, length in enumerate([*known, *(x for x in unlike if x not in known)]):
        inputs = _sequence(config, length, pad, seed)
        expected, found = original.rows(*inputs), original.rows_of_model(drawn, *inputs)
        difference, is_usual = _share(found, expected), length in known and length not in unlike
        near = max(near, difference) if is_usual else near
        if not difference <= (AGREES if is_usual else max(NEAR, 10 * near)):
            raise Unrecognized(
                f"of {length} tokens, {original.compared.output} differ by {difference:.2g} of the"
                " largest number"
            )
