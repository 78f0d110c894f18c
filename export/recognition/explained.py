"""Every operator that leads to the answer belongs to a part that was found, or cannot hide.

A function that is affine in the rows and agrees on drawn ones agrees on all. What is not affine is
explained by the trial of the part that it belongs to, and by what such a part is made of: a clamp
that no drawn number reaches is of none.
"""

from collections.abc import Collection, Iterable

import torch

from addnorm.export.reference.trace import LOOKUPS, Step, Unrecognized, Value

VIEWS = ("view", "_unsafe_view", "_reshape_alias", "reshape", "transpose", "t", "permute",
         "unsqueeze", "squeeze", "expand", "clone", "detach", "alias", "slice", "select", "split",
         "split_with_sizes", "unbind", "chunk", "lift_fresh", "as_strided", "unfold")  # fmt: skip
# affine in the rows, if all else that they are called with is constant
AFFINE = (*VIEWS, "embedding", "index", "index_select", "gather", "cat", "stack", "add", "sub",
          "rsub", "neg", "mul", "div", "sum", "mean", "mm", "addmm", "bmm", "baddbmm", "mv", "dot",
          "repeat", "roll", "flip", "copy", "fill", "masked_fill", "where", "constant_pad_nd",
          "addcmul", "addcdiv", "tril", "triu")  # fmt: skip
# affine in several streams together too
SUMS = (*VIEWS, "add", "sub", "rsub", "cat", "stack", "copy")
RATIOS = ("mul", "div", "pow", "sqrt", "rsqrt", "reciprocal", "addcmul", "addcdiv", "square")
PARTS: dict[str, tuple[str, ...]] = {  # activations by their names
    "norm": (*RATIOS, "var", "std", "var_mean", "std_mean", "native_layer_norm",
             "linalg_vector_norm", "norm"),
    "identity": (),
    "relu": ("relu", "clamp", "clamp_min", "threshold"),
    "gelu": (*RATIOS, "gelu", "erf"),
    "gelu_tanh": (*RATIOS, "gelu", "tanh"),
    "silu": (*RATIOS, "silu", "sigmoid", "exp"),
    "tanh": (*RATIOS, "tanh", "exp"),
    "attention": (*RATIOS, "bmm", "baddbmm", "_softmax", "_safe_softmax", "exp", "amax", "max",
                  "matmul"),
    "row of the head": ("max", "amax"),
}  # fmt: skip
SMOOTH_TYPES = (torch.float32, torch.float64)


def refuse_unlisted(steps: Iterable[Step]) -> None:
    """Unrecognized for the first operator on rows that no part could have."""
    for step in steps:
        if not is_explained(step, PARTS):
            raise Unrecognized(f"{step.op}{step.where} is an operator of an unknown part")


def refuse_unexplained(answer: Value) -> None:
    """Unrecognized for the first operator that no part explains."""
    for step in leading_to(answer):
        if not is_explained(step, step.parts):
            dtype = str(step.values[0].tensor.dtype).removeprefix("torch.")
            to = f" to {dtype}" if step.op == "_to_copy" else ""
            raise Unrecognized(
                f"{step.op.removeprefix('_')}{to}{step.where} does not belong to the recognized"
                " model: it has no effect in the trial, but if it has one elsewhere, the served"
                " answers would lack it"
            )


def leading_to(answer: Value) -> list[Step]:
    """Steps on rows that a value is made by, in order."""
    todo, numbers = [answer], {}
    while todo:
        value = todo.pop()
        step = value.step
        if step is None or step in numbers:
            continue
        if value.of_rows:
            numbers[step] = value.number
        todo += step.inputs
    return sorted(numbers, key=numbers.__getitem__)


def is_explained(step: Step, parts: Iterable[str]) -> bool:
    if step.op == "_to_copy":  # not rounded to another type
        return step.values[0].tensor.dtype in SMOOTH_TYPES
    if any(x.of_rows for x in step.inputs[1:]) and step.op in LOOKUPS:
        return False
    divides_by_rows = step.op in ("div", "addcdiv") and step.arguments[-1] in step.rows
    if step.op in (SUMS if len(step.rows) > 1 else AFFINE) and not divides_by_rows:
        return True
    if step.op in ("clamp", "clamp_min", "threshold"):  # elsewhere than at 0 alone it is no relu
        bounds = [*step.arguments[1:], *step.options.values()]
        if not set(bounds) <= {0, None} or bounds[0] != 0:
            return False
    return any(step.op in PARTS[part] for part in parts)


def explain(part: str, steps: Collection[Step]) -> None:
    """A trial found these to be such a part."""
    for step in steps:
        step.parts.add(part)
