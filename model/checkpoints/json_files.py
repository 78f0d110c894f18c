"""JSON files of a checkpoint folder."""

import json
from pathlib import Path
from typing import Any

from addnorm.model.checkpoints.reader import CheckpointError

MOST_BYTES = 4 * 2**20  # 60,000 labels; most files have a few thousand bytes


def read(path: Path) -> Any:
    """CheckpointError if it is missing, broken or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except OSError as error:
        raise CheckpointError(f"{path} is broken: {error}") from None
    if len(content) > MOST_BYTES:
        raise CheckpointError(f"{path} has more than {MOST_BYTES} bytes, which is the limit")
    try:
        return json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is broken: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{path} is broken: it is nested too deep") from None


def settings(path: Path) -> dict[str, Any]:
    """{} where there is no such file. CheckpointError if it is broken, or holds no object."""
    content = read(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is broken: it holds no JSON object")
    return content
