"""What holds on a GPU, as a section of the certificate: differences from PyTorch within the limits,
where the nodes run, and whether bits are equal alone and in company, or by how much they differ.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, TensorProto
from tqdm import tqdm

from addnorm.export.certificate import lens, parity, served
from addnorm.export.certificate.batch_invariance import (
    Bits,
    NamedPairs,
    Pair,
    compositions,
    counted,
)
from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.served import CertificationError
from addnorm.model.transformer import Transformer
from addnorm.service.loading.loader import check
from addnorm.service.models.model import Model
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.device.cuda import CUDA_DEFAULTS, gpu_name
from addnorm.service.runtime.device.placement import CPU, Node, operator
from addnorm.service.runtime.session import runs_in_words

COMPOSITIONS = 200  # drawn batches for each precision
INDICES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def measured(
    bundle: Bundle,
    reference: Transformer,
    checkpoint: Path | None = None,
    provider: str = "cuda",
    num_compositions: int = COMPOSITIONS,
) -> dict[str, Any]:
    """The section "cuda" of a certified bundle.

    reference, checkpoint: as in `certify`. provider: cpu computes the same section there.
    CertificationError and StartupError name what failed.
    """
    model = Model(bundle, provider)
    if provider != "cpu":
        refuse_rows_on_cpu(model)
    with runs_in_words(f"{bundle.ref} on {provider}"):
        check(model)
        checks = parity.near(model, reference, checkpoint, equal=False)
        bits = [*_bits(model, reference, num_compositions)]
    return {
        "gpu": gpu_name(),
        "onnxruntime": onnxruntime.__version__,
        "tf32": CUDA_DEFAULTS.tf32,
        "nodes": parity.nodes(model),
        "checks": [asdict(check) for check in checks],
        "bits": [
            {"case": case, "output": output, "precision": precision, **found._asdict()}
            for case, output, precision, found in bits
        ],
        "holds": {
            precision: _holds([found for *_, own, found in bits if own == precision])
            for precision in model.engines
        },
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
                    bits = counted(found)
                    if not np.isfinite(bits.largest_difference):
                        raise CertificationError(f"{case} ({precision}): numbers are not finite")
                    tqdm.write(_table_row(precision, case, bits))
                    yield case, output, precision, bits


def _drawn(model: Model, num: int, precision: str) -> Mapping[str, Iterable[Pair]]:
    engine, limits = model.engine(precision), model.bundle.manifest.limits
    return {"unequal sequences": compositions(engine, limits, num)}


def _table_row(precision: str, case: str, bits: Bits) -> str:
    said = f"{bits.unequal} of {bits.compared} unequal"
    return f"{precision}  {case:22s} {said:28s} {bits.largest_difference:9.2g} at most"


def _holds(found: list[Bits]) -> dict[str, Any]:
    """Over all cases of a precision."""
    largest = max(bits.largest_difference for bits in found)
    value = max(bits.largest_value for bits in found)
    return {
        "bits": "differ" if any(bits.unequal for bits in found) else "equal",
        "largest_difference": largest,
        "of_largest_value": largest / value if value else 0.0,
    }


def refuse_rows_on_cpu(model: Model) -> None:
    """CertificationError names nodes on the CPU through which rows go.

    Loading has refused operators that compute rows. Those that index may do both, so their nodes
    are looked up in the graph's file.
    """
    for precision, engine in model.engines.items():
        for name, nodes in engine.nodes().items():
            if name == "lens":  # the CPU runs it
                continue
            file = _file(model.bundle, precision, name)
            graph = onnx.load(str(file), load_external_data=False).graph
            if left := [*_rows_on_cpu(nodes, graph)]:
                first = ", ".join(f"{node.operator} {node.name}".rstrip() for node in left[:3])
                more = f" and {len(left) - 3} more" if len(left) > 3 else ""
                raise CertificationError(f"{file.name}: rows go through the CPU: {first}{more}")


def _file(bundle: Bundle, precision: str, name: str) -> Path:
    """name: as in `Engine.nodes`."""
    return bundle.graph(precision, on_gpu=True) if name == "body" else bundle.head(name)


def _rows_on_cpu(nodes: Iterable[Node], graph: GraphProto) -> Iterator[Node]:
    """A node that is not in the file came of one that onnxruntime took apart: nothing else makes
    nodes before they are placed."""
    free = Counter((operator(node.domain, node.op_type), node.name) for node in without_rows(graph))
    for node in nodes:
        if node.provider == CPU:
            key = node.operator, node.name
            if not free[key]:
                yield node
            free[key] -= 1


def without_rows(graph: GraphProto, outside: Set[str] = frozenset()) -> Iterator[NodeProto]:
    """The nodes that take no row and no weight, also those in bodies of Scans. Indices, masks and
    shapes come from integers and from single numbers alone.

    outside: what is a row or a weight around a body.
    """
    rows = {*outside, *_weights(graph), *_inputs(graph)}
    for node in graph.node:
        bodies = [item.g for item in node.attribute if item.HasField("g")]
        free = [own for body in bodies for own in without_rows(body, rows)]
        yield from free
        computes = len(free) < sum(len([*structure.nodes(body)]) for body in bodies)
        if computes or (rows.intersection(node.input) and node.op_type not in ("Shape", "Size")):
            rows.update(node.output)
        else:
            yield node


def _weights(graph: GraphProto) -> Iterator[str]:
    for tensor in graph.initializer:
        if tensor.data_type not in INDICES and np.prod(tensor.dims, dtype=int) > 1:
            yield tensor.name


def _inputs(graph: GraphProto) -> Iterator[str]:
    for value in graph.input:
        if value.type.tensor_type.elem_type not in INDICES:
            yield value.name
