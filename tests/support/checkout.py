"""A small git repository."""

import subprocess
from pathlib import Path

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")


def new_checkout(root: Path) -> Path:
    """It has one commit."""
    root.mkdir(parents=True)
    subprocess.run([*GIT, "init", "-q", root], check=True)
    change(root, "first")
    return root


def change(root: Path, content: str, folder: str = "service") -> None:
    """A commit that changes a file of this folder."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "file").write_text(content)
    for words in (["add", "."], ["commit", "-qm", "Change a file"]):
        subprocess.run([*GIT, "-C", root, *words], check=True)
