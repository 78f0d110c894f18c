"""No row may go through the CPU beside a GPU: each node there is looked up in the graph's file.

Loading has refused operators that compute rows. Those that index may do both.
"""

from collections import Counter
from collections.abc import Iterator, Set

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto

from addnorm.export.certificate.graph import structure
from addnorm.export.certificate.served import CertificationError
from addnorm.service.models.model import Model
from addnorm.service.runtime.device.placement import CPU, operator

INDICES = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


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
            left = []
            for node in nodes:
                if node.provider == CPU:
                    if not free[node.operator, node.name]:
                        left.append(node)
                    free[node.operator, node.name] -= 1
            if left:
                first = ", ".join(f"{node.operator} {node.name}".rstrip() for node in left[:3])
                more = f" and {len(left) - 3} more" if len(left) > 3 else ""
                raise CertificationError(f"{file.name}: rows go through the CPU: {first}{more}")


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
        bodies = [item.g for item in node.attribute if item.HasField("g")]
        free = [own for body in bodies for own in without_rows(body, rows)]
        yield from free
        computes = len(free) < sum(len([*structure.nodes(body)]) for body in bodies)
        if computes or (rows.intersection(node.input) and node.op_type not in ("Shape", "Size")):
            rows.update(node.output)
        else:
            yield node
