"""What holds on a GPU, as a section of the certificate: differences from PyTorch within the limits,
where the nodes run, and whether bits are equal alone and in company, or by how much they differ.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tqdm import tqdm

from addnorm.export.certificate import lens, parity, served
from addnorm.export.certificate.batch_invariance import (
    Bits,
    NamedPairs,
    Pair,
    compositions,
    count_unequal,
)
from addnorm.export.certificate.served import CertificationError
from addnorm.export.cuda.rows_through_cpu import refuse_rows_on_cpu
from addnorm.model.transformer import Transformer
from addnorm.service.loading.loader import check
from addnorm.service.models.model import Model
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.cuda.gpu import gpu_name
from addnorm.service.runtime.cuda.gpu_engine import GpuEngine
from addnorm.service.runtime.engine import OpenEngine
from addnorm.service.runtime.session import runs_in_words

COMPOSITIONS = 200  # drawn batches for each precision


def measured(
    bundle: Bundle,
    reference: Transformer,
    checkpoint: Path | None = None,
    open_engine: OpenEngine = GpuEngine,
    num_compositions: int = COMPOSITIONS,
) -> dict[str, Any]:
    """The section "cuda" of a certified bundle.

    reference, checkpoint: as in `certify`. CertificationError and StartupError name what failed.
    """
    model = Model(bundle, open_engine=open_engine)
    refuse_rows_on_cpu(model)
    with runs_in_words(f"{bundle.ref} on cuda"):
        check(model)
        checks = parity.compare_answers(model, reference, checkpoint, equal=False)
        bits = [*_bits(model, reference, num_compositions)]
    holds = {}  # over all cases of a precision
    for precision in model.engines:
        own = [found for *_, of, found in bits if of == precision]
        largest = max(found.largest_difference for found in own)
        value = max(found.largest_value for found in own)
        holds[precision] = {
            "bits": "differ" if any(found.unequal for found in own) else "equal",
            "largest_difference": largest,
            "of_largest_value": largest / value if value else 0.0,
        }
    return {
        "gpu": gpu_name(),
        "onnxruntime": onnxruntime.__version__,
        "tf32": False,
        "nodes": parity.nodes(model),
        "checks": [asdict(check) for check in checks],
        "bits": [
            {"case": case, "output": output, "precision": precision, **found._asdict()}
            for case, output, precision, found in bits
        ],
        "holds": holds,
    }


def _bits(
    model: Model, reference: Transformer, num_compositions: int
) -> Iterator[tuple[str, str, str, Bits]]:
    """Case, output, precision and what was found."""
    with served.path_of(model) as path:
        for precision in model.engines:
            drawn = f"{num_compositions} drawn batches", partial(_drawn, model, num_compositions)
            of_lens = lens.bits(path, reference) if precision == "fp32" else []
            cases: list[NamedPairs] = [*served.bits(path), *of_lens, drawn]
            for case, pairs in cases:
                for output, found in pairs(precision).items():
                    bits = count_unequal(found)
                    if not np.isfinite(bits.largest_difference):
                        raise CertificationError(f"{case} ({precision}): numbers are not finite")
                    said = f"{bits.unequal} of {bits.compared} unequal"
                    largest = f"{bits.largest_difference:9.2g} at most"
                    tqdm.write(f"{precision}  {case:22s} {said:28s} {largest}")
                    yield case, output, precision, bits


def _drawn(model: Model, num: int, precision: str) -> Mapping[str, Iterable[Pair]]:
    engine, limits = model.engine(precision), model.bundle.manifest.limits
    return {"unequal sequences": compositions(engine, limits, num)}
