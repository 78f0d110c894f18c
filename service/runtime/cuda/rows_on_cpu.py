"""No node that computes rows may be left on the CPU beside a GPU.

onnxruntime places each node on the first provider that has a kernel for it, and says nothing.
"""

from pathlib import Path

import onnxruntime as ort

from addnorm.service.errors import StartupError
from addnorm.service.runtime.device.placement import CPU, counted, nodes

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
