"""The programs of examples/tutorials, and rows that their models are asked for."""

from pathlib import Path
from runpy import run_path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples" / "tutorials"


def example(name: str) -> dict[str, Any]:
    """What a program defines."""
    return run_path(str(EXAMPLES / f"{name}.py"))


def padded_left(rows: list[list[int]]) -> dict[str, list[list[int]]]:
    """Token ids and mask, as /v1/infer takes them."""
    width = max(map(len, rows)) + 2
    return {
        "input_ids": [[0] * (width - len(row)) + row for row in rows],
        "attention_mask": [[0] * (width - len(row)) + [1] * len(row) for row in rows],
    }
