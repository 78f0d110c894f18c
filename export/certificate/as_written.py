"""The certificate of an authors' own graph: its weights and numbers, and what is served, compared
with the program, from token ids or vectors and from texts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from addnorm.export import recall
from addnorm.export.certificate import authors, parity, peaks, tolerances
from addnorm.export.certificate.certificate import (
    Certificate,
    Check,
    certify,
    refuse_failures,
    table_row,
)
from addnorm.export.certificate.graph import exact, structure, traced
from addnorm.export.certificate.served import (
    Case,
    CertificationError,
    Served,
    compositions,
    count_unequal,
    path_of,
)
from addnorm.export.graphs import model_file
from addnorm.export.graphs.authors import MODULE, Exported
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.quantize import measure
from addnorm.export.graphs.steady import steady, with_gemms
from addnorm.export.reference.modules import batches_of
from addnorm.export.reference.original import Array
from addnorm.export.reference.reference import EXAMPLE, NEAR, NoNumbersError, Reference
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Tokens
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.model import Model
from addnorm.service.engine.own_engine import OwnEngine
from addnorm.service.engine.session import runs_in_words
from addnorm.service.errors import NotFinite, ServiceError

# Operators that choose by comparing numbers. PyTorch and onnxruntime choose otherwise among equals,
# and equal rows come from equal ids.
CHOICES = {"TopK", "ArgMax", "ArgMin"}
NUM_REPEATED, NUM_OF_CHOICES = 6, 200  # sequences of few different ids that are compared
NUM_COMPOSITIONS = 20  # drawn batches whose sequences must have the bits that they have alone
# numbers of a row whose direction says little: all rows of a case are compared as one in int8
FEW_NUMBERS = 16
MOST_LOGITS = 33  # tokens whose logits of a vocabulary are compared in one answer
LOUD = (1e2, 1e4)  # factors of vectors that are compared too
PADS = (0, 1, 2, 3)  # ids that people take for pads
# Numbers are changed by so much, to see how far rounding moves an answer; the graph may be so many
# times as far from it
ROUNDING, MOST_SHIFTS = 2.0**-20, 8


def certificate_of(
    bundle: Bundle,
    reference: Reference,
    exported: Exported,
) -> Certificate:
    """exported: what the graph was, or must have been, written from.
    CertificationError if what is served is not what the program answers."""
    checks, extras = [*_compare_constants(bundle, reference, exported)], dict[str, Any]()
    if "int8" in bundle.manifest.precisions:
        checks += _compare_int8_file(bundle, exported)
    tqdm.write("loading the graphs into onnxruntime")
    with runs_in_words(f"the graph of {reference.name} fails in onnxruntime"):
        peak_bytes = peaks.measure(bundle)
        tqdm.write(peaks.in_words(peak_bytes, reference.longest, reference.uncut))
        model = Model(bundle)
        checks += compare_answers(model, reference, exported.lengths)
        for precision in model.engines:
            checks += _compare_bits(model, precision)
    if bundle.manifest.int8.keep_recall is not None:
        body = with_gemms(_fp32_of(bundle, exported))
        searched = recall.certify(bundle, body, reference.wishes.texts)
        checks.append(searched["check"])
        extras["recall"] = searched["recall"]
    chooses = _chooses(model)
    if chooses:
        tqdm.write(
            f"{reference.name} chooses by comparing numbers (topk, argmax): among nearly equal"
            " numbers onnxruntime may choose differently. Set samples= to compare your own ids as"
            " well"
        )
    of_fp32 = [check for check in checks if check.precision == "fp32"]
    worst = max(of_fp32 or checks, key=lambda check: check.difference / (check.limit or 1))
    tqdm.write(
        f"{len(checks)} comparisons passed, on sequences of 1 to {reference.longest} tokens, with"
        f" {reference.name}: the largest difference is {worst.difference:.2g}, the limit is"
        f" {worst.limit:.1g}"
    )
    outputs = [tensor.name for tensor in reference.tensors.values()]
    tasks = {"texts": [*reference.texts.tasks]} if reference.texts else {}
    return certify(
        model,
        checks,
        "the authors' program, one sequence at a time",
        {
            "kind": reference.kind,
            "name": reference.name,
            "output": outputs[0],
            "outputs": outputs,
            **tasks,
            **{name: reference.origin[name] for name in ("sha256",) if name in reference.origin},
        },
        # of one length, on this processor
        sequences_together=not any(
            engine.runs_alone for engine in model.engines.values() if isinstance(engine, OwnEngine)
        ),
        chooses_among_numbers=chooses,  # among nearly equal ones it may choose otherwise
        peak_bytes=peak_bytes,
        **extras,
    )


def _compare_constants(bundle: Bundle, reference: Reference, exported: Exported) -> Iterator[Check]:
    """CertificationError for what differs. Comes first: no session may see a wrong graph."""
    tqdm.write("comparing the graph's weights and numbers with the program's")
    graph = _fp32_of(bundle, exported)
    weights = {f"{MODULE}.{name}": tensor for name, tensor in reference.ask.state_dict().items()}
    for comparison, words in traced.compare(graph, exported.program, weights):
        if words:
            rest = f"; and {len(words) - 3} more" if len(words) > 3 else ""
            raise CertificationError(f"{comparison} (fp32): {'; '.join(words[:3])}{rest}")
        yield Check(comparison, "differences", "fp32", 0, 0)
    if reference.head is not None and exported.head is not None:
        head = model_file.load(bundle.head("logits"))
        comparisons = {
            "logits, weights": exact.compare_weights(head, reference.head),
            "logits, graph": [*structure.differences(head, exported.head)],
        }
        findings = [(("fp32", name), words) for name, words in comparisons.items()]
        yield from parity.refuse_findings(bundle, findings)


def compare_answers(model: Model, reference: Reference, lengths: Sequence[int]) -> list[Check]:
    """The answers of each precision that the model has, compared with the program's. Raises as
    `certificate_of`."""
    checks = list[Check]()
    for precision in model.engines:
        if precision == "int8":
            checks += _compare_int8(model, reference, lengths)
        else:
            checks += _compare_tokens(model, reference, lengths)
        checks += _compare_texts(model, precision, reference)
    return [*checks, *_compare_head(model, reference, lengths)]


def _compare_head(model: Model, reference: Reference, lengths: Sequence[int]) -> Iterator[Check]:
    """Logits of a vocabulary, which a graph of their own makes of fp32's rows."""
    if reference.head is None or "fp32" not in model.engines:
        return
    short_lengths = [length for length in lengths if length <= MOST_LOGITS]
    drawn = selfcheck.sequences(model.bundle.manifest.limits, short_lengths)
    with path_of(model) as path:
        for batch in (drawn.sequence(index) for index in range(len(drawn))):
            case = Case.from_batch(f"{batch.num_tokens} tokens", batch)
            rows = torch.from_numpy(reference.rows(batch)["activations"])
            with torch.no_grad():
                expected = reference.head(rows).numpy()
            logits = {"positions": "all"}
            (answer,) = path.ask(case, "fp32", outputs=["logits"], logits=logits)["logits"]
            difference = tolerances.largest(np.array(answer, np.float32) - expected)
            limit = NEAR * max(tolerances.largest(expected), 1e-3)
            check = Check(case.name, "logits", "fp32", float(difference), limit)
            yield from _refuse_first_failure(iter([check]), reference)


