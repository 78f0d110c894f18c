"""Finds where tests change attributes of what they test, instead of handing in another."""

import ast
from collections.abc import Iterator
from pathlib import Path

METHODS = ("setattr", "setitem", "delattr", "delitem")
PATCHERS = ("monkeypatch", "patch", "patched")


def patches(path: Path) -> Iterator[ast.AST]:
    """Calls of pytest's monkeypatch, of unittest's patch, and assignments to what is imported.
    Environment and folder are none: those are given to a process."""
    tree = ast.parse(path.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {name.asname or name.name for node in imports for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_patch(node.func):
            yield node
        if isinstance(node, ast.Assign):
            yield from (target for target in node.targets if _owner(target) in imported)


def _is_patch(called: ast.expr) -> bool:
    words = ast.unparse(called).split(".")
    return (words[0] in PATCHERS and words[-1] in METHODS) or "mock.patch" in ".".join(words)


def _owner(target: ast.expr) -> str:
    """The name whose attribute or item is assigned to."""
    if isinstance(target, ast.Attribute | ast.Subscript) and isinstance(target.value, ast.Name):
        return target.value.id
    return ""
