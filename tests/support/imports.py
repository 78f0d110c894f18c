"""What a file imports."""

import ast
from collections.abc import Container
from functools import cache
from pathlib import Path


def imported(path: Path, modules: Container[str] = ()) -> set[str]:
    """modules: names that are modules. From a package whose modules alone are imported, nothing of
    its own is.
    """
    names: set[str] = set()
    for node in _imports(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{path}: relative import"
            imports = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= imports
            if not all(name in modules for name in imports):
                names.add(str(node.module))
    return names


@cache
def _imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