def _compare_tokens(model: Model, reference: Reference, lengths: Sequence[int]) -> Iterator[Check]:
    """Sequences of each length and the samples through the server's own path, then many of them
    ragged and padded, then those that are never drawn."""
    limits, batches = model.bundle.manifest.limits, _batches(model, reference, lengths)
    short = [batch for batch in batches if batch.num_tokens <= 65]
    batches += _repetitive_batches(reference, NUM_OF_CHOICES if _chooses(model) else NUM_REPEATED)
    with path_of(model) as path:
        for batch in batches:
            case = Case.from_batch(f"{batch.num_tokens} tokens", batch)
            try:
                yield from _refuse_first_failure(_checks(path, case, [batch], reference), reference)
            except ServiceError as error:
                raise CertificationError(
                    f"a sequence of {batch.num_tokens} tokens fails: {error}. If this is too long"
                    " for the module, set the limit: config={'max_positions': N}"
                ) from error
        for name, batch in _unusual(limits):
            yield from _refuse_first_failure(
                _compare_unusual(path, name, batch, reference), reference
            )
        ragged = Case.from_batch("ragged", Batch.joined([(batch, 0) for batch in short]))
        yield from _refuse_first_failure(_checks(path, ragged, short, reference), reference)
        width = max(batch.num_tokens for batch in short) + 5
        for place in ("right", "left", "holes"):
            grids = [selfcheck.place(batch, width, place) for batch in short]
            tokens, masks, types = zip(*grids, strict=True)
            cells, of_vectors = np.concatenate(tokens).tolist(), limits.input_width is not None
            case = Case(
                f"pads {place}",
                [] if of_vectors else cells,
                np.concatenate(masks).tolist(),
                np.concatenate(types).tolist() if reference.ask.has_types else None,
                cells if of_vectors else None,
            )
            real = [mask[0] != 0 for mask in masks]
            yield from _refuse_first_failure(_checks(path, case, short, reference, real), reference)


