"""How near the provider's numbers are to the CPU's, and to themselves in other company."""

from collections.abc import Iterator

import numpy as np

from addnorm.export.certificate import tolerances
from addnorm.load.gpu import shapes
from addnorm.load.gpu.setup import Setup
from addnorm.service.runtime import selfcheck
from addnorm.service.runtime.batch import Batch, Rows
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.manifest import Limits

LENGTHS = (1, 2, 3, 5, 8, 17, 33, 64, 128, 200, 512)
NUM_SEQUENCES = 64  # of the pool that compositions are drawn from
MOST_TOGETHER = 32


def parity(setup: Setup, precisions: tuple[str, ...] = shapes.PRECISIONS) -> None:
    """Against fp32 on the CPU, which the certificate compared with PyTorch. RuntimeError if a
    difference is beyond the certificate's limit for the precision."""
    beyond = []
    for shape in setup.shapes:
        bundle = shapes.bundle(setup, shape)
        batch = selfcheck.sequences(bundle.manifest.limits, LENGTHS)
        expected = Engine(bundle, "fp32", "cpu").run(batch)
        for precision in precisions:
            got = Engine(bundle, precision, setup.provider).run(batch)
            compared = [*differences(got, expected, precision)]
            setup.report.put("parity", f"{shape} {precision}", {
                name: {"difference": difference, "limit": limit}
                for name, difference, limit in compared
            })  # fmt: skip
            beyond += [
                f"{shape} {precision} {name}: {difference:.3g}, {limit:.3g} allowed"
                for name, difference, limit in compared
                if not difference <= limit
            ]
    if beyond:
        raise RuntimeError("; ".join(beyond))


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
            figures = _compositions(engine, bundle.manifest.limits, setup.num_compositions)
            setup.report.put("invariance", f"{shape} {precision}", figures)
            if engine.provider == "cpu" and figures["unequal"]:
                raise RuntimeError(f"{shape} {precision}: bits differ on the CPU")


def _compositions(engine: Engine, limits: Limits, num: int) -> dict[str, float]:
    """So many drawn batches."""
    draws = np.random.default_rng(0)
    lengths = np.clip(draws.lognormal(3.2, 0.9, NUM_SEQUENCES).astype(int), 1, 512)
    pool = selfcheck.sequences(limits, lengths.tolist())
    alone = [engine.run(pool.sequence(index)) for index in range(NUM_SEQUENCES)]
    scale = max(float(np.abs(rows.activations).max()) for rows in alone)
    compared = unequal = 0
    largest = 0.0
    for _ in range(num):
        chosen = draws.choice(NUM_SEQUENCES, draws.integers(2, MOST_TOGETHER + 1), replace=False)
        batch = Batch.joined([(pool, int(index)) for index in chosen])
        rows = engine.run(batch)
        for place, index in enumerate(chosen):
            own = rows.span(int(batch.offsets[place]), int(batch.offsets[place + 1]))
            compared += 1
            if not selfcheck.same_bits(own, alone[index]):
                unequal += 1
                gap = np.abs(own.activations - alone[index].activations).max()
                largest = max(largest, float(gap))
    return {
        "compositions": num,
        "sequences": compared,
        "unequal": unequal,
        "share unequal": unequal / compared,
        "largest difference": largest,
        "of the largest value": largest / scale,
    }
