"""Folders and files in a line each, by the first sentence of each file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from addnorm.load.sweep.tables import table

COMMENT = re.compile(r"(?://|#) ?(.*)\n")


def folders_table(root: Path, folder: str) -> str:
    """The folders below one: what each does by its `__init__.py`, and its files."""
    rows = [
        (
            f"`{found.relative_to(root / folder)}/`",
            purpose(found / "__init__.py"),
            " ".join(_names(found)),
        )
        for found in _folders(root / folder)
    ]
    return table(["folder", "what it does", "files"], rows)


def files_table(root: Path, folder: str) -> str:
    """Every file below a folder with its first sentence."""
    paths = [path for path in _sources(root / folder) if path.name != "__init__.py"]
    rows = [(f"`{path.relative_to(root / folder)}`", purpose(path)) for path in sorted(paths)]
    return table(["file", "what it does"], rows)


def purpose(path: Path) -> str:
    """The first sentence of a file. ValueError without one."""
    text = path.read_text()
    said = ast.get_docstring(ast.parse(text)) if path.suffix == ".py" else _comment(text)
    if not said:
        raise ValueError(f"{path} does not begin with a sentence that says what it does")
    paragraph = " ".join(said.partition("\n\n")[0].split())
    return _first_sentence(paragraph)


def _first_sentence(text: str) -> str:
    """A full stop and a capital begin another; that of `e.g.` and of a file's name do not."""
    return re.split(r"(?<=\.) (?=[A-Z`])", text)[0].rstrip(".:").replace("|", "\\|")


def _comment(text: str) -> str:
    """The lines of comment that a file begins with."""
    lines = list[str]()
    while found := COMMENT.match(text):
        lines.append(found[1])
        text = text[found.end() :]
    return " ".join(lines)


def _folders(parent: Path) -> Iterator[Path]:
    for path in sorted(parent.rglob("__init__.py")):
        if path.parent != parent:
            yield path.parent


def _sources(folder: Path) -> list[Path]:
    return sorted([*folder.rglob("*.py"), *folder.rglob("*.js")])


def _names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"`{path.name}`"
