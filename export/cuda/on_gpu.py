"""The section of a certificate about a GPU: differences from PyTorch within the limits,
where the nodes run, and whether bits are equal alone and in company, or by how much they differ.

No row may go through the CPU beside a GPU. Loading has refused operators that compute rows; those
that index may do both, so each node there is looked up in the graph's file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, TensorProto
from tqdm import tqdm

from addnorm.export.certificate import as_written, certificate, lens, parity, served
from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.served import (
    Bits,
    CertificationError,
    NamedPairs,
    Pair,
    compositions,
    count_unequal,
)
from addnorm.export.graphs.authors import export_graph
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import Source
from addnorm.export.wishes import NO_WISHES
from addnorm.model.transformer import Transformer
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.cuda.gpu import gpu_name
from addnorm.service.engine.cuda.gpu_engine import open_on_gpu
from addnorm.service.engine.device.placement import CPU, operator
from addnorm.service.engine.engine import OpenEngine
from addnorm.service.engine.model import Model
from addnorm.service.engine.session import runs_in_words
from addnorm.service.loading.loader import check

COMPOSITIONS = 200  # drawn batches for each precision
INDICES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def measure(
    bundle: Bundle,
    opened: Source | Reference,
    open_engine: OpenEngine = open_on_gpu,
    num_compositions: int = COMPOSITIONS,
) -> dict[str, Any]:
    """The section "cuda" of a certified bundle. CertificationError and StartupError name what
    failed."""
    model = Model(bundle, open_engine=open_engine)
    refuse_rows_on_cpu(model)
    with runs_in_words(f"{bundle.ref} on cuda"):
        check(model)
        if isinstance(opened, Reference):
            lengths, transformer = export_graph(opened).lengths, None
            checks = as_written.compare_answers(model, opened, lengths)
        else:
            # the authors' program is asked on the CPU
            bare = replace(opened, originals=(), program=None, wishes=NO_WISHES)
            checks = parity.compare_answers(model, bare, equal=False)
            transformer = opened.in_layout("padded")
        bits = [*_bits(model, transformer, num_compositions)]
    holds = {}  # over all cases of a precision
    for precision in model.engines:
        counts = [count for *_, name, count in bits if name == precision]
        largest = max(count.largest_difference for count in counts)
        value = max(count.largest_value for count in counts)
        holds[precision] = {
            "bits": "differ" if any(count.unequal for count in counts) else "equal",
            "largest_difference": largest,
            "of_largest_value": largest / value if value else 0.0,
        }
    return {
        "gpu": gpu_name(),
        "onnxruntime": onnxruntime.__version__,
        "tf32": False,
        "nodes": certificate.nodes(model),
        "checks": [asdict(check) for check in checks],
        "bits": [
            {"case": case, "output": output, "precision": precision, **count._asdict()}
            for case, output, precision, count in bits
        ],
        "holds": holds,
    }


def _bits(
    model: Model, transformer: Transformer | None, num_compositions: int
) -> Iterator[tuple[str, str, str, Bits]]:
    """Case, output, precision and the counts of unequal rows. transformer: ours, if its graph is
    one of ours."""

    def drawn_batches(precision: str) -> Mapping[str, Iterable[Pair]]:
        engine, limits = model.engine(precision), model.bundle.manifest.limits
        return {"unequal sequences": compositions(engine, limits, num_compositions)}

    with served.path_of(model) as path:
        for precision in model.engines:
            drawn = f"{num_compositions} drawn batches", drawn_batches
            cases: list[NamedPairs] = [drawn]
            if transformer:
                of_lens = lens.bits(path, transformer) if precision == "fp32" else []
                cases = [*served.bits(path), *of_lens, drawn]
            for case, pairs in cases:
                for output, row_pairs in pairs(precision).items():
                    bits = count_unequal(row_pairs)
                    if not np.isfinite(bits.largest_difference):
                        raise CertificationError(f"{case} ({precision}): numbers are not finite")
                    words = f"{bits.unequal} of {bits.compared} unequal"
                    largest = f"{bits.largest_difference:9.2g} at most"
                    tqdm.write(f"{precision}  {case:22s} {words:28s} {largest}")
                    yield case, output, precision, bits


def refuse_rows_on_cpu(model: Model) -> None:
    """CertificationError names nodes on the CPU through which rows go."""
    for precision, engine in model.engines.items():
        for name, nodes in engine.nodes().items():
            if name == "lens":  # the CPU runs it
                continue
            bundle = model.bundle
            file = bundle.graph(precision, True) if name == "body" else bundle.head(name)
            graph = onnx.load(str(file), load_external_data=False).graph
            # a node that is not in the file came of one that onnxruntime took apart: nothing else
            # makes nodes before they are placed
            free = Counter(
                (operator(node.domain, node.op_type), node.name) for node in without_rows(graph)
            )
            strays = []
            for node in nodes:
                if node.provider == CPU:
                    if not free[node.operator, node.name]:
                        strays.append(node)
                    free[node.operator, node.name] -= 1
            if strays:
                first = ", ".join(f"{node.operator} {node.name}".rstrip() for node in strays[:3])
                ending = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
                raise CertificationError(f"{file.name}: rows go through the CPU: {first}{ending}")


def without_rows(graph: GraphProto, outside: Set[str] = frozenset()) -> Iterator[NodeProto]:
    """The nodes that take no row and no weight, also those in bodies of Scans. Indices, masks and
    shapes come from integers and from single numbers alone.

    outside: what is a row or a weight around a body.
    """
    rows = {*outside}
    rows |= {
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type not in INDICES and np.prod(tensor.dims, dtype=int) > 1
    }
    rows |= {value.name for value in graph.input if value.type.tensor_type.elem_type not in INDICES}
    for node in graph.node:
        bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        free = [inner for body in bodies for inner in without_rows(body, rows)]
        yield from free
        computes = len(free) < sum(len([*structure.nodes(body)]) for body in bodies)
        if computes or (rows.intersection(node.input) and node.op_type not in ("Shape", "Size")):
            rows.update(node.output)
        else:
            yield node
