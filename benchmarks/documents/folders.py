"""What each folder is for, by the first sentence of its `__init__.py`."""

import ast
import re
from pathlib import Path

from benchmarks.tables import listed


def folders_list(root: Path, folder: str) -> str:
    """The folders in one. Those below them have a sentence too."""
    packages = sorted((root / folder).rglob("*/__init__.py"))
    purposes = {path.parent: purpose(path) for path in packages}
    return listed(
        (f"`{package.name}/`", "", said)
        for package, said in purposes.items()
        if package.parent == root / folder
    )


def purpose(path: Path) -> str:
    """The first sentence of a file. ValueError without one."""
    said = ast.get_docstring(ast.parse(path.read_text()))
    if not said:
        raise ValueError(f"{path} does not begin with a sentence that says what it does")
    paragraph = " ".join(said.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0].rstrip(".:")