def _batches(model: Model, reference: Reference, lengths: Sequence[int]) -> list[Batch]:
    """A random sequence of each length, and the samples."""
    drawn = selfcheck.sequences(model.bundle.manifest.limits, lengths)
    sequences = [drawn.sequence(index) for index in range(len(drawn))]
    return sequences + batches_of(reference.wishes.numbers)


def _refuse_first_failure(checks: Iterator[Check], reference: Reference) -> Iterator[Check]:
    """CertificationError at the first that did not pass."""
    for check in checks:
        if not check.passed:
            raise CertificationError(
                f"{check.case}: the graph's answer differs from {reference.name}'s by"
                f" {check.difference:.3g}, the limit is {check.limit:.3g}: the program may"
                " branch on the length, or choose among equal numbers (topk, argmax, sort)"
            )
        yield check


def _chooses(model: Model) -> bool:
    return any(node.operator in CHOICES for node in model.engine(None).nodes()["body"])


def _fp32_of(bundle: Bundle, exported: Exported) -> Graph:
    """The graph that int8 is made of: the bundle's own, since another processor may export other
    bits; else that which is exported here."""
    if "fp32" in bundle.manifest.precisions:
        return model_file.load(bundle.graph("fp32"))
    return steady(exported.graph)


def _compare_int8_file(bundle: Bundle, exported: Exported) -> list[Check]:
    """Compares what is in it, bit for bit. Comes first: no session may see a wrong graph."""
    files, fp32 = parity.read_files(bundle), with_gemms(_fp32_of(bundle, exported))
    measured = measure(fp32, bundle.manifest.limits)
    findings = exact.compare_int8(files, fp32, measured, bundle.manifest)
    return parity.refuse_findings(bundle, findings)


def _compare_int8(model: Model, reference: Reference, lengths: Sequence[int]) -> Iterator[Check]:
    """Sequences of each length and the samples, each sent alone. All their rows are one case."""
    case, batches = "drawn sequences", _batches(model, reference, lengths)
    with path_of(model) as path:
        try:
            answers = [
                _rows(path, Case.from_batch(case, batch), "int8", [batch], reference)
                for batch in batches
            ]
        except ServiceError as error:
            raise CertificationError(f"{case} (int8): {error}") from error
    for tensor in reference.tensors.values():
        pairs = [pair for answer in answers for pair in answer[tensor.name]]
        got, expected = (np.concatenate(rows) for rows in zip(*pairs, strict=True))
        comparisons = list[tolerances.Result]()
        if tensor.name == "logits" and tensor.width > 1:
            comparisons += tolerances.labels(tensor.name, got, expected, "int8")
        if tensor.width < FEW_NUMBERS:
            got, expected = got.reshape(1, -1), expected.reshape(1, -1)
        comparisons += tolerances.vectors(tensor.name, got, expected, "int8")
        checks = [Check(case, output, "int8", *measures) for output, *measures in comparisons]
        tqdm.write(table_row(checks))
        refuse_failures(checks)
        yield from checks


def _checks(
    path: Served,
    case: Case,
    batches: Sequence[Batch],
    reference: Reference,
    real: Sequence[Array] | None = None,
) -> Iterator[Check]:
    """The largest difference of each tensor, and its limit: NEAR of the largest number. real: where
    the tokens of each row stand among pads."""
    for name, pairs in _rows(path, case, "fp32", batches, reference, real).items():
        difference, largest = np.float64(0), 0.0
        for got, expected in pairs:
            difference = np.maximum(difference, tolerances.largest(got - expected))
            largest = max(largest, tolerances.largest(expected))
        yield Check(case.name, name, "fp32", float(difference), NEAR * max(largest, 1e-3))


def _rows(
    path: Served,
    case: Case,
    precision: str,
    batches: Sequence[Batch],
    reference: Reference,
    real: Sequence[Array] | None = None,
) -> dict[str, list[tuple[Array, Array]]]:
    """The served rows of each sequence, and the program's, by the tensor's name. real: see
    `_checks`."""
    answer = path.ask(case, precision, outputs=_outputs(path.model.bundle))
    expected = [reference.rows(batch) for batch in batches]
    pairs = dict[str, list[tuple[Array, Array]]]()
    for tensor in reference.tensors.values():
        rows = answer[tensor.name] if tensor.name in answer else answer["output"]
        rows = rows[tensor.name] if isinstance(rows, dict) else rows
        pairs[tensor.name] = []
        for index, (values, tensors) in enumerate(zip(rows, expected, strict=True)):
            row = np.array(values, np.float32)
            if real and tensor.of == "token":
                row = row[real[index]]
            authors_row = tensors[tensor.name]
            pairs[tensor.name].append((row.reshape(authors_row.shape), authors_row))
    return pairs


