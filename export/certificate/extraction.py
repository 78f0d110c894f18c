"""The certificate's cases of names of any labels: the server's answers beside the package's, and
those of int8 beside fp32's."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from addnorm.export.certificate import authors
from addnorm.export.certificate.answered import ask_route
from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.served import CertificationError, NamedCompare
from addnorm.export.certificate.tolerances import Result
from addnorm.export.graphs import model_file
from addnorm.export.reference.gliner import Extraction, Question
from addnorm.export.wishes import Text
from addnorm.service.dialects.native import extract_route
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
THRESHOLDS = (0.5, 0.2)
MOST_SCORES = 1e-5  # that a score may differ by in float32
LEAST_F1 = 0.99  # of int8's names with those of fp32
Names = Sequence[Mapping[str, Any]]


def differences(bundle: Bundle, extraction: Extraction) -> list[str]:
    """The graph behind the transformer, compared with a new export of what it was made of."""
    graph = model_file.load(bundle.path / EXTRACTION)
    return [*structure.differences(graph, extraction.export())]


def cases(
    service: Service, bundle: Bundle, extraction: Extraction, samples: Sequence[Text]
) -> list[NamedCompare]:
    """Each to be called with a precision."""
    texts = [*authors.SENTENCES, *authors.SCRIPTS, *map(str, samples)]
    questions = [
        Question(text, labels, threshold, flat)
        for text in dict.fromkeys(texts)
        for labels in LABELS
        for threshold in THRESHOLDS
        for flat in (True, False)
    ]
    served = cache(partial(_served, service, tuple(questions)))

    @cache
    def expected() -> list[Names]:
        """The package's answers, and without it fp32's, to those questions that are not too
        long."""
        if extraction.answers is None:
            return [names for names in served("fp32") if names is not None]
        both = zip(questions, served(bundle.manifest.default_precision), strict=True)
        return [extraction.answers(*question) for question, names in both if names is not None]

    def compare(precision: str) -> Iterator[Result]:
        answers = [names for names in served(precision) if names is not None]
        if precision == "int8":
            yield _f1(answers, expected())
            return
        yield from compare_names(answers, expected())

    return [(f"{extraction.program}: names in {len(questions)} answers", compare)]


def _served(service: Service, questions: Sequence[Question], precision: str) -> list[Names | None]:
    """The server's answers; None for a text that is too long."""
    answers = list[Names | None]()
    for question in questions:
        text, labels, threshold, flat = question
        body = {"texts": [text], "labels": [*labels], "threshold": threshold, "flat": flat}
        try:
            answer, _ = ask_route(service, extract_route.ROUTE, {**body, "precision": precision})
        except InvalidInput as error:
            if error.param != "texts":
                raise
            answers.append(None)
            continue
        answers.append(answer["results"][0])
    return answers


def compare_names(served: Sequence[Names], expected: Sequence[Names]) -> Iterator[Result]:
    """Answers with other names, and the largest difference of a score."""
    same = [
        (names, authors_names)
        for names, authors_names in zip(served, expected, strict=True)
        if [*map(_key, names)] == [*map(_key, authors_names)]
    ]
    yield "answers with other names", len(served) - len(same), 0
    gaps = (
        abs(name["score"] - authors_name["score"])
        for names, authors_names in same
        for name, authors_name in zip(names, authors_names, strict=True)
    )
    yield "scores", max(gaps, default=0.0), MOST_SCORES


def _key(name: Mapping[str, Any]) -> tuple[Any, ...]:
    return name["start"], name["end"], name["label"], name["text"]


def _f1(served: Sequence[Names], expected: Sequence[Names]) -> Result:
    """CertificationError if int8 finds too many other names."""
    int8, fp32 = (
        Counter((place, *_key(name)) for place, names in enumerate(answers) for name in names)
        for answers in (served, expected)
    )
    num_equal, num_both = (int8 & fp32).total(), int8.total() + fp32.total()
    f1 = 2 * num_equal / num_both if num_both else 1.0
    if f1 < LEAST_F1:
        raise CertificationError(
            f"int8 finds other names than fp32: F1 is {f1:.3f} on {fp32.total()} names in"
            f" {len(expected)} answers, {LEAST_F1} is the least: leave int8 out, or"
            " name texts of your own with --texts FILE"
        )
    return f"1 - F1 of {fp32.total()} names", 1 - f1, 1 - LEAST_F1
