"""What a bundle is made from: a preset and its seed, a checkpoint folder, or a model in memory."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from addnorm.export import texts
from addnorm.export.folder_tokenizer import NoTexts
from addnorm.export.texts import Texts
from addnorm.model import presets
from addnorm.model.checkpoints import Choices, load_checkpoint
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer
from addnorm.service.runtime.bundle import sha256

SEED = 42


class UsageError(Exception):
    """The arguments do not fit together, or with what is on disk."""


@dataclass(frozen=True)
class Source:
    """A model, and what its bundle's manifest says beside its shape.

    origin: the manifest's `source`. facts: its pooling, normalize, labels and prompts. texts: how
    it takes texts, or why it takes none. folder: the checkpoint's.
    """

    name: str
    model: Transformer
    origin: Mapping[str, Any]
    facts: Mapping[str, Any]
    texts: Texts | NoTexts
    folder: Path | None = None

    def in_layout(self, layout: str) -> Transformer:
        """The model with the same weights, not copied."""
        twin = copy.copy(self.model)
        twin.layout = LAYOUTS[layout]
        return twin


def preset(name: str, seed: int = SEED) -> Source:
    """KeyError for an unknown name."""
    facts = {"pooling": "mean", "normalize": False, "labels": None}
    no_texts = NoTexts(f"preset {name} has no tokenizer")
    model = presets.build(name, seed=seed)
    return Source(name, model, {"preset": name, "seed": seed}, facts, no_texts)


def checkpoint(
    folder: Path, choices: Choices | None = None, max_length: int | None = None
) -> Source:
    """max_length: tokens of a text, in place of the authors' limit.

    CheckpointError if the folder does not fit, UsageError if max_length does not.
    """
    choices = choices or Choices()
    loaded = load_checkpoint(folder, choices=choices)
    folder = folder.resolve()
    origin: dict[str, Any] = {
        "checkpoint": folder.name,
        "sha256": sha256(loaded.folder / "model.safetensors"),
        "unused": loaded.unused,
    }
    chosen = {"ignore": choices.ignore, "labels": choices.labels, "max_length": max_length}
    origin |= {name: value for name, value in chosen.items() if value not in (None, ())}
    facts = {
        "pooling": loaded.pooling,
        "normalize": loaded.normalize,
        "labels": loaded.labels,
        "prompts": loaded.prompts,
        "default_prompt_name": loaded.default_prompt_name,
    }
    found = _texts(folder, loaded.model.config.max_positions, max_length)
    return Source(folder.name, loaded.model, origin, facts, found, folder)


def recorded(origin: Mapping[str, Any], folder: Path | None) -> Source:
    """The source that a manifest names. folder: of the checkpoint, where it is one."""
    if "preset" in origin:
        return preset(origin["preset"], origin["seed"])
    if folder is None:
        raise UsageError(
            f"it was made from {origin['checkpoint']}: name that folder with --checkpoint DIR"
        )
    labels = origin.get("labels")
    choices = Choices(tuple(origin.get("ignore", ())), labels if labels is None else tuple(labels))
    return checkpoint(folder, choices, origin.get("max_length"))


def _texts(folder: Path, max_positions: int, max_length: int | None) -> Texts | NoTexts:
    try:
        found = texts.read(folder, max_positions)
    except NoTexts as why:
        if max_length is None:
            return why
        raise UsageError(
            f"--max-length {max_length} is of texts, and it takes none: {why}"
        ) from None
    if max_length is None:
        return found
    if not found.num_special < max_length <= max_positions:
        raise UsageError(
            f"--max-length {max_length}: {found.num_special + 1} to {max_positions} for"
            f" this model, whose texts have {found.num_special} special tokens"
        )
    return replace(found, max_tokens=max_length, limited_by="--max-length")
