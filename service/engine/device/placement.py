"""Providers that run the nodes of a session, as onnxruntime lists it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import onnxruntime as ort

CPU = "CPUExecutionProvider"
RECORD = "session.record_ep_graph_assignment_info"  # session option: keep what `nodes` reads
Placement = dict[str, dict[str, int]]  # provider -> operator -> number of nodes


class Node(NamedTuple):
    provider: str
    operator: str
    name: str  # as in the graph's file; empty for some that onnxruntime made


def nodes(session: ort.InferenceSession) -> Iterator[Node]:
    """Nodes of the graph and of the bodies of its Scans. The session must have been opened with
    RECORD.

    Copies between the CPU and the GPU are not among them.
    """
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            yield Node(part.ep_name, operator(node.domain, node.op_type), node.name)


def operator(domain: str, op_type: str) -> str:
    """The operator's name with its domain. Operators of ONNX have no domain."""
    return f"{domain}.{op_type}" if domain else op_type


def count_nodes(nodes: Iterable[Node]) -> Placement:
    """The number of nodes of each operator on each provider."""
    counts: dict[str, Counter[str]] = {}
    for node in nodes:
        counts.setdefault(node.provider, Counter())[node.operator] += 1
    return {provider: dict(sorted(count.items())) for provider, count in sorted(counts.items())}
