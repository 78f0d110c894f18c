"""What builds and publishes a release is what was looked at, and no newer version of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [use for use in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", use)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_tools_are_named_by_version(path: Path) -> None:
    """What is installed by the lock has its hashes; files that were built are our own."""
    for line in re.findall(r"pip install (.*)", path.read_text()):
        if "--require-hashes" not in line:
            words = [word for word in line.split() if not word.startswith(("-", "dist/"))]
            assert [word for word in words if not re.fullmatch(r"[\w-]+==[\d.]+", word)] == []


def test_a_release_is_built_by_the_tools_that_are_named() -> None:
    """Else the build fetches others itself."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.findall(r"python -m build(.*?)(?: #.*)?$", text, re.MULTILINE) == [" --no-isolation"]
