"""A module as it is: its own graph, without recognition, and the certificate of what it answers.

The graph takes sequences of one length, and knows no pads: the server drops them when it reads a
request. So nothing of the module must be understood. `torch.export` keeps one branch of those that
depend on the length, silently: the certificate compares lengths on both sides.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, nn
from torch.export import Dim

from addnorm.export.certificate import tolerances
from addnorm.export.certificate.graph.exact import versions
from addnorm.export.certificate.parity import Check, known_digests, nodes
from addnorm.export.certificate.served import Case, CertificationError, path_of
from addnorm.export.graphs import model_file
from addnorm.export.graphs.graph import UnfitError, export_module
from addnorm.export.graphs.traceable import traceable
from addnorm.export.modules.asking import (
    ONES,
    Asking,
    Mask,
    copy_module,
    first_line,
    kinds_of,
    list_calls,
    longest,
    vocab_size,
)
from addnorm.export.modules.operators.lengths import unlike_lengths
from addnorm.export.modules.operators.trace import plain_attention
from addnorm.export.modules.recognize import NotRecognized
from addnorm.export.sources.original import Array, OriginalError, as_found, digest
from addnorm.export.sources.sources import UsageError
from addnorm.export.writer import GRAPHS, REFUSALS, Plan, place_for, say
from addnorm.model.grid import OPSET
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Tokens
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.device.processor import processor
from addnorm.service.engine.engine import TYPES
from addnorm.service.engine.manifest import Limits, OwnTensor
from addnorm.service.engine.model import Model
from addnorm.service.engine.own_engine import ANSWER, IDS, LENGTHS, VECTORS, OwnEngine
from addnorm.service.engine.session import runs_in_words
from addnorm.service.errors import ServiceError

NO_LIMIT = 512  # tokens, where the module sets no limit
NEAR = 1e-4  # of the largest number: two orders of additions in float32
EXAMPLE = 7  # tokens of the sequences that the graph is traced with
MOST_WIDTHS = 8  # of layers, which are tried as widths of vectors
MOST_WORDS = 200  # characters of an error of PyTorch's exporter
# Operators that choose by comparing numbers. PyTorch and onnxruntime choose otherwise among equals,
# and equal rows come from equal ids.
CHOICES = {"TopK", "ArgMax", "ArgMin"}
SMALL = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
MANY = 30  # lengths that are compared: of more it is said
NUM_REPEATED, NUM_OF_CHOICES = 6, 200  # sequences of few different ids that are compared


Key = str | int | None  # of a tensor in an answer; None: it is the answer


# as most of transformers' modules, and as PyTorch's own: the first with which pads change nothing
MASKS = (ONES, Mask(False, torch.bool), Mask(True, torch.bool), Mask(0, torch.int64))
NUM_PADS = 2  # with which that is tried


class AsItIs(NamedTuple):
    """A module that is to be served as it is.

    ask: calls it. twin: the same on a copy, which is exported. limits: of what it takes, ids or
    vectors. tensors: those of its answer that are served, by where they stand in it.
    """

    ask: Asking
    twin: Asking
    limits: Limits
    tensors: dict[Key, OwnTensor]
    origin: dict[str, Any]

    @property
    def words(self) -> str:
        """What it takes and answers."""
        answers = (
            f"{own.name} [B, {'S, ' if own.of == 'token' else ''}{own.width}]"
            for own in self.tensors.values()
        )
        width = self.limits.input_width
        given = f"vectors [B, S, {width}]" if width else "ids [B, S]"
        return f"one graph, {given} of at most {self.longest} tokens to {', '.join(answers)}"

    @property
    def longest(self) -> int:
        """Tokens that it takes."""
        return self.limits.max_positions

    def rows(self, sequence: Batch) -> dict[str, Array]:
        """What it answers to one sequence alone: of each tensor `[S, width]` or `[1, width]`.
        UnfitError unless it answers so twice."""
        with as_found(self.ask):
            answers = [_tensors(self.ask(*_inputs(self.ask, sequence))) for _ in range(2)]
        return {
            own.name: self._rows(own, sequence.num_tokens, *(answer[key] for answer in answers))
            for key, own in self.tensors.items()
        }

    def _rows(self, own: OwnTensor, length: int, first: Tensor, second: Tensor) -> Array:
        num_rows = length if own.of == "token" else 1
        if first.numel() != num_rows * own.width:
            raise UnfitError(
                f"{self.ask.name} answers {length} tokens alone with {list(first.shape)}, and in"
                f" a batch with rows of {own.width} numbers"
            )
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise UnfitError(
                f"{self.ask.name} gives two answers to one sequence: something in it is random in"
                " evaluation mode, or it keeps something between calls"
            )
        found: Array = first.detach().cpu().numpy().reshape(num_rows, own.width)
        if not np.isfinite(found).all():
            raise UnfitError(f"{self.ask.name} answers {length} tokens with NaN or infinity")
        return found


class _Graph(nn.Module):
    """ids `[B, S]`, or vectors `[B, S, width]` -> the tensors side by side, in the row of every
    token."""

    def __init__(self, found: AsItIs) -> None:
        super().__init__()
        self.module, self._found = found.twin, found

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> Tensor:
        answer = self.module.forward(tokens, types)
        rows = [row.expand(-1, tokens.shape[1], -1) for row in _laid_out(answer, self._found)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)


def export(
    module: nn.Module,
    out: Path,
    name: str,
    version: int | None,
    plan: Plan,
    *,
    reference: Callable[..., Any] | None = None,
    stated: Mapping[str, Any] | None = None,
    batch_first: bool | None = None,
    samples: Sequence[Any] = (),
    outputs: Sequence[str] = (),
    origin: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
    why: NotRecognized | None = None,
) -> Bundle:
    """Writes `out/name/version/`, certified. stated: `max_positions` and `vocab_size`, where the
    module does not show them. outputs: see `_chosen`. origin: where the module is from. others:
    options of recognized modules. UsageError, UnfitError or CertificationError, in words."""
    if plan.precisions != ("fp32",) or plan.lens or plan.layout != "packed":
        raise UsageError("a module as it is has fp32 alone, and no lens: ask for no precision")
    if given := [option for option, value in (others or {}).items() if value]:
        raise UsageError(
            f"{', '.join(given)} has no meaning of a module as it is, which takes token ids or"
            " vectors and gives numbers: leave it out"
        )
    own = batches_of(samples)
    found = look_at(module, reference, stated or {}, batch_first, origin or {}, own, outputs)
    if why:
        reason = f"not recognized: {why.why}" if found.limits.vocab_size else "it takes vectors"
        say(f"served as it is, {reason}")
    with place_for(out, name, version) as (folder, number):
        say(f"exporting {name}/{number} as it is: {found.words}")
        bundle = _write_uncertified(found, folder, name, number)
        bundles.write_certificate(bundle, certificate_of(bundle, found, own))
    return bundles.read(out / name / str(number))


def export_unrecognized(why: NotRecognized, *arguments: Any, **options: Any) -> Bundle:
    """The same for a module that is not recognized, which is said. UsageError with both reasons."""
    try:
        return export(*arguments, **options, why=why)
    except REFUSALS as error:
        raise UsageError(f"{why.why}. Nor can it be served as it is: {error}") from error


def certificate_again(
    bundle: Bundle,
    module: nn.Module,
    reference: Callable[..., Any] | None = None,
    batch_first: bool | None = None,
    samples: Sequence[Any] = (),
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The certificate of a bundle, made anew. UsageError if it was made of another module."""
    limits = bundle.manifest.limits
    stated = limits.model_dump(include={"max_positions", "vocab_size", "input_width"})
    own = batches_of(samples)
    names = [tensor.name for tensor in bundle.manifest.as_it_is or ()]
    if (given := _origin(module, origin or {})) != bundle.manifest.source:
        raise UsageError(f"{bundle.ref} was made from {bundle.manifest.source}, this is {given}")
    found = look_at(module, reference, stated, batch_first, origin or {}, own, names)
    say(f"verifying {bundle.ref}")
    return certificate_of(bundle, found, own)


