"""What each folder is for, by the first sentence of its `__init__.py`."""

import ast
import re
from pathlib import Path

from benchmarks.tables import table


def folders_table(root: Path, folder: str) -> str:
    """The folders below one."""
    packages = sorted((root / folder).rglob("*/__init__.py"))
    rows = [(f"`{path.parent.relative_to(root / folder)}/`", purpose(path)) for path in packages]
    return table(["folder", "what it does"], rows)


def purpose(path: Path) -> str:
    """The first sentence of a file. ValueError without one."""
    said = ast.get_docstring(ast.parse(path.read_text()))
    if not said:
        raise ValueError(f"{path} does not begin with a sentence that says what it does")
    paragraph = " ".join(said.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0].rstrip(".:").replace("|", "\\|")
