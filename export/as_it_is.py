"""A module as it is: its own graph, without recognition, and the certificate of what it answers.

The graph takes sequences of one length, and knows no pads: the server drops them when it reads a
request. So nothing of the module must be understood. `torch.export` keeps one branch of those that
depend on the length, silently: the certificate compares lengths on both sides.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from addnorm.export.certificate import tolerances
from addnorm.export.certificate.graph.exact import versions
from addnorm.export.certificate.parity import Check, known_digests, nodes
from addnorm.export.certificate.served import Case, CertificationError, path_of
from addnorm.export.graphs import model_file
from addnorm.export.graphs.graph import UnfitError, export_module
from addnorm.export.modules.asking import Asking, copy_module, drawn_ids, list_calls
from addnorm.export.modules.operators.lengths import unlike_lengths
from addnorm.export.modules.operators.trace import plain_attention
from addnorm.export.modules.recognize import NotRecognized
from addnorm.export.sources.original import Array, OriginalError, as_found, digest
from addnorm.export.sources.program import Sample, ids_of
from addnorm.export.sources.sources import UsageError
from addnorm.export.writer import GRAPHS, REFUSALS, Plan, place_for, say
from addnorm.model.grid import OPSET
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.device.processor import processor
from addnorm.service.engine.engine import TYPES
from addnorm.service.engine.model import Model
from addnorm.service.engine.own_engine import ANSWER, IDS, LENGTHS, OwnEngine
from addnorm.service.engine.session import runs_in_words
from addnorm.service.errors import ServiceError

NO_LIMIT = 512  # tokens, where the module sets no limit
NEAR = 1e-4  # of the largest number: two orders of additions in float32
EXAMPLE = 7  # tokens of the sequences that the graph is traced with
MOST_WORDS = 200  # characters of an error of PyTorch's exporter
# Operators that choose by comparing numbers. PyTorch and onnxruntime choose otherwise among equals,
# and equal rows come from equal ids.
CHOICES = {"TopK", "ArgMax", "ArgMin"}
NUM_REPEATED, NUM_OF_CHOICES = 6, 200  # sequences of few different ids that are compared


class AsItIs(NamedTuple):
    """A module that is to be served as it is.

    ask: calls it. twin: the same on a copy, which is exported. longest: tokens that it takes.
    at: where in its answer the tensor that is served stands. is_of_tokens: it has a row for each
    token, else one for a sequence.
    """

    ask: Asking
    twin: Asking
    longest: int
    vocab_size: int
    at: str | int | None
    is_of_tokens: bool
    width: int
    origin: dict[str, Any]

    @property
    def words(self) -> str:
        """What it takes and answers."""
        answer = f"[B, S, {self.width}]" if self.is_of_tokens else f"[B, {self.width}]"
        return f"one graph, ids [B, S] of at most {self.longest} tokens to {answer}"

    def rows(self, ids: Sequence[int], types: Sequence[int] | None) -> Array:
        """What it answers to one sequence alone, `[S, width]` or `[1, width]`. UnfitError unless it
        answers so twice."""
        inputs = [torch.tensor([row]) for row in (ids, types) if row is not None]
        num_rows = len(ids) if self.is_of_tokens else 1
        with as_found(self.ask):
            first, second = (_tensors(_call(self.ask, inputs))[self.at] for _ in range(2))
        if first.numel() != num_rows * self.width:
            raise UnfitError(
                f"{self.ask.name} answers {len(ids)} tokens alone with {list(first.shape)}, and in"
                f" a batch with rows of {self.width} numbers"
            )
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise UnfitError(
                f"{self.ask.name} gives two answers to one sequence: something in it is random in"
                " evaluation mode, or it keeps something between calls"
            )
        found: Array = first.detach().cpu().numpy().reshape(num_rows, self.width)
        if not np.isfinite(found).all():
            raise UnfitError(f"{self.ask.name} answers {len(ids)} tokens with NaN or infinity")
        return found


class _Graph(nn.Module):
    """ids `[B, S]` -> the answer, in the row of every token."""

    def __init__(self, found: AsItIs) -> None:
        super().__init__()
        self.module, self._found = found.twin, found

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        types = [] if token_type_ids is None else [token_type_ids]
        answer = _tensors(self.module(input_ids, *types))[self._found.at]
        rows = _laid_out(answer, self._found, input_ids.shape[1])
        if not self._found.is_of_tokens:
            rows = rows.expand(-1, input_ids.shape[1], -1)
        return rows


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
    samples: Sequence[Sample] = (),
    origin: Mapping[str, Any] | None = None,
    others: Mapping[str, Any] | None = None,
) -> Bundle:
    """Writes `out/name/version/`, certified. stated: `max_positions` and `vocab_size`, where the
    module does not show them. origin: where the module is from. others: options of recognized
    modules. UsageError, UnfitError or CertificationError, in words."""
    if plan.precisions != ("fp32",) or plan.lens or plan.layout != "packed":
        raise UsageError("a module as it is has fp32 alone, and no lens: ask for no precision")
    if given := [option for option, value in (others or {}).items() if value]:
        raise UsageError(
            f"{', '.join(given)} has no meaning of a module as it is, which takes token ids and"
            " gives numbers: leave it out"
        )
    found = look_at(module, reference, stated or {}, batch_first, origin or {})
    with place_for(out, name, version) as (folder, number):
        say(f"exporting {name}/{number} as it is: {found.words}")
        bundle = _write_uncertified(found, folder, name, number)
        bundles.write_certificate(bundle, certificate_of(bundle, found, samples))
    return bundles.read(out / name / str(number))


def export_unrecognized(why: NotRecognized, *arguments: Any, **options: Any) -> Bundle:
    """The same for a module that is not recognized, which is said. UsageError with both reasons."""
    say(f"not recognized, so it is served as it is: {why.why}")
    try:
        return export(*arguments, **options)
    except REFUSALS as error:
        raise UsageError(f"{why.why}. Nor can it be served as it is: {error}") from error


def certificate_again(
    bundle: Bundle,
    module: nn.Module,
    reference: Callable[..., Any] | None = None,
    batch_first: bool | None = None,
    samples: Sequence[Sample] = (),
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The certificate of a bundle, made anew. UsageError if it was made of another module."""
    limits = bundle.manifest.limits
    stated = {"max_positions": limits.max_positions, "vocab_size": limits.vocab_size}
    found = look_at(module, reference, stated, batch_first, origin or {})
    if found.origin != bundle.manifest.source:
        raise UsageError(
            f"{bundle.ref} was made from {bundle.manifest.source}, this is {found.origin}"
        )
    say(f"verifying {bundle.ref}")
    return certificate_of(bundle, found, samples)