def look_at(
    module: nn.Module,
    reference: Callable[..., Any] | None,
    stated: Mapping[str, Any],
    batch_first: bool | None,
    origin: Mapping[str, Any],
    samples: Sequence[Batch] = (),
    outputs: Sequence[str] = (),
) -> AsItIs:
    """Calls the module, and sees what it takes and answers. samples: a sequence each; of vectors,
    if it takes them. outputs: see `_chosen`. UsageError says what is missing."""
    name = type(module).__qualname__
    try:
        copied = module if reference else copy_module(module)  # a reference calls what it has
    except Exception as error:  # it is the caller's code
        raise UsageError(f"{name} cannot be copied: {first_line(error)}") from error
    kinds = kinds_of(reference or copied)
    asking = partial(Asking, turned=batch_first is False, kinds=kinds)
    tried, errors = list[tuple[Mask, Asking, Limits]](), list[OriginalError]()
    for mask in MASKS if "mask" in kinds else MASKS[:1]:
        twin = asking(reference or copied, copied, mask=mask)
        with as_found(twin):
            try:
                tried.append((mask, twin, _limits(twin, stated, samples)))
            except OriginalError as error:
                errors.append(error)
                continue
            padded = asking(reference or copied, copied, mask=mask, num_pads=NUM_PADS)
            if "mask" not in kinds or _hides_pads(twin, padded, tried[-1][2]):
                break
    else:
        if not tried:
            raise errors[0]
        tried = tried[:1]  # the module leaves pads in, whatever its mask says
    mask, twin, limits = tried[-1]
    ask = asking(reference or module, module, mask=mask)
    with as_found(twin):
        tensors = _chosen(_answer(twin, limits), outputs)
    found = AsItIs(ask, twin, limits, tensors, _origin(module, origin))
    _refuse_mixing(found)
    return found


