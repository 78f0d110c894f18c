"""A model of transformers in memory: exported as the folder that it would be saved to, and compared
with its own forward."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.export.sources import sources
from addnorm.export.sources.original import Original, OriginalError, digest
from addnorm.export.sources.sources import Source, UsageError
from addnorm.model.checkpoints import Checkpoint, Choices, json_files
from addnorm.model.checkpoints.families import FAMILIES
from addnorm.model.transformer import Transformer
from addnorm.service.runtime.bundle import TOKENIZER


def saves_itself(model: Any) -> bool:
    """Whether it is of transformers."""
    return hasattr(model, "save_pretrained") and not isinstance(model, Transformer)


@contextmanager
def saved(
    model: Any,
    tokenizer: Path | None,
    labels: tuple[str, ...] | None,
    max_length: int | None,
    **facts: Any,
) -> Iterator[Source]:
    """The source, whose folder is there until the block ends. UsageError and CheckpointError if the
    model does not fit.

    tokenizer: a folder. labels: in place of the names in the model's config. facts: pooling and
    normalize, where they are not None.
    """
    name = type(model).__qualname__
    if not isinstance(model, nn.Module) or not (hasattr(model, "config") or _is_pipeline(model)):
        raise UsageError(
            f"the model is a {name}: save it with save_pretrained(folder), and export the folder"
        )
    with TemporaryDirectory() as root:
        folder = Path(root, name)
        model.save_pretrained(folder)  # type: ignore[operator]
        _forget_last_call(folder / TOKENIZER)
        for file in tokenizer.iterdir() if tokenizer and tokenizer.is_dir() else ():
            if file.is_file() and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        found = sources.checkpoint(folder, Choices(labels=labels), max_length)
        chosen = {fact: value for fact, value in facts.items() if value is not None}
        found = replace(found, facts={**found.facts, **chosen})
        yield replace(
            found, name=name, origin=_origin(name, model, found), original=_original(found, model)
        )


def _forget_last_call(file: Path) -> None:
    """A tokenizer in memory is saved with the padding and the cut of whatever it was last asked."""
    if file.exists():
        found = {**json.loads(file.read_text()), "padding": None, "truncation": None}
        file.write_text(json.dumps(found))


def _origin(name: str, model: nn.Module, found: Source) -> dict[str, Any]:
    kept = {key: found.origin[key] for key in ("labels", "max_length") if key in found.origin}
    return {"module": name, "sha256": digest(model), **kept}


def _original(found: Source, model: nn.Module) -> Original:
    assert found.loaded
    shape = found.model.config
    try:
        return Original(_asked(model), shape, found.facts["pooling"], _pad(found.loaded))
    except OriginalError as error:
        raise UsageError(str(error)) from error


def _is_pipeline(model: nn.Module) -> bool:
    """Whether it is a SentenceTransformer: modules one after the other, the first with a
    tokenizer."""
    return isinstance(model, nn.Sequential) and hasattr(model, "encode")


def _asked(model: nn.Module) -> "Forward":
    if _is_pipeline(model):
        return Vectors(model)
    inner = getattr(model, "model", None)
    is_cross_encoder = hasattr(model, "predict") and isinstance(inner, nn.Module)
    return Forward(inner if is_cross_encoder and inner else model, type(model).__qualname__)


def _pad(loaded: Checkpoint) -> int | None:
    """The id that the family takes for a pad wherever it stands, whatever the mask says: it counts
    positions by it."""
    family = FAMILIES[loaded.model_type]
    raw = family.raw(json_files.settings(loaded.folder / "config.json"))
    return raw.get("pad_token_id") if family.position_offset(raw) else None


class Forward(nn.Module):
    """transformers' model as a reference: ids, and types if there are any."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Any:
        more = {} if types is None else {"token_type_ids": types}
        answer = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
        if "start_logits" in answer:
            return torch.stack([answer["start_logits"], answer["end_logits"]], -1)
        return answer


class Vectors(Forward):
    """A SentenceTransformer as a reference: its pooled vectors, before they are normalized."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, type(model).__qualname__)

    def forward(self, ids: Tensor, types: Tensor | None = None) -> Any:
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if types is not None:
            features["token_type_ids"] = types
        for module in self.model.children():
            if type(module).__qualname__ != "Normalize":
                features = module(features)
        return features["sentence_embedding"]
