"""What comparisons with sentence-transformers share."""

import subprocess
from pathlib import Path

from benchmarks.data.texts import prose

NUM_TEXTS, NUM_LONG = 64, 4


def run(*command: str | Path) -> None:
    """Shows what it printed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def texts_to_encode() -> list[str]:
    """Texts of documentation, a few over every limit."""
    texts = prose(NUM_TEXTS)
    return [
        *texts,
        *(" ".join(texts[i::NUM_LONG]) for i in range(NUM_LONG)),
        "Ünïcode, 中文: ODD\t!",
    ]