def look_at(
    module: nn.Module,
    reference: Callable[..., Any] | None,
    stated: Mapping[str, Any],
    batch_first: bool | None,
    origin: Mapping[str, Any],
) -> AsItIs:
    """Calls the module, and sees what it takes and answers. UsageError says what is missing."""
    name = type(module).__qualname__
    if unknown := stated.keys() - {"max_positions", "vocab_size"}:
        raise UsageError(
            f"config names {', '.join(sorted(unknown))}: of a module as it is, max_positions and"
            " vocab_size can be said"
        )
    try:
        copied = copy_module(module)
    except Exception as error:  # it is the caller's code
        raise UsageError(f"{name} cannot be copied: {_first(error)}") from error
    call, has_types = _called(reference or copied)
    twin = Asking(call, copied, batch_first is False, has_types)
    own_call, _ = _called(reference or module)
    ask = Asking(own_call, module, batch_first is False, has_types)
    with as_found(twin):
        vocab_size = stated.get("vocab_size") or _vocab_size(twin)
        longest = _longest(twin, stated.get("max_positions", NO_LIMIT), vocab_size)
        at, of_tokens, width = _answer(twin, longest)
    own = {"module": name, "sha256": digest(module), **origin}
    found = AsItIs(ask, twin, longest, vocab_size, at, of_tokens, width, own)
    _refuse_mixing(found)
    return found


