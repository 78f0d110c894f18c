"""How near the provider's numbers are to the CPU's, and to themselves in other company."""

from collections.abc import Iterator
from typing import Any

from addnorm.export.certificate import tolerances
from addnorm.export.certificate.batch_invariance import compositions, counted
from addnorm.export.certificate.on_cuda import COMPOSITIONS, measured
from addnorm.export.certificate.served import CertificationError
from addnorm.service.errors import StartupError
from addnorm.service.runtime.batch import Rows
from addnorm.service.runtime.engine import Engine
from benchmarks.gpu import shapes
from benchmarks.gpu.setup import Setup

LENGTHS = (1, 2, 3, 5, 8, 17, 33, 64, 128, 200, 512)


def parity(setup: Setup) -> None:
    """What `addnorm verify --provider cuda` measures. RuntimeError if a difference from PyTorch is
    beyond the certificate's limit for the precision, or rows go through the CPU."""
    failed = []
    for shape in setup.shapes:
        try:
            _measure(setup, shape)
        except (CertificationError, StartupError) as error:
            failed.append(f"{shape}: {error}")
            setup.report.put("parity", f"{shape} failed", str(error))
    if failed:
        raise RuntimeError("; ".join(failed))


def _measure(setup: Setup, shape: str) -> None:
    bundle, reference = shapes.bundle(setup, shape), shapes.model(shape, "padded")
    num = min(setup.num_compositions, COMPOSITIONS)
    found = measured(bundle, reference, provider=setup.provider, num_compositions=num)
    for precision in shapes.PRECISIONS:
        largest = dict[str, Any]()
        for check in found["checks"]:
            known = largest.get(check["output"], {"difference": -1.0})
            if check["precision"] == precision and check["difference"] > known["difference"]:
                largest[check["output"]] = {part: check[part] for part in ("difference", "limit")}
        figures = {**largest, **found["holds"][precision], "nodes": found["nodes"][precision]}
        setup.report.put("parity", f"{shape} {precision}", figures)


def differences(got: Rows, expected: Rows, precision: str) -> Iterator[tolerances.Result]:
    vectors = got.activations, expected.activations
    norms = (got.norm_mean, got.norm_rstd), (expected.norm_mean, expected.norm_rstd)
    yield from tolerances.vectors("activations", *vectors, precision)
    yield from tolerances.norms(*norms, precision)


def invariance(setup: Setup) -> None:
    """Sequences in thousands of drawn batches against the same alone. On the CPU no bit may
    differ; on CUDA the figures are what holds there."""
    for shape in setup.shapes:
        bundle = shapes.bundle(setup, shape)
        for precision in shapes.PRECISIONS:
            engine = Engine(bundle, precision, setup.provider)
            found = counted(compositions(engine, bundle.manifest.limits, setup.num_compositions))
            setup.report.put("invariance", f"{shape} {precision}", {
                "compositions": setup.num_compositions,
                "sequences": found.compared,
                "unequal": found.unequal,
                "share unequal": found.unequal / found.compared,
                "largest difference": found.largest_difference,
                "of the largest value": found.largest_difference / found.largest_value,
            })  # fmt: skip
            if engine.provider == "cpu" and found.unequal:
                raise RuntimeError(f"{shape} {precision}: bits differ on the CPU")
