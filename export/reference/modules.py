"""A module that people wrote, as a `Reference`: what it takes is tried, and what its answer means
follows from the answer's shape and from what the export was told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.export.reference.asking import (
    ONES,
    Asking,
    Mask,
    copy_module,
    first_line,
    kinds_of,
    vocab_size,
)
from addnorm.export.reference.original import Array, OriginalError, as_found, digest
from addnorm.export.reference.program import Answer, Ids
from addnorm.export.reference.reference import (
    EXAMPLE,
    NEAR,
    SERVED,
    WAY_ON,
    Key,
    Reference,
    describe_answer,
    inputs_of,
    longest_of,
    pair,
    shape_of,
    tensors_of,
)
from addnorm.export.sources import refuse_one_tag
from addnorm.export.wishes import NO_WISHES, Text, UsageError, Wishes
from addnorm.export.words import texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.model.checkpoints import sentence_transformers
from addnorm.model.pooling import pick_vectors
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.manifest import ANSWER_FIELDS, Limits, OwnTensor

NOTHING: Mapping[str, Any] = MappingProxyType({})
# fields of `Wishes` that a module reads which is served as it is
MODULE_READS = (
    "graph", "precisions", "default_precision", "keep_recall", "labels", "pooling", "normalize",
    "task", "outputs", "tokenizer", "max_length", "reference", "samples", "max_positions",
    "vocab_size", "input_width", "batch_first",
)  # fmt: skip
NO_LIMIT = 512  # tokens, where the module sets no limit
MOST_WIDTHS = 8  # of layers, which are tried as widths of vectors
# as most of transformers' modules, and as PyTorch's own: the first with which pads change nothing
MASKS = (ONES, Mask(False, torch.bool), Mask(True, torch.bool), Mask(0, torch.int64))
NUM_PADS = 2  # with which that is tried


def open_module(
    module: nn.Module, wishes: Wishes = NO_WISHES, origin: Mapping[str, Any] = NOTHING
) -> Reference:
    """Calls the module, and sees what it takes and answers. origin: more of where it is from.
    UsageError says what is missing."""
    wishes.check_read("a module as it is", MODULE_READS)
    samples = batches_of(wishes.numbers)
    if wishes.max_length is not None and wishes.tokenizer is None:
        raise UsageError(
            "max_length truncates texts, but there is no tokenizer: limit the tokens of a"
            " sequence with config={'max_positions': N}"
        )
    call: Any = wishes.reference
    name = type(module).__qualname__
    try:
        module_copy = module if call else copy_module(module)  # a callable calls what it has
    except Exception as error:  # it is the caller's code
        raise UsageError(f"{name} cannot be copied: {first_line(error)}") from error
    kinds = kinds_of(call or module_copy)
    asking = partial(Asking, turned=wishes.batch_first is False, kinds=kinds)
    attempts, errors = list[tuple[Mask, Asking, Limits]](), list[OriginalError]()
    for mask in MASKS if "mask" in kinds else MASKS[:1]:
        twin = asking(call or module_copy, module_copy, mask=mask)
        with as_found(twin):
            try:
                attempts.append((mask, twin, _limits(twin, wishes, samples)))
            except OriginalError as error:
                errors.append(error)
                continue
            padded = asking(call or module_copy, module_copy, mask=mask, num_pads=NUM_PADS)
            if "mask" not in kinds or _hides_pads(twin, padded, attempts[-1][2]):
                break
    else:
        if not attempts:
            raise errors[0]
        attempts = attempts[:1]  # the module leaves pads in, whatever its mask says
    mask, twin, limits = attempts[-1]
    with as_found(twin):
        tensors, unfit = describe_answer(twin, limits)
    tensors = _choose_tensors(name, tensors, unfit, wishes.outputs)
    reference = Reference(
        name,
        "reference",
        asking(call or module, module, mask=mask),
        twin,
        limits,
        _with_meaning(name, tensors, wishes),
        {
            "module": name,
            "sha256": digest(module),
            **({"outputs": [*wishes.outputs]} if wishes.outputs else {}),
            **origin,
        },
        {
            "normalize": bool(wishes.normalize),
            "labels": wishes.labels,
            "pooling": wishes.pooling or "mean",
        },
        wishes=wishes,
    )
    reference.refuse_mixing()
    return reference if wishes.tokenizer is None else _with_texts(reference)


def _choose_tensors(
    name: str, tensors: dict[Key, OwnTensor], unfit: dict[Key, str], outputs: Sequence[str]
) -> dict[Key, OwnTensor]:
    """tensors, unfit: of `describe_answer`. outputs: see `Wishes`. All without. UsageError if
    there are none such, or if one cannot be served."""
    keys = {tensor.name: key for key, tensor in tensors.items()}
    fitting = [*keys]
    keys |= {str(key): key for key in unfit}
    if not set(outputs) <= keys.keys():
        if any(isinstance(key, str) for key in keys.values()) or len(outputs) > len(keys):
            raise UsageError(
                f"outputs has {', '.join(outputs)}, but the module answers with {', '.join(keys)}"
            )
        places: list[Any] = sorted(keys.values(), key=lambda place: place or 0)
        keys = dict(zip(outputs, places, strict=False))
    names = [*outputs] or [*keys]
    if reasons := [unfit[keys[output]] for output in names if keys[output] in unfit]:
        raise UsageError(
            f"{name} answers two sequences of different lengths with {'; '.join(reasons)},"
            f" which cannot be served: {SERVED}. Of its answer {', '.join(fitting)} can be:"
            f" choose that with outputs={fitting}, or {WAY_ON}"
        )
    for output in names:
        if names.count(output) > 1 or output in ANSWER_FIELDS:
            fault = (
                "twice"
                if names.count(output) > 1
                else "which is the name of another field of answers"
            )
            raise UsageError(
                f"{name} would answer with a tensor {output!r} {fault}: outputs=[...] names those"
                " of a tuple, and reference=lambda ids: {'name': ...} all"
            )
    return {
        keys[output]: tensors[keys[output]].model_copy(update={"name": output}) for output in names
    }


def _with_meaning(name: str, tensors: dict[Key, OwnTensor], wishes: Wishes) -> dict[Key, OwnTensor]:
    """The tensors under the names of outputs that have tasks, where the wishes tell: `logits`,
    `pooled`, or `activations`, which the server pools. UsageError for wishes that do not fit.
    """
    is_told = wishes.labels is not None or wishes.pooling or wishes.task
    if not (is_told or wishes.tokenizer):
        return tensors
    first, *rest = tensors.items()
    if rest:
        if is_told:
            names = ", ".join(tensor.name for tensor in tensors.values())
            raise UsageError(
                f"{name} answers with {names}: labels, pooling and task apply to one tensor:"
                " choose it with outputs=[...]"
            )
        return tensors
    key, tensor = first
    shape = shape_of(tensor)
    if wishes.labels is not None and len(wishes.labels) != tensor.width:
        raise UsageError(f"there are {len(wishes.labels)} labels, but {name} answers with {shape}")
    refuse_one_tag(wishes.labels, tensor.of == "token", "labels=None")
    if wishes.pooling and tensor.of == "sequence":
        raise UsageError(f"pooling needs rows of tokens [B, S, d], but {name} answers with {shape}")
    is_of_tokens = {"tag": True, "classify": False, "rerank": False}.get(wishes.task or "")
    if is_of_tokens not in (None, tensor.of == "token") or (
        wishes.task == "rerank" and tensor.width != 1
    ):
        shapes = {"tag": "[B, S, labels]", "classify": "[B, labels]", "rerank": "[B, 1]"}
        raise UsageError(
            f"task {wishes.task!r} needs an answer {shapes[wishes.task or '']}, but {name}"
            f" answers with {shape}"
        )
    if wishes.labels is not None or wishes.task in ("rerank", "classify", "tag"):
        output = "logits"
    elif tensor.of == "sequence":
        output = "pooled"
        if not is_told:
            print(f"its answer {shape} is served as a vector; to change this, set labels or task")
    elif wishes.pooling or wishes.task == "embed":
        output = "activations"
    else:
        return tensors
    # of every model they have these axes
    return {key: tensor.model_copy(update={"name": output, "row_shape": (tensor.width,)})}


def _with_texts(reference: Reference) -> Reference:
    """UsageError for a tokenizer or a longest text that does not fit."""
    wishes, limits = reference.wishes, reference.limits
    if not limits.vocab_size:
        raise UsageError(
            "a tokenizer returns token ids, but the module takes vectors: leave the tokenizer out"
        )
    words = texts.read_for(wishes.tokenizer, limits.vocab_size, limits.max_positions, wishes)
    if isinstance(words, NoTexts):
        raise UsageError(f"the tokenizer cannot be used: {words}")
    origin = {**reference.origin}
    if wishes.max_length is not None:
        limits = limits.model_copy(update={"max_positions": wishes.max_length})
        origin["max_length"] = wishes.max_length
    with_words = replace(
        reference, words=words, folder=wishes.tokenizer, origin=origin, limits=limits
    )
    return replace(with_words, texts=ModuleTexts(with_words))


class ModuleTexts:
    """A module from text to answer: transformers' tokenizer, its forward, and the last step of the
    task in PyTorch."""

    mask_token: str | None = None

    def __init__(self, reference: Reference) -> None:
        assert reference.words
        assert reference.folder
        self.name, self.labels = reference.name, [*(reference.facts["labels"] or ())]
        self._reference, self._limit = reference, reference.words.max_text_tokens
        self._tokenizer: Any = texts.load_tokenizer(
            sentence_transformers.read_words(reference.folder)
        )
        self._answers: dict[tuple[str, Text], Answer] = {}
        self.tasks: dict[str, Callable[[Text], Any]] = self._tasks()

    def answer(self, task: str, text: Text) -> Answer:
        if (task, text) not in self._answers:
            ids = self._ids(text)
            rows = {
                name: torch.from_numpy(values)
                for name, values in self._reference.rows(self._batch(ids)).items()
            }
            value = self.tasks[task](rows)  # type: ignore[arg-type]
            self._answers[task, text] = Answer(ids, np.asarray(value, np.float32))
        return self._answers[task, text]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [*self._tokenizer([*texts], truncation=False, padding=False)["input_ids"]]

    def _ids(self, text: Text) -> Ids:
        parts = [[text]] if isinstance(text, str) else [[part] for part in text]
        cut = self._tokenizer(*parts, truncation=True, max_length=self._limit)
        (tokens,) = cut["input_ids"]
        types = [0] * len(tokens)
        if self._reference.ask.has_types:
            (types,) = cut.get("token_type_ids", [types])
        return Ids([*tokens], [*types])

    def _batch(self, ids: Ids) -> Batch:
        types = [np.array(ids.types, np.int64)] if self._reference.ask.has_types else None
        return Batch.of([np.array(ids.tokens, np.int64)], types)

    def _tasks(self) -> dict[str, Callable[[Any], Any]]:
        """The last step of each task that the outputs have, from the rows of each output."""
        (tensor, *rest) = self._reference.tensors.values()
        facts, name = self._reference.facts, tensor.name

        def embed(rows: dict[str, Tensor]) -> Tensor:
            vector = rows[name]
            if name == "activations":
                mask = torch.ones(1, len(vector), dtype=torch.int64)
                vector = pick_vectors(facts["pooling"], vector[None], mask)
            return nn.functional.normalize(vector, dim=-1)[0] if facts["normalize"] else vector[0]

        if rest or name not in ("logits", "pooled", "activations"):
            return {}
        if name != "logits":
            return {"embed": embed}
        if tensor.of == "sequence" and tensor.width == 1:
            return {
                "rerank": lambda rows: rows[name][0],
                "relevance": lambda rows: rows[name][0].sigmoid(),
            }
        if tensor.of == "sequence" and self.labels:
            return {"classify": lambda rows: rows[name][0].softmax(-1)}
        return {}


def are_vectors(samples: Sequence[Any]) -> bool:
    """True if somebody gave rows of floats."""
    return any(
        not isinstance(sample, str) and _as_array(sample).dtype.kind == "f" for sample in samples
    )


def batches_of(samples: Sequence[Any]) -> list[Batch]:
    """A batch of one sequence for each that somebody gave: ids `[S]` or `[B, S]`, vectors `[S, d]`
    or `[B, S, d]`. UsageError for others."""
    batches = list[Batch]()
    for sample in samples:
        values = _as_array(sample)
        dtype = {"i": np.int64, "u": np.int64, "f": np.float32}.get(values.dtype.kind)
        num_axes = 2 if dtype is np.float32 else 1  # of one sequence
        if dtype is None or values.ndim not in (num_axes, num_axes + 1):
            raise UsageError(
                "samples must be token ids [S] or [B, S], or vectors [S, d] or [B, S, d]; one is"
                f" {str(sample)[:60]!r}"
            )
        rows = values.astype(dtype)
        batches += [Batch.of([row]) for row in (rows[None] if rows.ndim == num_axes else rows)]
    return batches


def _as_array(sample: Any) -> Array:
    return sample.detach().cpu().numpy() if isinstance(sample, Tensor) else np.asarray(sample)


def _hides_pads(ask: Asking, padded: Asking, limits: Limits) -> bool:
    """True if the answer to what stands before pads is that without them, and depends on what
    stands there: a mask the wrong way round may hide everything. padded: asked with NUM_PADS."""
    if (length := min(EXAMPLE, limits.max_positions)) <= NUM_PADS:
        return True
    batch, depends = pair(limits, length), False
    inputs, other_inputs = (inputs_of(ask, batch.sequence(index)) for index in range(2))
    other_inputs[1:] = inputs[1:]  # segments are no tokens
    real = slice(length - NUM_PADS)
    try:
        real_tensors, other_tensors = (
            tensors_of(ask(*(part[:, real] for part in parts))) for parts in (inputs, other_inputs)
        )
        padded_tensors = tensors_of(padded(*inputs))
    except OriginalError:
        return False
    for key, tensor in real_tensors.items():
        if tensor.is_floating_point() and key in padded_tensors and key in other_tensors:
            cut = padded_tensors[key][tuple(slice(size) for size in tensor.shape)]
            if not torch.allclose(tensor, cut, rtol=NEAR, atol=NEAR):
                return False
            depends |= not torch.allclose(tensor, other_tensors[key])
    return depends


def _limits(ask: Asking, wishes: Wishes, samples: Sequence[Batch]) -> Limits:
    """The inputs that the module takes: the vectors of samples, or as its config says; else ids, if
    a table is read at them; else vectors of the width of one of its layers."""
    longest_sample = max((sample.num_tokens for sample in samples), default=1)
    max_positions = wishes.max_positions or max(NO_LIMIT, longest_sample)
    types = {"type_vocab_size": 2} if ask.has_types else {}

    def limits_of(num_ids: int, input_width: int | None) -> Limits:
        return Limits(
            max_positions=max_positions, vocab_size=num_ids, input_width=input_width, **types
        )

    widths = {sample.tokens.shape[1] for sample in samples if sample.field == "inputs"}
    if len(widths) > 1 or (widths and any(sample.field == "input_ids" for sample in samples)):
        raise UsageError("samples must all be token ids, or all be vectors of the same width")
    if width := wishes.input_width or next(iter(widths), None):
        limits = limits_of(0, width)
    elif num_ids := wishes.vocab_size:
        limits = limits_of(num_ids, None)
    else:
        try:
            limits = limits_of(vocab_size(ask), None)
        except OriginalError as error:
            candidates = (limits_of(0, width) for width in _widths(ask))
            fitting = next((candidate for candidate in candidates if _takes(ask, candidate)), None)
            if fitting is None:
                raise OriginalError(
                    f"{error}. If the module takes vectors, set config={{'input_width': d}}. If"
                    " it takes only one length, pad shorter sequences in a reference:"
                    " config={'max_positions': N}, reference=lambda x: module(F.pad(x, (0, N -"
                    " x.shape[1])))"
                ) from error
            limits = fitting
    if (longest := longest_of(ask, limits)) < (wishes.max_positions or 0):
        raise UsageError(
            f"config has max_positions {max_positions}, the limit of the module is {longest}"
        )
    return limits.model_copy(update={"max_positions": longest})


def _widths(ask: Asking) -> list[int]:
    """Numbers of a row that the first layers take."""
    names = ("in_features", "embed_dim", "input_size", "normalized_shape", "in_channels",
             "kdim")  # fmt: skip
    values = (getattr(part, name, None) for part in ask.module.modules() for name in names)
    sizes = (size[-1] if isinstance(size, tuple) and size else size for size in values)
    return [*dict.fromkeys(size for size in sizes if isinstance(size, int))][:MOST_WIDTHS]


def _takes(ask: Asking, limits: Limits) -> bool:
    try:
        ask(*inputs_of(ask, pair(limits)))
        ask(*inputs_of(ask, selfcheck.sequences(limits, [1])))
    except OriginalError:
        return False
    return True
