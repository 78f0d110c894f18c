"""Which vectors of tokens a MultiVectorEncoder of sentence-transformers keeps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from addnorm.model.checkpoints import json_files
from addnorm.model.checkpoints.reader import CheckpointError

InputType = Literal["query", "document"]
INPUT_TYPES: tuple[InputType, ...] = ("query", "document")


@dataclass(frozen=True)
class Mask:
    """The settings of a MultiVectorMask.

    skipped_words: tokens whose vectors are left out of texts of the types in skipped_in.
    """

    skipped_words: tuple[str, ...] = ()
    skipped_in: tuple[InputType, ...] = ("document",)


def read(folder: Path) -> Mask:
    """CheckpointError if it does more than leave words out."""
    file = folder / "config.json"
    config = json_files.settings(file)
    if config.get("keep_only_token_ids"):
        raise CheckpointError(f"{file}: keep_only_token_ids is for images, which are not served")
    words, tasks = config.get("skiplist_words") or [], config.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    if not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{file} is broken: skiplist_words are no words")
    if unknown := [task for task in tasks if task not in INPUT_TYPES]:
        known = ", ".join(INPUT_TYPES)
        raise CheckpointError(f"{file}: skiplist_tasks has {unknown[0]!r}, supported are {known}")
    return Mask(tuple(words), tuple(kind for kind in INPUT_TYPES if kind in tasks))
