"""The certificate's cases of names of any labels: the server's answers beside the package's, and
those of int8 beside fp32's."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from addnorm.export.certificate import authors
from addnorm.export.certificate.answered import ServedTasks
from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.served import CertificationError, NamedCompare
from addnorm.export.certificate.tolerances import Result
from addnorm.export.graphs import model_file
from addnorm.export.reference.gliner import Extraction
from addnorm.export.wishes import Text
from addnorm.service.engine.bundle import EXTRACTION, Bundle
from addnorm.service.errors import InvalidInput
from addnorm.service.server.wiring import Service

LABELS = (  # of three requests
    ("person", "organization", "place"),
    ("a date or a time",),
    (
        "city",
        "product",
        "email address",
        "number",
        "animal",
        "train",
        "language",
        "amount of money",
    ),
)
THRESHOLDS, FLAT = (0.5, 0.2), (True, False)
MOST_GAP = 1e-5  # of a score, in float32
LEAST_F1 = 0.99  # of int8's names beside fp32's
Names = Sequence[Mapping[str, Any]]


def differences(bundle: Bundle, extraction: Extraction) -> list[str]:
    """The graph behind the transformer, compared with a new export of what it was made of."""
    return [*structure.differences(model_file.load(bundle.path / EXTRACTION), extraction.export())]


def case(
    service: Service, bundle: Bundle, extraction: Extraction, samples: Sequence[Text]
) -> NamedCompare:
    """The case, to be called with a precision. samples: texts beside ours."""
    texts = dict.fromkeys([*authors.SENTENCES, *authors.SCRIPTS, *map(str, samples)])
    questions = [*product(texts, LABELS, THRESHOLDS, FLAT)]

    @cache
    def served(precision: str) -> list[Names | None]:
        """None for a text that is too long."""
        answers, tasks = list[Names | None](), ServedTasks(service, bundle, precision)
        for question in questions:
            try:
                answers.append(tasks.names(*question))
            except InvalidInput as error:
                if error.param != "texts":
                    raise
                answers.append(None)
        return answers

    @cache
    def expected() -> list[Names]:
        """The package's answers, without it fp32's, to texts that are not too long."""
        ours = served("fp32" if extraction.answers is None else bundle.manifest.default_precision)
        return [
            extraction.answers(*question) if extraction.answers else names
            for question, names in zip(questions, ours, strict=True)
            if names is not None
        ]

    def compare(precision: str) -> Iterator[Result]:
        answers = [names for names in served(precision) if names is not None]
        return (compare_int8 if precision == "int8" else compare_names)(answers, expected())

    return f"{extraction.program}: names in {len(questions)} answers", compare


def compare_names(served: Sequence[Names], expected: Sequence[Names]) -> Iterator[Result]:
    """The number of answers with other names, and the largest difference of a score."""
    pairs = [*zip(served, expected, strict=True)]
    same = [(ours, theirs) for ours, theirs in pairs if _keys(ours) == _keys(theirs)]
    yield "answers with other names", len(pairs) - len(same), 0
    names = (pair for ours, theirs in same for pair in zip(ours, theirs, strict=True))
    gaps = (abs(ours["score"] - theirs["score"]) for ours, theirs in names)
    yield "scores", max(gaps, default=0.0), MOST_GAP


def _keys(names: Names) -> list[tuple[Any, ...]]:
    return [(name["start"], name["end"], name["label"], name["text"]) for name in names]


def compare_int8(served: Sequence[Names], expected: Sequence[Names]) -> Iterator[Result]:
    """CertificationError if int8 finds too many other names."""
    int8, fp32 = (
        Counter((place, key) for place, names in enumerate(answers) for key in _keys(names))
        for answers in (served, expected)
    )
    num_names = int8.total() + fp32.total()
    f1 = 2 * (int8 & fp32).total() / num_names if num_names else 1.0
    if f1 < LEAST_F1:
        raise CertificationError(
            f"int8 finds other names than fp32: F1 is {f1:.3f} with the {fp32.total()} names of"
            f" fp32 in {len(expected)} answers, {LEAST_F1} is the least: leave int8 out, or name"
            " more texts of your own with --texts FILE"
        )
    yield f"1 - F1 of {fp32.total()} names", 1 - f1, 1 - LEAST_F1
