"""What a file imports."""

import ast
from pathlib import Path


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