def _origin(module: nn.Module, origin: Mapping[str, Any]) -> dict[str, Any]:
    return {"module": type(module).__qualname__, "sha256": digest(module), **origin}


def _refuse_mixing(found: AsItIs) -> None:
    """UsageError for a module that answers a sequence otherwise where another stands beside it: as
    one that takes `[S, B]` and is called with `[B, S]`."""
    pair = _pair(found.limits)
    with as_found(found.ask):
        together = _laid_out(found.ask(*_inputs(found.ask, pair)), found)
    for index, row in product(range(len(pair)), range(len(together))):
        alone = [*found.rows(pair.sequence(index)).values()][row]
        difference = tolerances.largest(together[row][index].detach().cpu().numpy() - alone)
        if not difference <= NEAR * max(tolerances.largest(alone), 1e-3):
            axes = "B, S" if found.ask.turned else "S, B"
            other = f"vectors [{axes}, d]" if found.limits.input_width else f"ids [{axes}]"
            raise UsageError(
                f"{found.ask.name}'s answer to a sequence depends on the others of its batch: it"
                f" differs by {difference:.3g}. If it takes {other}, say"
                f" batch_first={found.ask.turned}"
            )


def _hides_pads(ask: Asking, padded: Asking, limits: Limits) -> bool:
    """Whether the answer to what stands before pads is that without them, and depends on what
    stands there: a mask the wrong way round may hide everything. padded: asked with NUM_PADS."""
    if (length := min(EXAMPLE, limits.max_positions)) <= NUM_PADS:
        return True
    pair, depends = _pair(limits, length), False
    inputs, others = (_inputs(ask, pair.sequence(index)) for index in range(2))
    others[1:] = inputs[1:]  # segments are no tokens
    real = slice(length - NUM_PADS)
    try:
        alone, other = (
            _tensors(ask(*(part[:, real] for part in parts))) for parts in (inputs, others)
        )
        among = _tensors(padded(*inputs))
    except OriginalError:
        return False
    for key, own in alone.items():
        if own.is_floating_point() and key in among and key in other:
            cut = among[key][tuple(slice(size) for size in own.shape)]
            if not torch.allclose(own, cut, rtol=NEAR, atol=NEAR):
                return False
            depends |= not torch.allclose(own, other[key])
    return depends


