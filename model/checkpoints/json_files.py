"""JSON files of a checkpoint folder."""

import json
from pathlib import Path
from typing import Any

from addnorm.model.checkpoints.reader import CheckpointError


def read(path: Path) -> Any:
    """CheckpointError if it is missing or broken."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"there is no {path.name} in {path.parent}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is broken: {error}") from None


def settings(path: Path) -> dict[str, Any]:
    """{} where there is no such file. CheckpointError if it is broken, or holds no object."""
    found = read(path) if path.exists() else {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is broken: it holds no JSON object")
    return found
