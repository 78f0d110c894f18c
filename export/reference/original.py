"""The forward of the person whose model it is: what a bundle of a model in memory must equal.

It is asked for one sequence at a time, without pads, so modules without a mask work too.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from addnorm.model.config import Config, Pick
from addnorm.model.pooling import pick_vectors
from addnorm.model.transformer import Transformer
from addnorm.service.engine.manifest import Limits

Array = NDArray[np.float32]
FIELDS = ("logits", "last_hidden_state")  # of transformers' outputs, the first that there is


class OriginalError(ValueError):
    """The forward cannot be compared with: it fails, answers differently each time, or with
    something of another shape."""


class Compared(NamedTuple):
    """The kind of the answers: an output of the bundle, of every token or of each sequence."""

    output: str  # "activations", "pooled", or a head's
    of_every_token: bool


class Answers:
    """The answers of somebody's forward to one sequence at a time, without pads. It is called twice
    for each, and what it answered once it knows."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Mapping[Any, Tensor]],
        module: Any = None,
        takes_fast_path: bool = False,
    ) -> None:
        """call: ids `[1, S]` int64, or vectors `[1, S, width]`, and types -> tensors by any key.
        module: is held in evaluation mode. takes_fast_path: PyTorch's fast path is taken where the
        author's calls take it."""
        self.name, self.module = name, module
        self._call: Callable[..., Mapping[Any, Tensor]] | None = call
        self._takes_fast_path = takes_fast_path
        self._known: dict[tuple[bytes, bytes], dict[Any, Array]] = {}

    def tensors(self, tokens: NDArray[Any], types: NDArray[Any] | None = None) -> dict[Any, Array]:
        """The tensors of its answer, as it gives them. OriginalError if it fails, or if two calls
        answer differently."""
        key = tokens.tobytes(), b"" if types is None else types.tobytes()
        if key not in self._known:
            self._known[key] = self._ask([row for row in (tokens, types) if row is not None])
        return self._known[key]

    def close(self) -> None:
        """Lets go of the module."""
        self.module = self._call = None

    def _ask(self, rows: Sequence[NDArray[Any]]) -> dict[Any, Array]:
        parameters = self.module.parameters() if isinstance(self.module, nn.Module) else iter(())
        device = getattr(next(parameters, None), "device", None)
        inputs = [torch.from_numpy(row)[None].to(device) for row in rows]
        fast_path = self._takes_fast_path and torch.backends.mha.get_fastpath_enabled()
        assert self._call, f"{self.name} was closed"
        try:
            # which sets the random state back: one block for both
            with as_found(self.module, fast_path):
                first, second = self._call(*inputs), self._call(*inputs)
        except OriginalError:
            raise
        except Exception as error:  # it is the caller's code, or a library's
            line = str(error).strip().partition("\n")[0]
            raise OriginalError(
                f"{self.name} fails on a sequence of {len(rows[0])} tokens:"
                f" {type(error).__name__}: {line}"
            ) from error
        for name, tensor in first.items():
            if not torch.equal(tensor.nan_to_num(), second[name].nan_to_num()):
                raise OriginalError(
                    f"{self.name} gives two different answers to the same sequence: it is random"
                    " in evaluation mode, or it keeps state between calls"
                )
        return {name: tensor.detach().float().cpu().numpy() for name, tensor in first.items()}