def are_vectors(samples: Sequence[Any]) -> bool:
    """Whether somebody gave rows of floats."""
    return any(not isinstance(one, str) and _as_array(one).dtype.kind == "f" for one in samples)


def batches_of(samples: Sequence[Any]) -> list[Batch]:
    """A batch of one sequence for each that somebody gave: ids `[S]` or `[B, S]`, vectors `[S, d]`
    or `[B, S, d]`. UsageError for others."""
    found = list[Batch]()
    for sample in samples:
        values = _as_array(sample)
        dtype = {"i": np.int64, "u": np.int64, "f": np.float32}.get(values.dtype.kind)
        num_axes = 2 if dtype is np.float32 else 1  # of one sequence
        if dtype is None or values.ndim not in (num_axes, num_axes + 1):
            raise UsageError(
                "samples of a module as it is are token ids [S] or [B, S], or vectors [S, d] or"
                f" [B, S, d]; one is {str(sample)[:60]!r}"
            )
        rows = values.astype(dtype)
        found += [Batch.of([row]) for row in (rows[None] if rows.ndim == num_axes else rows)]
    return found


def _as_array(sample: Any) -> Array:
    return sample.detach().cpu().numpy() if isinstance(sample, Tensor) else np.asarray(sample)


def _inputs(ask: Asking, batch: Batch) -> list[Tensor]:
    """What the module is called with for sequences of one length. Types are 0 where none are."""
    shape = len(batch), -1
    tokens = torch.from_numpy(batch.tokens.reshape(*shape, *batch.tokens.shape[1:]))
    if not ask.has_types:
        return [tokens]
    types = np.zeros(batch.num_tokens, np.int64) if batch.types is None else batch.types
    return [tokens, torch.from_numpy(types.reshape(shape))]


def _pair(limits: Limits, length: int = EXAMPLE) -> Batch:
    return selfcheck.sequences(limits, [length] * 2)


def _limits(ask: Asking, stated: Mapping[str, Any], samples: Sequence[Batch]) -> Limits:
    """What the module takes: the vectors of samples, or as its config says; else ids, if a table is
    read at them; else vectors of the width of one of its layers."""
    most = stated.get("max_positions") or max(NO_LIMIT, *(each.num_tokens for each in samples), 1)
    types = {"type_vocab_size": 2} if ask.has_types else {}

    def made(num_ids: int, input_width: int | None) -> Limits:
        return Limits(max_positions=most, vocab_size=num_ids, input_width=input_width, **types)

    widths = {each.tokens.shape[1] for each in samples if each.field == "inputs"}
    if len(widths) > 1 or (widths and any(each.field == "input_ids" for each in samples)):
        raise UsageError("samples are of one kind, token ids or vectors, all of one width")
    if width := stated.get("input_width") or next(iter(widths), None):
        limits = made(0, width)
    elif num_ids := stated.get("vocab_size"):
        limits = made(num_ids, None)
    else:
        try:
            limits = made(vocab_size(ask), None)
        except OriginalError as error:
            fitting = (made(0, width) for width in _widths(ask))
            found = next((each for each in fitting if _takes(ask, each)), None)
            if found is None:
                raise OriginalError(
                    f"{error}. If it takes vectors, config={{'input_width': d}} says so. If it"
                    " takes one length alone, a reference fills shorter ones:"
                    " config={'max_positions': N},"
                    " reference=lambda x: module(F.pad(x, (0, N - x.shape[1])))"
                ) from error
            limits = found
    if (longest := _longest(ask, limits)) < stated.get("max_positions", 0):
        raise UsageError(f"config says max_positions {most}, the module takes {longest}")
    return limits.model_copy(update={"max_positions": longest})


