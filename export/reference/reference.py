"""One authors' program, whatever it is made of: how it is called, what it takes and answers, and
what becomes of texts before and after it.

It is called with one sequence at a time, without padding, and as its author calls it.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.export.certificate import tolerances
from addnorm.export.graphs.graph import UnfitError
from addnorm.export.reference.asking import Asking, longest
from addnorm.export.reference.original import Answers, Array, as_found
from addnorm.export.reference.program import AnswersTexts
from addnorm.export.wishes import NO_WISHES, UsageError, Wishes
from addnorm.export.words.texts import Texts
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Tokens
from addnorm.service.engine.manifest import Limits, OwnTensor

# of what it costs to be served as its authors wrote it
WHAT_IT_MEANS = "not one of our own graphs: equal bits on this processor, no fp16, no lens"
Key = str | int | None  # of a tensor in an answer; None: it is the answer
NEAR = 1e-4  # of the largest number: two orders of additions in float32
EXAMPLE = 7  # tokens of the sequences that show what an answer is like
# Numbers a token that are sent and stored with every answer. Logits of a vocabulary are more: they
# need a head of their own, which computes those that are asked for
MOST_COLUMNS = 4096


# of tensors that cannot be served
SERVED = "the answer must be a tensor of float32, [B, S, width], [B, S], [B, width] or [B]"
WAY_ON = "convert it with reference=lambda ids: ..."


class NoNumbersError(UnfitError):
    """The program answers a sequence with NaN or infinity."""


@dataclass(frozen=True)
class Reference:
    """kind: "program" of a folder or of a class of transformers, "reference" of other modules. ask:
    calls the program. twin: calls the copy of it that is exported. limits: of ids or
    vectors that it takes. tensors: the served ones of its answer, by where they stand in it.

    origin: in the manifest, where the program is from. facts: more fields of the manifest. words:
    how texts become token ids; None: it takes none. folder: of its tokenizer. texts: answers them.
    wishes: that it was opened with. uncut: tokens of a text that its authors take, where the export
    takes fewer by default. head: from rows of the tensor `activations` to logits of a vocabulary.
    means: what that is for those who serve it, in words.
    """

    name: str
    kind: Literal["program", "reference"]
    ask: Asking
    twin: Asking
    limits: Limits
    tensors: Mapping[Key, OwnTensor]
    origin: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    words: Texts | None = None
    folder: Path | None = None
    texts: AnswersTexts | None = None
    wishes: Wishes = NO_WISHES
    uncut: int = 0
    head: "LastLayer | None" = None
    means: str = WHAT_IT_MEANS

    @cached_property
    def _answers(self) -> Answers:
        return Answers(
            self.name, lambda *inputs: tensors_of(self.ask(*inputs)), self.ask, takes_fast_path=True
        )

    @property
    def longest(self) -> int:
        """Tokens that it takes."""
        return self.limits.max_positions

    def __str__(self) -> str:
        """The inputs and the answers, in words."""
        answers = (f"{tensor.name} {shape_of(tensor)}" for tensor in self.tensors.values())
        width = self.limits.input_width
        inputs = f"vectors [B, S, {width}]" if width else "ids [B, S]"
        return f"one graph, {inputs} of at most {self.longest} tokens to {', '.join(answers)}"

    @contextmanager
    def as_called(self) -> Iterator[None]:
        """Within it, PyTorch's fast path is taken where its author's calls take it: it hides rows
        in its own way."""
        with as_found(self.ask, torch.backends.mha.get_fastpath_enabled()):
            yield

    def rows(self, sequence: Batch) -> dict[str, Array]:
        """Its answer to one sequence alone: of each tensor `[S, width]` or `[1, width]` float32.
        OriginalError if two calls answer differently, NoNumbersError for NaN."""
        rows = (rows[0].numpy() for rows in inputs_of(self.ask, sequence))
        answer = self._answers.tensors(*rows)
        return {
            tensor.name: self._check_rows(tensor, sequence.num_tokens, answer[key])
            for key, tensor in self.tensors.items()
        }

    def _check_rows(self, tensor: OwnTensor, length: int, answer: Array) -> Array:
        num_rows = length if tensor.of == "token" else 1
        if answer.size != num_rows * tensor.width:
            raise UnfitError(
                f"{self.name} answers {length} tokens alone with {[*answer.shape]}, and in a"
                f" batch with rows of {tensor.width} numbers"
            )
        rows = answer.reshape(num_rows, tensor.width)
        if not np.isfinite(rows).all():
            raise NoNumbersError(f"{self.name} answers {length} tokens with NaN or infinity")
        return rows

    def refuse_mixing(self) -> None:
        """UsageError for a program that answers a sequence otherwise where another stands beside
        it: as one that takes `[S, B]` and is called with `[B, S]`."""
        batch = pair(self.limits)
        with self.as_called():
            together = laid_out(self.ask(*inputs_of(self.ask, batch)), self)
        for index, place in product(range(len(batch)), range(len(together))):
            alone = [*self.rows(batch.sequence(index)).values()][place]
            row = together[place][index].detach().cpu().numpy()
            difference = tolerances.largest(row - alone)
            if not difference <= NEAR * max(tolerances.largest(alone), 1e-3):
                axes = "B, S" if self.ask.turned else "S, B"
                form = f"vectors [{axes}, d]" if self.limits.input_width else f"ids [{axes}]"
                raise UsageError(
                    f"{self.name}'s answer to a sequence depends on the other sequences in the"
                    f" batch: it differs by {difference:.3g}. If the module takes {form}, set"
                    f" batch_first={self.ask.turned}"
                )


class LastLayer(nn.Module):
    """rows `[n, d]` -> logits of a vocabulary `[n, V]`."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.layer(rows)
        return logits