class Original:
    """The answer that a bundle's output must equal: one tensor of a forward's answers, `[1, S, w]`,
    `[S, w]`, `[1, w]` or `[w]` float32."""

    def __init__(
        self,
        reference: Callable[..., Any] | Answers,
        config: Config,
        pooling: Pick = "mean",
        pad: int | None = None,
        key: str | None = None,
    ) -> None:
        """reference: a module or another callable: ids `[1, S]` int64, and token types of that
        shape if the model has them -> a tensor, a tuple whose first it is, or an output of
        transformers. Or answers, with the key of the tensor.
        pooling: of pooled vectors that no head makes. pad: an id that the reference takes for a
        pad wherever it stands. OriginalError if its answer to a sequence is
        no output of such a model."""
        if not isinstance(reference, Answers):
            call = reference
            name = getattr(call, "name", None) or getattr(call, "__qualname__", None)
            reference = Answers(
                name or type(call).__qualname__,
                lambda *inputs: {None: tensor_of(call(*inputs))},
                call,
            )
        self._answers, self._key = reference, key
        self._config, self.pooling, self._pad = config, pooling, pad
        self._is_of_tokens = False
        self.compared = self._kind()
        self._is_of_tokens = self.compared.of_every_token

    @property
    def name(self) -> str:
        return self._answers.name

    def record(self) -> dict[str, Any]:
        """For the certificate: what was compared, with the sha256 of its weights if it has any."""
        module = self._answers.module
        weights = {"sha256": digest(module)} if isinstance(module, nn.Module) else {}
        return {"kind": "reference", "name": self.name, "output": self.compared.output, **weights}

    def sequence_limits(self, limits: Limits) -> Limits:
        """The limits of sequences for it: without a pad, of which it says nothing."""
        return limits if self._pad is None else limits.model_copy(update={"pad_id": self._pad})

    def can_say(self, ids: Sequence[int]) -> bool:
        """True if it answers this sequence: a pad alone has no answer, nor has a token that sees
        none."""
        unseen_id, farthest = self._config.unseen_id, self._config.window or len(ids)
        seen = [place for place, token in enumerate(ids) if token != unseen_id]
        for place, token in enumerate(ids):
            if token == unseen_id and all(abs(place - other) > farthest for other in seen):
                return False
        return bool(ids) and self._pad not in ids

    def rows(self, ids: Sequence[int], types: Sequence[int] | None) -> Array:
        """Its answer to one sequence: `[S, w]`, or `[w]` if it is of the whole sequence."""
        rows = (np.array(row, np.int64) for row in (ids, types) if row is not None)
        answer = _squeeze(self._answers.tensors(*rows)[self._key], len(ids))
        # some squeeze away the axis of a token alone
        return answer[None] if self._is_of_tokens and answer.ndim == 1 else answer

    def rows_of_model(
        self,
        model: Transformer,
        ids: Sequence[int],
        types: Sequence[int] | None,
        num_pads: int = 0,
    ) -> Array:
        """The model's answer in PyTorch, as `rows`. model: on the CPU, in evaluation mode.
        num_pads: at the end; the answer is to what comes before them."""
        inputs = [None if row is None else torch.tensor([row]) for row in (ids, types)]
        num_real, (output, of_every_token) = len(ids) - num_pads, self.compared
        real = (torch.arange(len(ids)) < num_real).long()[None]
        with torch.no_grad():
            values, *_ = model(inputs[0], real, inputs[1])
            if output in model.heads:
                values = model.head(output, values, real)
            elif not of_every_token:
                values = pick_vectors(self.pooling, values, real)
        rows: Array = values[0].numpy()
        return rows if rows.ndim == 1 else rows[:num_real] if of_every_token else rows[num_real - 1]

    def _kind(self) -> Compared:
        length = min(3, self._config.max_positions)
        types = [0] * length if self._config.type_vocab_size > 1 else None
        answer = self.rows([int(self._pad == 0)] * length, types)
        of_every_token, width = answer.ndim == 2, answer.shape[-1]
        if of_every_token and self._key == "activations" and width == self._config.d_model:
            return Compared("activations", True)  # a head of every token may be as wide
        for name, head in self._config.heads.items():
            is_last = name == "logits" and not of_every_token  # of a head on every token
            if head.width == width and (is_last or of_every_token == (head.pick == "every")):
                return Compared(name, of_every_token)
        if width != self._config.d_model:
            heads = {name: head.width for name, head in self._config.heads.items()}
            raise OriginalError(
                f"the reference answers with {width} numbers, but the activations have"
                f" {self._config.d_model} and the heads {heads or 'do not exist'}"
            )
        return Compared("activations" if of_every_token else "pooled", of_every_token)


def tensor_of(answer: Any) -> Tensor:
    """The tensor of an answer, which is a tensor, a tuple, or an output of transformers.
    OriginalError if there is none."""
    if isinstance(answer, Mapping) or hasattr(answer, "keys"):
        names = [*answer.keys()]
        answer = next((answer[name] for name in FIELDS if name in answer), None)
        if answer is None:
            raise OriginalError(
                f"the forward answers with {', '.join(map(str, names))}, but one of our own"
                f" graphs answers with {' or '.join(FIELDS)}"
            )
    elif isinstance(answer, tuple | list) and answer:
        answer = answer[0]
    if not isinstance(answer, Tensor) or answer.dtype != torch.float32:
        kind = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
        raise OriginalError(
            f"the reference answers with {kind}: it must return a tensor of float32"
        )
    return answer


def _squeeze(answer: Array, length: int) -> Array:
    """-> `[length, w]` or `[w]`."""
    shape = [*answer.shape]
    if shape[:-1] in ([1, length], [length, 1], [length]) and len(shape) > 1:
        return answer.reshape(length, -1)
    if shape[:-1] in ([1], [], [1, 1]) and shape:
        return answer.reshape(-1)
    raise OriginalError(
        f"the reference answers one sequence of {length} tokens with the shape {shape}: it must"
        f" be [1, {length}, width] or [1, width]"
    )


@contextmanager
def as_found(reference: Any, fast_path: bool = False) -> Iterator[None]:
    """Holds the module in evaluation mode, without gradients and what torch.compile made of parts.
    Modes and random state are as before at the end. fast_path: whether PyTorch may take that of
    its own layers, which no graph is made of."""
    is_module = isinstance(reference, nn.Module)
    modes = {module: module.training for module in reference.modules()} if is_module else {}
    fast = torch.backends.mha.get_fastpath_enabled()
    if is_module:
        reference.eval()
    torch.backends.mha.set_fastpath_enabled(fast_path)
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, mode in modes.items():
            module.training = mode


def digest(module: nn.Module) -> str:
    """sha256 of the names, shapes and values of a state_dict."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        sha256.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        sha256.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha256.hexdigest()