def _widths(ask: Asking) -> list[int]:
    """Numbers of a row that the first layers take."""
    names = ("in_features", "embed_dim", "input_size", "normalized_shape", "in_channels",
             "kdim")  # fmt: skip
    found = (getattr(part, name, None) for part in ask.module.modules() for name in names)
    sizes = (size[-1] if isinstance(size, tuple) and size else size for size in found)
    return [*dict.fromkeys(size for size in sizes if isinstance(size, int))][:MOST_WIDTHS]


def _takes(ask: Asking, limits: Limits) -> bool:
    try:
        ask(*_inputs(ask, _pair(limits)))
        ask(*_inputs(ask, selfcheck.sequences(limits, [1])))
    except OriginalError:
        return False
    return True


def _longest(ask: Asking, limits: Limits) -> int:
    """The most tokens that the module takes, up to the limit, of whatever ids: some may count as no
    place."""
    rows: list[Tokens] = [selfcheck.sequences(limits, [limits.max_positions]).tokens]
    if num := limits.vocab_size:
        ids = sorted({0, 1 % num, num // 2, num - 1})
        rows = [np.full(limits.max_positions, index, np.int64) for index in ids]

    def call(length: int) -> None:
        for row in rows:
            ask(*_inputs(ask, Batch.of([row[:length]])))

    return longest(call, limits.max_positions)


def _tensors(answer: Any) -> dict[Key, Tensor]:
    """The tensors of an answer, by their names or places."""
    if isinstance(answer, Tensor):
        return {None: answer}
    if isinstance(answer, Mapping) or hasattr(answer, "keys"):
        items = [(key, answer[key]) for key in [*answer]]
    elif hasattr(answer, "_fields"):
        items = [*zip(answer._fields, answer, strict=True)]
    elif is_dataclass(answer):
        items = [(field.name, getattr(answer, field.name)) for field in fields(answer)]
    else:
        items = [*enumerate(answer)] if isinstance(answer, tuple | list) else []
    return {key: value for key, value in items if isinstance(value, Tensor)}


def _answer(ask: Asking, limits: Limits) -> dict[Key, OwnTensor]:
    """Its tensors of float32 that have a row for each token, or one for the sequence."""
    lengths = [length for length in (3, 5) if length <= limits.max_positions] or [1]
    found = [_tensors(ask(*_inputs(ask, _pair(limits, length)))) for length in lengths]
    fitting, others = dict[Key, OwnTensor](), list[str]()
    for key, tensor in found[0].items():
        tensors = [other[key] for other in found if key in other]
        kinds = set.intersection(
            *(set(_kinds(each, length, ask.turned))
              for each, length in zip(tensors, lengths, strict=False))
        )  # fmt: skip
        if tensor.dtype == torch.float32 and len(tensors) == len(found) and kinds:
            is_of_tokens, width = min(kinds)
            name: Any = "output" if key is None else str(key)
            of: Any = "token" if is_of_tokens else "sequence"
            fitting[key] = OwnTensor(name=name, of=of, width=width)
        else:
            shapes = " and ".join(str([*each.shape]) for each in tensors)
            dtype = str(tensor.dtype).removeprefix("torch.")
            others.append(f"{'' if key is None else key} {shapes} of {dtype}".strip())
    said = "; ".join(others)
    if not fitting:
        raise UsageError(
            f"{ask.name} answers two sequences of {' and '.join(map(str, lengths))} tokens with"
            f" {said or 'no tensor'}: a tensor of float32 is needed, [B, S, width] or [B, width]."
            " reference=lambda ids: ... makes one of it"
        )
    if said:
        say(f"left out of its answer, for two sequences: {said}")
    return fitting


def _chosen(tensors: dict[Key, OwnTensor], outputs: Sequence[str]) -> dict[Key, OwnTensor]:
    """outputs: names of tensors; or new names of those without, in order. All without. UsageError
    if there are none such."""
    keys = {own.name: key for key, own in tensors.items()}
    if set(outputs) <= keys.keys():
        return {keys[name]: tensors[keys[name]] for name in outputs or keys}
    if any(isinstance(key, str) for key in keys.values()) or len(outputs) > len(tensors):
        raise UsageError(
            f"outputs names {', '.join(outputs)}: the module answers with {', '.join(keys)}"
        )
    named = zip(outputs, tensors.items(), strict=False)
    return {key: own.model_copy(update={"name": name}) for name, (key, own) in named}


def _kinds(answer: Tensor, length: int, turned: bool) -> Iterator[tuple[bool, int]]:
    """How an answer to two sequences may be read: of tokens or not, and its width."""
    grid = (length, 2) if turned else (2, length)
    shape = tuple(answer.shape)
    if shape[:2] == grid and len(shape) in (2, 3):
        yield True, shape[2] if len(shape) == 3 else 1
    if shape[:1] == (2,) and len(shape) in (1, 2):
        yield False, shape[1] if len(shape) == 2 else 1


def _laid_out(answer: Any, found: AsItIs) -> list[Tensor]:
    """Each tensor as `[B, S, width]`, or `[B, 1, width]` of sequences."""
    tensors = _tensors(answer)
    return [
        _by_token(tensors[key], found.ask.turned)
        if own.of == "token"
        else tensors[key].reshape(-1, 1, own.width)
        for key, own in found.tensors.items()
    ]


def _by_token(answer: Tensor, turned: bool) -> Tensor:
    rows = answer.unsqueeze(-1) if answer.dim() == 2 else answer
    return rows.transpose(0, 1) if turned else rows


def _write_uncertified(found: AsItIs, folder: Path, name: str, version: int) -> Bundle:
    inputs, limits = _inputs(found.twin, _pair(found.limits)), found.limits
    names = [VECTORS if limits.input_width else IDS, TYPES][: len(inputs)]
    axes = dict.fromkeys(range(2 if limits.max_positions > 1 else 1), Dim.DYNAMIC)
    shapes = dict.fromkeys(("tokens", "types")[: len(inputs)], axes)
    try:
        with as_found(found.twin), plain_attention(), traceable():
            graph = export_module(_Graph(found), tuple(inputs), names, [ANSWER], shapes)
    except UnfitError:
        raise
    except Exception as error:  # of torch.export, which raises many kinds
        raise UnfitError(f"{found.ask.name} has no graph of its own: {_why(error)}") from error
    if small := {
        SMALL[attribute.i]
        for node in graph.proto.graph.node
        for attribute in node.attribute
        if node.op_type == "Cast" and attribute.i in SMALL
    }:
        raise UnfitError(
            f"{found.ask.name} computes in {', '.join(sorted(small))}, as under torch.autocast,"
            " and no graph rounds alike: leave it out in evaluation mode, as by"
            " torch.autocast(..., enabled=self.training)"
        )
    model_file.save(graph, folder / GRAPHS["fp32"])
    manifest = {
        "name": name,
        "version": version,
        "layout": "packed",
        "config": {},
        "d_model": sum(tensor.width for tensor in found.tensors.values()),
        "heads": {},
        "n_norms": 0,
        "as_it_is": [*found.tensors.values()],
        "limits": limits.model_dump(exclude={"max_text_tokens"}),
        "precisions": {"fp32": GRAPHS["fp32"]},
        "default_precision": "fp32",
        "labels": None,
        "pooling": "mean",
        "normalize": False,
        "opset": OPSET,
        "versions": versions(),
        "source": found.origin,
    }
    return bundles.write_manifest(folder, manifest)


def certificate_of(bundle: Bundle, found: AsItIs, samples: Sequence[Batch] = ()) -> dict[str, Any]:
    """CertificationError if what is served is not what the module answers."""
    say("loading the graph into onnxruntime")
    with runs_in_words(f"the graph of {found.ask.name} fails in onnxruntime"):
        model, checks = Model(bundle), list[Check]()
        for check in _compare(model, found, samples):
            if not check.passed:
                raise CertificationError(
                    f"{check.case}: the graph's answer differs from {found.ask.name}'s by"
                    f" {check.difference:.3g}, the limit is {check.limit:.3g}: the module may"
                    " branch on the length, or choose among equal numbers (topk, argmax, sort)"
                )
            checks.append(check)
    engine, chooses = model.engine("fp32"), _chooses(model)
    assert isinstance(engine, OwnEngine)
    if chooses:
        say(
            f"{found.ask.name} chooses by comparing numbers (topk, argmax): among nearly equal ones"
            " onnxruntime may choose otherwise. With samples= ids of yours are compared too"
        )
    worst = max(checks, key=lambda check: check.difference / check.limit)
    say(
        f"compared {len(checks)} requests, sequences of 1 to {found.longest} tokens, with"
        f" {found.ask.name}: the largest difference is {worst.difference:.2g}, of {worst.limit:.1g}"
    )
    digests = known_digests(model, "fp32")
    fingerprint = engine.fingerprint.proved(digests)
    return {
        "passed": True,
        "processor": f"{processor().name}: {processor().kind}",
        "versions": versions(),
        "provider": "cpu",
        "fingerprint": {"fp32": fingerprint.digest},
        "fingerprint_parts": {"fp32": fingerprint.parts()},
        "nodes": nodes(model),
        "reference": "the module alone, one sequence at a time",
        "checks": [asdict(check) for check in checks],
        "sequences_together": not engine.runs_alone,  # of one length, on this processor
        "chooses_among_numbers": chooses,  # among nearly equal ones it may choose otherwise
        "known_answer": {"fp32": selfcheck.make_known_answer(engine, bundle.manifest.limits)},
        "known_digests": {"fp32": digests},
        "compared_with": {
            "kind": "reference", "name": found.ask.name, "output": "output",
            "sha256": found.origin["sha256"],
        },
    }  # fmt: skip


def _compare(model: Model, found: AsItIs, samples: Sequence[Batch]) -> Iterator[Check]:
    """Every length of LENGTHS, every length whose forward is another than that of the longest, on
    both sides of it, and the samples: through the server's own path, ragged, then padded."""
    limits = model.bundle.manifest.limits
    unlike = {*_unlike(found)}
    near = {length + step for length in unlike for step in (-1, 0, 1)} - {0}
    if len(near) > MANY:
        say(
            f"{found.ask.name} makes other numbers at {len(unlike)} of {found.longest} lengths, and"
            " each is compared: of a large module that takes minutes, of fewer lengths less,"
            " config={'max_positions': N}"
        )
    lengths = sorted({min(n, found.longest) for n in (*LENGTHS, found.longest, *near)})
    drawn = selfcheck.sequences(limits, lengths)
    batches = [*(drawn.sequence(index) for index in range(len(drawn))), *samples]
    some = [batch for batch in batches if batch.num_tokens <= 65]
    batches += _repeated(found, NUM_OF_CHOICES if _chooses(model) else NUM_REPEATED)
    with path_of(model) as path:
        for batch in batches:
            case = Case.from_batch(f"{batch.num_tokens} tokens", batch)
            try:
                answer = path.ask(case, "fp32")["output"]
            except ServiceError as error:
                raise CertificationError(
                    f"a sequence of {batch.num_tokens} tokens fails: {error}. If the module takes"
                    " fewer, say so: config={'max_positions': N}"
                ) from error
            yield from _checks(case.name, answer, [batch], found)
        ragged = Case.from_batch("ragged", Batch.joined([(one, 0) for one in some]))
        yield from _checks("ragged", path.ask(ragged, "fp32")["output"], some, found)
        width = max(batch.num_tokens for batch in some) + 5
        for where in ("right", "left", "holes"):
            grids = [selfcheck.place(batch, width, where) for batch in some]
            tokens, masks, types = zip(*grids, strict=True)
            cells, of_vectors = np.concatenate(tokens).tolist(), limits.input_width is not None
            case = Case(
                f"pads {where}",
                [] if of_vectors else cells,
                np.concatenate(masks).tolist(),
                np.concatenate(types).tolist() if found.ask.has_types else None,
                cells if of_vectors else None,
            )
            answer = path.ask(case, "fp32")["output"]
            yield from _checks(case.name, answer, some, found, [mask[0] != 0 for mask in masks])


def _chooses(model: Model) -> bool:
    return any(node.operator in CHOICES for node in model.engine("fp32").nodes()["body"])


def _repeated(found: AsItIs, num: int) -> Iterator[Batch]:
    """Sequences of one to three different ids or vectors."""
    draws = np.random.default_rng(0)
    for index in range(num):
        length = min(int(draws.integers(2, 34)), found.longest)
        few = 1 + index % 3
        one_each = selfcheck.sequences(found.limits, [few], seed=index).tokens
        if found.limits.vocab_size:
            one_each = draws.integers(0, found.limits.vocab_size, few)
        types = [np.zeros(length, np.int64)] if found.ask.has_types else None
        yield Batch.of([one_each[draws.integers(0, len(one_each), length)]], types)


def _checks(
    name: str,
    answer: Any,
    batches: Sequence[Batch],
    found: AsItIs,
    real: Sequence[Array] | None = None,
) -> Iterator[Check]:
    """The largest difference of each tensor, and its limit: NEAR of the largest number. real: where
    the tokens of each row stand among pads."""
    expected = [found.rows(batch) for batch in batches]
    for own in found.tensors.values():
        rows = answer[own.name] if isinstance(answer, dict) else answer
        difference, largest = np.float64(0), 0.0
        for index, (made, each) in enumerate(zip(rows, expected, strict=True)):
            got = np.array(made, np.float32)
            if real and own.of == "token":
                got = got[real[index]]
            got = got.reshape(each[own.name].shape)
            difference = np.maximum(difference, tolerances.largest(got - each[own.name]))  # or NaN
            largest = max(largest, tolerances.largest(each[own.name]))
        yield Check(name, own.name, "fp32", float(difference), NEAR * max(largest, 1e-3))


def _unlike(found: AsItIs) -> Iterator[int]:
    """Lengths whose forward is another than that of the longest."""
    row = selfcheck.sequences(found.limits, [found.longest])

    def run(length: int) -> Any:
        tokens, *types = (part[:, :length] for part in _inputs(found.twin, row))
        return list_calls(found.twin, tokens, types[0] if types else None)

    # recurrent layers are one operator there, whatever the length
    with as_found(found.twin), plain_attention(), traceable(), suppress(OriginalError):
        yield from unlike_lengths(run, found.longest)


def _why(error: BaseException) -> str:
    """The first cause of an error of PyTorch's exporter, in one line."""
    while error.__cause__:
        error = error.__cause__
    if isinstance(error, UnfitError):
        return str(error)
    if "DataDependent" in type(error).__name__:
        return "its forward branches on numbers of ids or rows, which no graph does"
    words = " ".join(str(error).split())
    if "inputs['tokens'].shape[0]" in words:
        return "it makes a number in Python of the batch, as len(x) does: x.shape[0] is followed"
    if "inferred a static shape" in words:
        return (
            "PyTorch's exporter writes it for one length alone: forward makes a number in Python of"
            " the length, as a loop over tokens does, or a table that it keeps for the next call:"
            " operators of whole sequences are written for all"
        )
    if named := re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", words):
        return f"ONNX has no {named[1]}: make it of other operators"
    return (
        f"{type(error).__name__}: {words[:MOST_WORDS]}. Do it another way in forward, or leave it"
        " out by reference=lambda x: ..."
    )