def _refuse_mixing(found: AsItIs) -> None:
    """UsageError for a module that answers a sequence otherwise where another stands beside it: as
    one that takes `[S, B]` and is called with `[B, S]`."""
    length = min(EXAMPLE, found.longest)
    row = drawn_ids(2 * length, found.vocab_size, set())
    rows = [row[:length], row[length:]]
    types = [0] * length if found.ask.has_types else None
    inputs = [torch.tensor(rows), *([] if types is None else [torch.tensor([types] * 2)])]
    with as_found(found.ask):
        together = _laid_out(_tensors(_call(found.ask, inputs))[found.at], found, length)
    for index, ids in enumerate(rows):
        alone = found.rows(ids, types)
        difference = tolerances.largest(together[index].detach().cpu().numpy() - alone)
        if not difference <= NEAR * max(tolerances.largest(alone), 1e-3):
            other = "[B, S]" if found.ask.turned else "[S, B]"
            raise UsageError(
                f"{found.ask.name}'s answer to a sequence depends on the others of its batch: it"
                f" differs by {difference:.3g}. If it takes ids {other}, say"
                f" batch_first={found.ask.turned}"
            )


def _called(call: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """How it is called with ids, and with types where it asks for them. A mask that it asks for
    gets ones: nothing is a pad."""
    forward = call.forward if isinstance(call, nn.Module) else call
    needed = [
        x.name for x in inspect.signature(forward).parameters.values()
        if x.default is x.empty and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    kinds = [
        "mask" if "mask" in name.lower() or "attn" in name.lower()
        else "types" if "type" in name.lower() or "seg" in name.lower()
        else None
        for name in needed[1:]
    ]  # fmt: skip
    if not needed or None in kinds or kinds.count("types") > 1:
        raise UsageError(
            f"forward needs {', '.join(needed) or 'no input'}: say how it is called with one"
            " sequence of token ids, reference=lambda ids: module(ids, ...)"
        )

    def asked(ids: Tensor, *types: Tensor) -> Any:
        given = {"mask": torch.ones_like(ids), "types": types[0] if types else None}
        return call(ids, *(given[str(kind)] for kind in kinds))

    return asked, "types" in kinds


def _call(ask: Asking, inputs: Sequence[Tensor]) -> Any:
    try:
        return ask(*inputs)
    except Exception as error:  # it is the caller's code
        num = inputs[0].shape[1]
        raise UsageError(
            f"{ask.name} fails on a sequence of {num} tokens: {_first(error)}"
        ) from error


def _inputs(ask: Asking, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    ids = torch.tensor(rows)
    return [ids, torch.arange(ids.shape[1]).expand(ids.shape) % 2] if ask.has_types else [ids]


def _vocab_size(ask: Asking) -> int:
    """The rows of the smallest table that is read at the token ids."""
    ids = [0, 1, 0, 0, 1]
    sizes = list[int]()

    def look(table: nn.Embedding, given: tuple[Any, ...]) -> None:
        if isinstance(given[0], Tensor) and given[0].flatten().tolist() == ids:
            sizes.append(table.num_embeddings)

    tables = [part for part in ask.module.modules() if isinstance(part, nn.Embedding)]
    hooks = [table.register_forward_pre_hook(look) for table in tables]
    try:
        _call(ask, _inputs(ask, [ids])[:1] if not ask.has_types else [torch.tensor([ids])] * 2)
    finally:
        for hook in hooks:
            hook.remove()
    if not sizes:
        raise UsageError(
            "no nn.Embedding is read at the token ids: say how many there are,"
            " config={'vocab_size': N}"
        )
    return min(sizes)


def _longest(ask: Asking, limit: int, vocab_size: int) -> int:
    """The most tokens that the module takes, up to a limit, of whatever ids: some may count as no
    place."""
    ids = sorted({0, 1 % vocab_size, vocab_size // 2, vocab_size - 1})
    for index in ids:
        _call(ask, _inputs(ask, [[index]]))  # each module must take one
    takes, fails = 1, limit + 1
    length = limit
    while fails - takes > 1:
        try:
            for index in ids:
                _call(ask, _inputs(ask, [[index] * length]))
            takes = length
        except UsageError:
            fails = length
        length = (takes + fails) // 2
    return takes


def _tensors(answer: Any) -> dict[str | int | None, Tensor]:
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


def _answer(ask: Asking, longest: int) -> tuple[str | int | None, bool, int]:
    """Which of the module's tensors is served: the first of float32 that has a row for each token,
    or one for the sequence."""
    lengths = [length for length in (3, 5) if length <= longest] or [1]
    found = [_tensors(_call(ask, _inputs(ask, [[1] * length] * 2))) for length in lengths]
    shapes = dict[str, list[str]]()
    for key, tensor in found[0].items():
        if not all(key in other for other in found):
            continue
        kinds = {
            (is_of_tokens, width)
            for other, length in zip(found, lengths, strict=True)
            for is_of_tokens, width in _kinds(other[key], length, ask.turned)
        }
        for is_of_tokens, width in sorted(kinds):
            fits = all(
                (is_of_tokens, width) in _kinds(other[key], length, ask.turned)
                for other, length in zip(found, lengths, strict=True)
            )
            if fits and tensor.dtype == torch.float32:
                left = [str(other) for other in found[0] if other != key]
                if left:
                    say(
                        f"served is its tensor {key!r}; left out: {', '.join(left)}. For another,"
                        " reference=lambda ids: module(ids)[...]"
                    )
                return key, is_of_tokens, width
        dtype = str(tensor.dtype).removeprefix("torch.")
        shapes["" if key is None else str(key)] = [
            f"{list(other[key].shape)} of {dtype}" for other in found
        ]
    said = "; ".join(f"{key} {' and '.join(each)}".strip() for key, each in shapes.items())
    raise UsageError(
        f"{ask.name} answers two sequences of {' and '.join(map(str, lengths))} tokens with"
        f" {said or 'no tensor'}: a tensor of float32 is needed, [B, S, width] or [B, width]."
        " reference=lambda ids: ... makes one of it"
    )


def _kinds(answer: Tensor, length: int, turned: bool) -> Iterator[tuple[bool, int]]:
    """How an answer to two sequences may be read: of tokens or not, and its width."""
    grid = (length, 2) if turned else (2, length)
    shape = tuple(answer.shape)
    if shape[:2] == grid and len(shape) in (2, 3):
        yield True, shape[2] if len(shape) == 3 else 1
    if shape[:1] == (2,) and len(shape) in (1, 2):
        yield False, shape[1] if len(shape) == 2 else 1


def _laid_out(answer: Tensor, found: AsItIs, length: int) -> Tensor:
    """-> `[B, S, width]`, or `[B, 1, width]` of sequences."""
    if not found.is_of_tokens:
        return answer.reshape(-1, 1, found.width)
    rows = answer.unsqueeze(-1) if answer.dim() == 2 else answer
    return rows.transpose(0, 1) if found.ask.turned else rows


def _write_uncertified(found: AsItIs, folder: Path, name: str, version: int) -> Bundle:
    length = min(EXAMPLE, found.longest)
    row = drawn_ids(2 * length, found.vocab_size, set())
    inputs = _inputs(found.twin, [row[:length], row[length:]])
    names = [IDS, TYPES][: len(inputs)]
    shapes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in names}
    try:
        # PyTorch's own encoder compares the numbers of a mask, only to choose a quicker kernel
        with as_found(found.twin), plain_attention(), patch.object(
            nn.modules.transformer, "_detect_is_causal_mask", lambda mask, hint, size: hint is True
        ):  # fmt: skip
            graph = export_module(_Graph(found), tuple(inputs), names, [ANSWER], shapes)
    except UnfitError:
        raise
    except Exception as error:  # of torch.export, which raises many kinds
        raise UnfitError(f"{found.ask.name} has no graph of its own: {_why(error)}") from error
    model_file.save(graph, folder / GRAPHS["fp32"])
    types = {"type_vocab_size": 2} if found.ask.has_types else {}
    manifest = {
        "name": name,
        "version": version,
        "layout": "packed",
        "config": {},
        "d_model": found.width,
        "heads": {},
        "n_norms": 0,
        "as_it_is": "token" if found.is_of_tokens else "sequence",
        "limits": {"max_positions": found.longest, "vocab_size": found.vocab_size, **types},
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


def certificate_of(bundle: Bundle, found: AsItIs, samples: Sequence[Sample] = ()) -> dict[str, Any]:
    """CertificationError if what is served is not what the module answers."""
    say("loading the graph into onnxruntime")
    with runs_in_words(f"the graph of {found.ask.name} fails in onnxruntime"):
        model = Model(bundle)
        checks = [*_compare(model, found, samples)]
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
    for check in checks:
        if not check.passed:
            raise CertificationError(
                f"{check.case}: the graph's answer differs from {found.ask.name}'s by"
                f" {check.difference:.3g}, the limit is {check.limit:.3g}: the module may branch"
                " on the length, or choose among equal numbers (topk, argmax, sort)"
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


def _compare(model: Model, found: AsItIs, samples: Sequence[Sample]) -> Iterator[Check]:
    """Every length of LENGTHS, every length whose forward is another than that of the longest, on
    both sides of it, and the samples: through the server's own path, ragged, then padded."""
    limits = model.bundle.manifest.limits
    unlike = {length for length, _ in _unlike(found)}
    near = {length + step for length in unlike for step in (-1, 0, 1)}
    lengths = sorted({min(n, found.longest) for n in (*LENGTHS, found.longest, *near) if n > 0})
    drawn = selfcheck.sequences(limits, lengths)
    own = [Batch.of([np.array(ids, np.int64)]) for ids in ids_of(samples)]
    batches = [*(drawn.sequence(index) for index in range(len(drawn))), *own]
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
            yield _check(case.name, answer, [batch], found)
        ragged = Case.from_batch("ragged", Batch.joined([(one, 0) for one in some]))
        yield _check("ragged", path.ask(ragged, "fp32")["output"], some, found)
        width = max(batch.num_tokens for batch in some) + 5
        for where in ("right", "left", "holes"):
            grids = [selfcheck.place(batch, width, where) for batch in some]
            ids, masks, types = zip(*grids, strict=True)
            case = Case(
                f"pads {where}",
                np.concatenate(ids).tolist(),
                np.concatenate(masks).tolist(),
                np.concatenate(types).tolist() if found.ask.has_types else None,
            )
            answer = path.ask(case, "fp32")["output"]
            if found.is_of_tokens:
                answer = [
                    [row for row, real in zip(rows, mask[0], strict=True) if real]
                    for rows, mask in zip(answer, masks, strict=True)
                ]
            yield _check(case.name, answer, some, found)


def _chooses(model: Model) -> bool:
    return any(node.operator in CHOICES for node in model.engine("fp32").nodes()["body"])


def _repeated(found: AsItIs, num: int) -> Iterator[Batch]:
    """Sequences of one to three different ids."""
    draws = np.random.default_rng(0)
    for index in range(num):
        length = min(int(draws.integers(2, 34)), found.longest)
        ids = draws.integers(0, found.vocab_size, 1 + index % 3)
        types = [np.zeros(length, np.int64)] if found.ask.has_types else None
        yield Batch.of([draws.choice(ids, length)], types)


def _check(name: str, answer: list[Any], batches: Sequence[Batch], found: AsItIs) -> Check:
    """The largest difference, and its limit: NEAR of the largest number."""
    difference, largest = np.float64(0), 0.0
    for rows, batch in zip(answer, batches, strict=True):
        types = None if batch.types is None else batch.types.tolist()
        expected = found.rows(batch.tokens.tolist(), types)
        got = np.array(rows, np.float32).reshape(expected.shape)
        difference = np.maximum(difference, tolerances.largest(got - expected))  # NaN stays
        largest = max(largest, tolerances.largest(expected))
    return Check(name, "output", "fp32", float(difference), NEAR * max(largest, 1e-3))


def _unlike(found: AsItIs) -> Iterator[tuple[int, int]]:
    row = drawn_ids(found.longest, found.vocab_size, set())

    def run(length: int) -> Any:
        ids, *types = _inputs(found.twin, [row[:length]])
        return list_calls(found.twin, ids, types[0] if types else None)

    with as_found(found.twin), plain_attention(), suppress(OriginalError):
        yield from unlike_lengths(run, found.longest)


def _first(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _why(error: BaseException) -> str:
    """The first cause of an error of PyTorch's exporter, in one line."""
    while error.__cause__:
        error = error.__cause__
    if "DataDependent" in type(error).__name__:
        return "its forward branches on numbers of ids or rows, which no graph does"
    words = " ".join(str(error).split())
    if "inferred a static shape" in words:
        return "PyTorch's exporter writes it for one length alone, as it does recurrent layers"
    return f"{type(error).__name__}: {words[:MOST_WORDS]}"
