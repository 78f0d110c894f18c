"""What a checkpoint folder lacks, in words."""

from pathlib import Path

CONFIG = "config.json"


def problem(folder: Path) -> str | None:
    """Why the folder cannot be read at all. None if it is one that has a config.json."""
    if folder.is_file():
        return f"{folder} is a file: name the folder that it lies in"
    if not folder.is_dir():
        return f"there is no folder {folder}; a model of the Hugging Face hub is named ORG/NAME"
    if not (folder / CONFIG).is_file():
        return f"there is no {CONFIG} in {folder}: name the folder that holds it beside the weights"
    return None