def _outputs(bundle: Bundle) -> list[str]:
    """The outputs that its tensors are: by their names, in older bundles as parts of `output`."""
    standard = {*bundle.manifest.heads, *(["activations"] if bundle.rows_are_tokens else [])}
    tensors = bundle.manifest.as_it_is or ()
    names = (tensor.name if tensor.name in standard else tensor.output for tensor in tensors)
    return [*dict.fromkeys(names)]


def _repetitive_batches(reference: Reference, num: int) -> Iterator[Batch]:
    """Sequences of one to three different ids or vectors."""
    draws = np.random.default_rng(0)
    for index in range(num):
        length = min(int(draws.integers(2, 34)), reference.longest)
        num_different = 1 + index % 3
        choices = selfcheck.sequences(reference.limits, [num_different], seed=index).tokens
        if reference.limits.vocab_size:
            choices = draws.integers(0, reference.limits.vocab_size, num_different)
        types = [np.zeros(length, np.int64)] if reference.ask.has_types else None
        yield Batch.of([choices[draws.integers(0, len(choices), length)]], types)


def _unusual(limits: Limits) -> Iterator[tuple[str, Batch]]:
    """Sequences that are never drawn, named: modules take zeros or an id for pads."""
    rows = selfcheck.sequences(limits, [EXAMPLE]).tokens
    places, half, width = np.arange(len(rows)), len(rows) // 2, limits.input_width
    sequences = dict[str, Tokens]()
    if width:
        sequences |= {f"vectors times {factor:g}": rows * np.float32(factor) for factor in LOUD}
        sequences["equal vectors"] = np.repeat(rows[:1], len(rows), 0)
        sequences["one-hot vectors"] = np.eye(width, dtype=np.float32)[places % width]
        sequences["sparse vectors"] = rows * (np.arange(rows.size).reshape(rows.shape) % 5 == 0)
    hidden = {
        "all": places >= 0, "the first": places < half, "the last": places >= half,
        "every second": places % 2 == 1,
    }  # fmt: skip
    for pad in [0] if width else sorted({*PADS} & {*range(limits.vocab_size)}):
        for extent, is_pad in hidden.items():
            sequences[f"{extent} {pad}"] = sequence = rows.copy()
            sequence[is_pad] = pad
        sequences[f"{pad} alone"] = sequences[f"all {pad}"][:1]
    for name, sequence in sequences.items():
        yield name, Batch.of([sequence])


def _compare_unusual(
    path: Served, name: str, batch: Batch, reference: Reference
) -> Iterator[Check]:
    """The limit is wider by what rounding does to the module's own answer: to loud vectors much.
    CertificationError where one side has no numbers, and the other has."""
    answers = list[dict[str, Array] | None]()
    for factor in (1, 1 + ROUNDING):
        nearby = replace(batch, tokens=(batch.tokens * factor).astype(batch.tokens.dtype))
        try:
            answers.append(reference.rows(nearby))
        except NoNumbersError:
            answers.append(None)
    expected, moved = answers
    case, has_numbers = Case.from_batch(name, batch), True
    try:
        path.ask(case, "fp32", outputs=_outputs(path.model.bundle))
    except NotFinite:
        has_numbers = False
    if expected is None and not has_numbers:
        return
    if expected is None or not has_numbers:
        sides = ("the module", "its graph") if expected is None else ("its graph", "the module")
        raise CertificationError(
            f"{name}: {sides[0]} answers with NaN or infinity, {sides[1]} with numbers. This can"
            " happen if every row is hidden from attention. If PyTorch's fast path is the cause,"
            " call torch.backends.mha.set_fastpath_enabled(False) in your program and before the"
            " export; otherwise pass a reference=lambda x: ... that answers with numbers"
        )
    for check in _checks(path, case, [batch], reference):
        shift = tolerances.largest((moved or expected)[check.output] - expected[check.output])
        yield replace(check, limit=check.limit + MOST_SHIFTS * float(shift))


def _compare_texts(model: Model, precision: str, reference: Reference) -> Iterator[Check]:
    """Texts over the callers' routes."""
    if reference.words is None or reference.texts is None:
        return
    with path_of(model) as path:
        cases = authors.program_cases(
            path.service, model.bundle, reference.words, reference.texts, reference.wishes.texts
        )
        checks = [
            Check(name, output, precision, *measures)
            for name, compare in cases
            for output, *measures in compare(precision)
        ]
    refuse_failures(checks)
    yield from checks


def _compare_bits(model: Model, precision: str) -> Iterator[Check]:
    """Sequences in drawn batches, compared with the same alone."""
    limits = model.bundle.manifest.limits
    batches = compositions(model.engine(precision), limits, NUM_COMPOSITIONS)
    yield Check("in drawn batches", "unequal", precision, count_unequal(batches).unequal, 0)
