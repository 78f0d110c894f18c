"""Requirements of experiments and proofs: files that make makes, and programs."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {  # name -> what installs it
    "chromedriver": "make browser",
    "node": "apt-get install nodejs npm",
    "npm": "apt-get install nodejs npm",
    "qemu-aarch64": "apt-get install qemu-user",
}
Found = Callable[[str], bool]


def on_path(program: str) -> bool:
    return bool(shutil.which(program))


def absent_files(needs: Sequence[str], root: Path = ROOT) -> list[str]:
    """The needed files that do not exist. `make FILE` makes each of them."""
    return [need for need in needs if need not in PROGRAMS and not (root / need).exists()]


def absent_programs(needs: Sequence[str], is_there: Found = on_path) -> list[str]:
    return [need for need in needs if need in PROGRAMS and not is_there(need)]


def in_words(needs: Sequence[str], root: Path = ROOT, is_there: Found = on_path) -> str:
    """The absent needs, and how to get them. Empty without any. is_there: tells of a program."""
    files, programs = absent_files(needs, root), absent_programs(needs, is_there)
    steps = [f"run `make {' '.join(files)}`"] if files else []
    steps += [f"{name} is not installed: `{PROGRAMS[name]}`" for name in programs]
    return "; ".join(steps)


def make(needs: Sequence[str], *variables: str, root: Path = ROOT) -> None:
    """Makes the files that are absent. CalledProcessError where make fails."""
    if files := absent_files(needs, root):
        subprocess.run(["make", *files, *variables], cwd=root, check=True)
