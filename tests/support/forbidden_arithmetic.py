"""Finds numpy's functions whose bits depend on the processor, or whose order is numpy's own."""

import ast
from collections.abc import Iterator
from pathlib import Path

# of numpy and math: their bits differ by processor
FUNCTIONS = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2"),
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh"),
    *("arcsinh", "arccosh", "arctanh", "power", "float_power", "pow", "cbrt", "hypot", "fsum"),
    *("linalg", "dot", "vdot", "vecdot", "inner", "outer", "matmul", "matvec", "vecmat"),
    *("einsum", "tensordot", "kron", "convolve", "correlate", "interp", "fft", "erf", "gamma"),
}
# of numpy, and methods of arrays: their order is not the one of `service/arithmetic.py`
REDUCTIONS = {
    *("sum", "nansum", "mean", "nanmean", "average", "std", "var", "prod", "trace", "reduce"),
    *("dot", "accumulate", "reduceat"),
}


def forbidden(path: Path) -> Iterator[str]:
    """Each use, as `line function`."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_forbidden(node):
            yield f"{node.lineno} {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("numpy", "math", "numpy.linalg"):
            names = {alias.name for alias in node.names} & (FUNCTIONS | REDUCTIONS)
            yield from (f"{node.lineno} {name}" for name in names)
        elif isinstance(node, ast.BinOp) and _operator(node):
            yield f"{node.lineno} {_operator(node)}"


def _is_forbidden(node: ast.Attribute) -> bool:
    if ast.unparse(node.value) in ("np", "numpy", "math") and node.attr in FUNCTIONS:
        return True
    return node.attr in REDUCTIONS and not _is_module(node.value)


def _is_module(owner: ast.expr) -> bool:
    return ast.unparse(owner) in ("functools", "itertools", "statistics")


def _operator(node: ast.BinOp) -> str | None:
    """A matrix product, or a power of what is no constant."""
    if isinstance(node.op, ast.MatMult):
        return "@"
    has_names = any(isinstance(part, ast.Name) for part in ast.walk(node))
    return "**" if isinstance(node.op, ast.Pow) and has_names else None
