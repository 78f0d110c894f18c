"""Compares a bundle: the graphs are exactly the reference's, and the served answers are near to it.

`exact.py` compares the graphs, and `served.py` has the cases for what is served. Every result is
printed as it comes.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from addnorm.export.certificate import authors, extraction, forward, lens, served
from addnorm.export.certificate.authors import Compare
from addnorm.export.certificate.certificate import Check, refuse_failures, table_row
from addnorm.export.certificate.graph import exact
from addnorm.export.certificate.served import (
    CertificationError,
    NamedCompare,
    NamedPairs,
    Served,
    count_unequal,
)
from addnorm.export.certificate.tolerances import Result
from addnorm.export.sources import Source
from addnorm.service.engine.bundle import TOKENIZER, Bundle
from addnorm.service.engine.device import memory
from addnorm.service.engine.model import Model
from addnorm.service.errors import NotFinite


def compare_all(
    bundle: Bundle, source: Source, expected: exact.Expected | None = None
) -> tuple[Model, list[Check]]:
    """The loaded bundle, compared with what it was made of, in layout padded. A bundle with a
    tokenizer must have a source with a folder.

    expected: what the files must hold; None: it is exported from the source.
    CertificationError names what failed.
    """
    if not expected:
        tqdm.write("exporting the reference again")
        expected = exact.Expected.export(source.in_layout("padded"), bundle.manifest)
    checks = compare_files(bundle, expected)
    if source.extraction:
        findings = [*extraction.differences(bundle, source.extraction)]
        checks += refuse_findings(bundle, [(("fp32", "extraction, graph"), findings)])
    del expected
    gc.collect()  # PyTorch's exporter leaves cycles
    memory.give_back()
    tqdm.write("loading the graphs into onnxruntime")
    model = Model(bundle)
    return model, checks + compare_answers(model, source)


def compare_files(bundle: Bundle, expected: exact.Expected) -> list[Check]:
    """Compares what must be exact. Comes first: no session may see a wrong graph."""
    return compare(bundle, read_files(bundle), expected)


def read_files(bundle: Bundle) -> exact.Files:
    """CertificationError for what is no graph."""
    tqdm.write("comparing the files with their expected contents")
    try:
        return exact.Files.read(bundle)
    except ValueError as error:
        raise CertificationError(str(error)) from None


def compare(bundle: Bundle, files: exact.Files, expected: exact.Expected) -> list[Check]:
    """Raises as `refuse_findings`."""
    return refuse_findings(bundle, exact.compare(files, expected, bundle.manifest))


def refuse_findings(bundle: Bundle, findings: Iterable[exact.Finding]) -> list[Check]:
    """A check for each comparison. Ends with CertificationError at the first that finds a
    difference."""
    checks = []
    for (precision, comparison), words in findings:
        if words:
            ending = f"; and {len(words) - 3} more" if len(words) > 3 else ""
            then, now = bundle.manifest.versions, exact.versions()
            changes = [
                f"{name} {then.get(name, 'unknown')} (here {now[name]})"
                for name in now
                if then.get(name) != now[name]
            ]
            if changes:
                ending += (
                    f". It was exported with {', '.join(changes)}, and other versions may write"
                    " different nodes: verify it with these versions, or export it again"
                )
            differences = f"{'; '.join(words[:3])}{ending}"
            raise CertificationError(f"{comparison} ({precision}): {differences}")
        checks.append(Check(comparison, "differences", precision, 0, 0))
        tqdm.write(table_row(checks[-1:]))
    return checks


def compare_answers(model: Model, source: Source, equal: bool = True) -> list[Check]:
    """Compares what is served with PyTorch, case by case. equal: whether its bits must be equal
    alone, co-batched and padded."""
    bundle, checks, reference = model.bundle, list[Check](), source.in_layout("padded")
    with served.path_of(model) as path:
        # every case with its precisions, which follow each other: PyTorch computes it once
        names = [*bundle.manifest.precisions]
        fp32 = [precision for precision in names if precision == "fp32"]
        bits = [(names, served.bits(path)), (fp32, lens.bits(path, reference))] if equal else []
        groups = [
            (names, served.named_cases(path, reference)),
            *(
                (names, forward.named_cases(path, reference, original, source.wishes.token_ids))
                for original in source.originals
            ),
            (fp32, lens.named_cases(path, reference)),
            *((precisions, map(_bit_comparison, cases)) for precisions, cases in bits),
            (names, _text_cases(path, source)),
        ]
        work = [(precisions, case) for precisions, cases in groups for case in cases]
        del groups  # nothing else may keep a case
        num = sum(len(precisions) for precisions, _ in work)
        tqdm.write(f"comparing the served answers with PyTorch: {num} cases")
        with tqdm(total=num, desc=f"certify {bundle.ref}", unit="case", disable=None) as bar:
            while work:  # a case is dropped with what PyTorch made of it, which is large
                precisions, case = work.pop(0)
                for precision in precisions:
                    case_checks = _checks(precision, *case)
                    checks.extend(case_checks)
                    tqdm.write(table_row(case_checks))
                    memory.give_back()  # parsed answers are large
                    bar.update()
    checks.sort(key=lambda check: names.index(check.precision))
    refuse_failures(checks)
    return checks


def int8_failure(bundle: Bundle, compare_model: Callable[[Model], Any]) -> str:
    """Why its int8 graph is too far from PyTorch; "" if it is not. compare_model: raises
    CertificationError with the reason."""
    only = {"precisions": {"int8": bundle.manifest.precisions["int8"]}}
    manifest = bundle.manifest.model_copy(update={**only, "default_precision": "int8"})
    try:
        compare_model(Model(replace(bundle, manifest=manifest)))
    except CertificationError as error:
        return str(error)
    return ""


def texts_alike(path: Served, source: Source) -> list[Check]:
    """The cases from text to answer alone, in fp32."""
    checks = [check for case in _text_cases(path, source) for check in _checks("fp32", *case)]
    refuse_failures(checks)
    return checks


def _bit_comparison(case: NamedPairs) -> NamedCompare:
    """A comparison that allows no difference."""
    name, pairs = case

    def compare(precision: str) -> Iterator[Result]:
        for output, row_pairs in pairs(precision).items():
            yield output, count_unequal(row_pairs).unequal, 0

    return name, compare


def _checks(precision: str, case: str, compare: Compare) -> list[Check]:
    try:
        return [
            Check(case, output, precision, *measures) for output, *measures in compare(precision)
        ]
    except NotFinite as error:
        hint = ", which end at 65504 in fp16: leave fp16 out of the precisions"
        words = f"{error}{hint}" if precision == "fp16" else str(error)
        raise CertificationError(f"{case} ({precision}): {words}") from error


def _text_cases(path: Served, source: Source) -> list[NamedCompare]:
    bundle = path.model.bundle
    if TOKENIZER not in bundle.manifest.files:
        return []
    if source.folder is None:
        needed = "give the folder that it was exported from"
        raise CertificationError(f"{bundle.ref} has a tokenizer, which must be compared: {needed}")
    of_names = source.extraction and extraction.case(
        path.service, bundle, source.extraction, source.wishes.texts
    )
    return authors.checks(path.service, bundle, source) + ([of_names] if of_names else [])
