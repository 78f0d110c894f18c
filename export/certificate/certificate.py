"""The certificate: one type for every kind of bundle, and the one function that makes it.

Whoever exports compares, and hands the checks over. What a machine must find again when it loads
the bundle is added here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from addnorm.export.certificate.graph.exact import versions
from addnorm.export.certificate.served import CertificationError
from addnorm.service.engine import selfcheck
from addnorm.service.engine.device import placement
from addnorm.service.engine.device.placement import Placement
from addnorm.service.engine.device.processor import processor
from addnorm.service.engine.fingerprint import Fingerprint
from addnorm.service.engine.model import Model
from addnorm.service.loading import known_answers
from addnorm.service.loading.loader import PADDINGS


@dataclass(frozen=True)
class Check:
    """One line of the certificate.

    `difference` is in the unit of `limit`. Bitwise checks count unequal cases.
    """

    case: str
    output: str
    precision: str
    difference: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.limit  # False for NaN


@dataclass(frozen=True)
class Certificate:
    """Everything proved of a bundle, for each precision where a field maps names.

    reference: what the answers were compared with, in words; compared_with: the same in fields.
    nodes: how many of each operator run where, by graph. known_answer, known_digests: what every
    machine computes again. extras: fields of one kind of bundle, such as `recall`.
    """

    reference: str
    compared_with: Mapping[str, Any]
    checks: tuple[Check, ...]
    fingerprints: Mapping[str, Fingerprint]
    nodes: Mapping[str, dict[str, Placement]]
    known_answer: Mapping[str, dict[str, Any]]
    known_digests: Mapping[str, known_answers.Digests]
    extras: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The fields of certificate.json, which the server, `/v1/models` and the page read."""
        return {
            "passed": all(check.passed for check in self.checks),
            "processor": f"{processor().name}: {processor().kind}",
            "versions": versions(),
            "provider": "cpu",
            "fingerprint": {
                name: fingerprint.digest for name, fingerprint in self.fingerprints.items()
            },
            "fingerprint_parts": {
                name: fingerprint.parts() for name, fingerprint in self.fingerprints.items()
            },
            "nodes": dict(self.nodes),
            "reference": self.reference,
            "checks": [asdict(check) for check in self.checks],
            "known_answer": dict(self.known_answer),
            "known_digests": dict(self.known_digests),
            **self.extras,
            "compared_with": dict(self.compared_with),
        }


def certify(
    model: Model,
    checks: Sequence[Check],
    reference: str,
    compared_with: Mapping[str, Any],
    **extras: Any,
) -> Certificate:
    """CertificationError if a check failed, or if known answers have other bits alone or padded.
    reference, compared_with, extras: see `Certificate`."""
    refuse_failures(checks)
    limits = model.bundle.manifest.limits
    digests = {name: known_digests(model, name) for name in model.engines}
    return Certificate(
        reference,
        compared_with,
        tuple(checks),
        {
            name: engine.fingerprint.with_known_answers(digests[name])
            for name, engine in model.engines.items()
        },
        nodes(model),
        {
            name: selfcheck.make_known_answer(engine, limits)
            for name, engine in model.engines.items()
        },
        digests,
        extras,
    )


def known_digests(model: Model, precision: str) -> known_answers.Digests:
    """The answers of a machine with the bits of this one, in this precision: also alone and padded.
    CertificationError if those have other bits."""
    bundle, engine = model.bundle, model.engine(precision)
    answers = known_answers.compute(engine, bundle.manifest.limits)
    for failure in selfcheck.unequal(engine, answers, PADDINGS[bundle.manifest.layout]):
        raise CertificationError(f"known answers ({precision}): {failure}")
    return known_answers.digests(bundle, engine, answers)


def nodes(model: Model) -> dict[str, dict[str, Placement]]:
    """For each precision, and each graph of it: how many nodes of each operator run where."""
    return {
        precision: {
            graph: placement.count_nodes(placements) for graph, placements in engine.nodes().items()
        }
        for precision, engine in model.engines.items()
    }


# if this precision alone fails
REMEDIES = {
    "int8": ": leave int8 out, or keep some matrices in fp32 with --keep-recall",
    "fp16": ": leave fp16 out",
}


def refuse_failures(checks: Sequence[Check]) -> None:
    """CertificationError names the first check that failed."""
    if failures := [check for check in checks if not check.passed]:
        first, precisions = failures[0], {check.precision for check in failures}
        remedy = REMEDIES.get(precisions.pop(), "") if len(precisions) == 1 else ""
        raise CertificationError(
            f"{len(failures)} of {len(checks)} checks failed; {first.case}: {first.output}"
            f" ({first.precision}): {first.difference:.3g}, the limit is {first.limit:.3g}{remedy}"
        )


def table_row(checks: Sequence[Check]) -> str:
    """The case's measure that comes nearest to its limit; the certificate has them all."""
    worst = max(checks, key=lambda check: (not check.passed, check.difference / (check.limit or 1)))
    verdict = "ok" if worst.passed else "FAILED"
    return (
        f"{worst.precision}  {worst.case:22s} {worst.output:28s} {worst.difference:9.2g}"
        f" of {worst.limit:7.1g}  {verdict}, worst of {len(checks)} measures"
    )
