"""Which provider runs the nodes of a session. On a GPU no node that computes rows may be left on
the CPU.

onnxruntime places each node on the first provider that has a kernel for it, and says nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import onnxruntime as ort

from addnorm.service.errors import StartupError

CPU = "CPUExecutionProvider"
RECORD = "session.record_ep_graph_assignment_info"  # session option: keep what `nodes` reads
# Older ones leave out the float16 nodes that no provider has a kernel for, which run on the CPU
# (microsoft/onnxruntime#28268; 1.26 lists 149 of the 194 nodes that 1.27 lists).
LISTS_ALL = (1, 27)
# onnxruntime runs nodes on the CPU on purpose where only shapes go in: in 1.31.1 our graphs' Add,
# Cast, Concat, Div, Mul, Squeeze and Sub. The others here make positions and masks, and no row goes
# through them. (Rows are added, cast and multiplied too, by kernels that CUDA has for all types.)
SHAPES_AND_INDICES = frozenset({
    "Abs", "Add", "Cast", "Concat", "Constant", "CumSum", "Div", "Equal", "Expand", "Floor",
    "Greater", "Less", "Mul", "NonZero", "Not", "Range", "Shape", "Sign", "Squeeze", "Sub",
    "Unsqueeze",
})  # fmt: skip
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
    """Its name. Operators of ONNX have no domain."""
    return f"{domain}.{op_type}" if domain else op_type


def counted(nodes: Iterable[Node]) -> Placement:
    """How many nodes of each operator run where."""
    found: dict[str, Counter[str]] = {}
    for node in nodes:
        found.setdefault(node.provider, Counter())[node.operator] += 1
    return {provider: dict(sorted(count.items())) for provider, count in sorted(found.items())}


def refuse_rows_on_cpu(
    graph: Path, session: ort.InferenceSession, version: str = ort.__version__
) -> None:
    """StartupError names the operators of a session on CUDA that compute rows and run on the CPU,
    and for a version of onnxruntime that does not say it."""
    if tuple(map(int, version.split(".")[:2])) < LISTS_ALL:
        raise StartupError(
            f"onnxruntime {version} does not say of all nodes whether they run on the GPU:"
            f" install onnxruntime-gpu {'.'.join(map(str, LISTS_ALL))} or newer, or set"
            " ADDNORM_PROVIDER=cpu"
        )
    placed = counted(nodes(session))
    if not placed:
        raise StartupError(
            f"onnxruntime does not say where the nodes of {graph} run: set ADDNORM_PROVIDER=cpu"
        )
    left = {
        operator: num
        for operator, num in placed.get(CPU, {}).items()
        if operator not in SHAPES_AND_INDICES
    }
    if left:
        words = ", ".join(f"{num} x {operator}" for operator, num in left.items())
        raise StartupError(
            f"{graph}: onnxruntime has no GPU kernels for {words}, and would compute rows on the"
            " CPU: export the bundle with --precision fp32,fp16 (int8 is for CPUs), or set"
            " ADDNORM_PROVIDER=cpu"
        )
