"""What is deployed runs on x86-64 and on ARM: no file of it names an architecture."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOYED = [
    ROOT / "Dockerfile",
    ROOT / "docker-compose.yml",
    *(path for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file()),
]
ARCHITECTURE = re.compile(r"x86|amd64|aarch64|arm64|--platform|kubernetes\.io/arch", re.IGNORECASE)


@pytest.mark.parametrize("path", DEPLOYED, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_is_deployed_names_an_architecture(path: Path) -> None:
    assert not ARCHITECTURE.findall(path.read_text())
