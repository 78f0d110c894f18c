"""The programs of examples/tutorials."""

from pathlib import Path
from runpy import run_path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples" / "tutorials"


def example(name: str) -> dict[str, Any]:
    """What a program defines."""
    return run_path(str(EXAMPLES / f"{name}.py"))