def inputs_of(ask: Asking, batch: Batch) -> list[Tensor]:
    """The arguments for sequences of one length. Types are 0 where the batch has none."""
    shape = len(batch), -1
    tokens = torch.from_numpy(batch.tokens.reshape(*shape, *batch.tokens.shape[1:]))
    if not ask.has_types:
        return [tokens]
    types = np.zeros(batch.num_tokens, np.int64) if batch.types is None else batch.types
    return [tokens, torch.from_numpy(types.reshape(shape))]


def pair(limits: Limits, length: int = EXAMPLE) -> Batch:
    return selfcheck.sequences(limits, [length] * 2)


def longest_of(ask: Asking, limits: Limits) -> int:
    """The most tokens that a program takes, up to the limit, of whatever ids: some may count as no
    position. OriginalError if it does not even take one."""
    rows: list[Tokens] = [selfcheck.sequences(limits, [limits.max_positions]).tokens]
    if num := limits.vocab_size:
        ids = sorted({0, 1 % num, num // 2, num - 1})
        rows = [np.full(limits.max_positions, index, np.int64) for index in ids]

    def call(length: int) -> None:
        for row in rows:
            ask(*inputs_of(ask, Batch.of([row[:length]])))

    return longest(call, limits.max_positions)


def tensors_of(answer: Any) -> dict[Key, Tensor]:
    """The tensors of an answer, by their names or places."""
    return {key: value for key, value in _parts(answer).items() if isinstance(value, Tensor)}


def _parts(answer: Any) -> dict[Key, Any]:
    """The parts of an answer, by names or places."""
    if isinstance(answer, Tensor):
        return {None: answer}
    if isinstance(answer, Mapping) or hasattr(answer, "keys"):
        return {key: answer[key] for key in [*answer]}
    if hasattr(answer, "_fields"):
        return dict(zip(answer._fields, answer, strict=True))
    if is_dataclass(answer):
        return {part.name: getattr(answer, part.name) for part in fields(answer)}
    return dict(enumerate(answer)) if isinstance(answer, tuple | list) else {}


def describe_answer(ask: Asking, limits: Limits) -> tuple[dict[Key, OwnTensor], dict[Key, str]]:
    """Its tensors of float32 that have a row for each token, or one for the sequence; and in words
    the others, which cannot be served. By their shapes alone, never by what computes them.
    UsageError if none fits."""
    lengths = [length for length in (3, 5) if length <= limits.max_positions] or [1]
    answers = [_parts(ask(*inputs_of(ask, pair(limits, length)))) for length in lengths]
    fitting, unfit = dict[Key, OwnTensor](), dict[Key, str]()
    for key, value in answers[0].items():
        name: Any = "output" if key is None else str(key)
        if not isinstance(value, Tensor):
            if any(isinstance(part, Tensor) for part in _parts(value).values()):
                unfit[key] = f"{name} (a {type(value).__name__} of tensors)"
            continue
        tensors = [answer[key] for answer in answers if isinstance(answer.get(key), Tensor)]
        kinds = set.intersection(
            *(set(_kinds(tensor, length, ask.turned))
              for tensor, length in zip(tensors, lengths, strict=False))
        )  # fmt: skip
        if value.dtype == torch.float32 and len(tensors) == len(answers) and kinds:
            is_of_tokens, row = min(kinds)
            scope: Any = "token" if is_of_tokens else "sequence"
            fitting[key] = OwnTensor(name=name, of=scope, width=math.prod(row), row_shape=row)
        else:
            shapes = " and ".join(str([*tensor.shape]) for tensor in tensors)
            dtype = str(value.dtype).removeprefix("torch.")
            unfit[key] = f"{'' if key is None else name} {shapes} of {dtype}".strip()
    if not fitting:
        raise UsageError(
            f"{ask.name} answers two sequences of {' and '.join(map(str, lengths))} tokens with"
            f" {'; '.join(unfit.values()) or 'no tensor'}: {SERVED}; {WAY_ON}"
        )
    return fitting, unfit


def _kinds(answer: Tensor, length: int, turned: bool) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """The ways to read an answer to two sequences: of tokens or not, and the shape of a row."""
    grid = (length, 2) if turned else (2, length)
    shape = tuple(answer.shape)
    if shape[:2] == grid and len(shape) in (2, 3):
        yield True, shape[2:]
    if shape[:1] == (2,) and len(shape) in (1, 2):
        yield False, shape[1:]


def shape_of(tensor: OwnTensor) -> str:
    """The shape that the program gives it, in words."""
    _, *axes = tensor.shape
    return str(["B", *("S" if size == -1 else size for size in axes)]).replace("'", "")


def refuse_wide_rows(name: str, tensors: Mapping[Key, OwnTensor]) -> None:
    """UnfitError for logits of a whole vocabulary, one for each token."""
    for tensor in tensors.values():
        if tensor.of == "token" and tensor.width > MOST_COLUMNS:
            raise UnfitError(
                f"{name} answers each token with {tensor.width:,} numbers, the limit is"
                f" {MOST_COLUMNS:,}: choose fewer with outputs=[...] or reference="
            )


def laid_out(answer: Any, reference: Reference) -> list[Tensor]:
    """Each served tensor as `[B, S, width]`, or `[B, 1, width]` of sequences."""
    tensors = tensors_of(answer)
    return [
        _by_token(tensors[key], reference.ask.turned)
        if tensor.of == "token"
        else tensors[key].reshape(-1, 1, tensor.width)
        for key, tensor in reference.tensors.items()
    ]


def _by_token(answer: Tensor, turned: bool) -> Tensor:
    rows = answer.unsqueeze(-1) if answer.dim() == 2 else answer
    return rows.transpose(0, 1) if turned else rows
