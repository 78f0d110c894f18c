"""Folders as transformers and sentence-transformers write them -> Config and weights.

Each family of models is a table (`bert.py` and its neighbours). What does not fit is refused.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from addnorm.model.checkpoints.albert import ALBERT
from addnorm.model.checkpoints.bert import BERT
from addnorm.model.checkpoints.distilbert import DISTILBERT
from addnorm.model.checkpoints.electra import ELECTRA
from addnorm.model.checkpoints.family import ACTIVATIONS, Family, HeadTable, Raw
from addnorm.model.checkpoints.folder import problem
from addnorm.model.checkpoints.gpt2 import GPT2
from addnorm.model.checkpoints.mpnet import MPNET
from addnorm.model.checkpoints.opt import OPT
from addnorm.model.checkpoints.reader import CheckpointError, Reader, fill, fill_head, head_config
from addnorm.model.checkpoints.roberta import ROBERTA
from addnorm.model.checkpoints.unsupported import reason
from addnorm.model.checkpoints.weights import read as read_weights
from addnorm.model.config import Config
from addnorm.model.transformer import Head, Transformer

__all__ = ["Checkpoint", "CheckpointError", "Choices", "load_checkpoint"]
FAMILIES = {
    model_type: family
    for family in (BERT, ROBERTA, ELECTRA, MPNET, DISTILBERT, ALBERT, GPT2, OPT)
    for model_type in family.model_types
}
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
    # as newer releases write it
    "mean": "mean",
    "cls": "first",
    "lasttoken": "last",
}


@dataclass(frozen=True)
class Checkpoint:
    """What was found in a folder, read."""

    model: Transformer
    model_type: str
    head: str | None  # the class of transformers that it is of
    labels: tuple[str, ...] | None  # of the logits, in order; None: they have no names
    pooling: str  # mean, first or last: sentence-transformers' 1_Pooling, else mean
    normalize: bool  # sentence-transformers' modules.json ends in Normalize
    unused: list[str]  # keys, and prefixes ending in ".", that the forward does not use
    files: tuple[Path, ...]  # of weights, that were read
    dtypes: tuple[str, ...]  # of the stored weights


@dataclass(frozen=True)
class Choices:
    """What the person who exports decides, beyond what the folder says.

    ignore: what the keys of weights begin with that are left out. labels: in place of config.json's
    names, in the order of the logits; empty for none.
    """

    ignore: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None


def load_checkpoint(
    folder: Path, layout: str = "packed", choices: Choices | None = None
) -> Checkpoint:
    """The folder's model in evaluation mode.

    CheckpointError if anything is missing, unexpected or misshaped.
    """
    choices = choices or Choices()
    if wrong := problem(folder):
        raise CheckpointError(wrong)
    fields = _read_json(folder / "config.json")
    family = _family(fields)
    raw = {**family.defaults, **fields}
    weights = read_weights(folder)
    reader = Reader.of(family, weights.tensors, choices.ignore)
    config, table = read_config(family, raw), _head(family, raw, reader, choices.ignore)
    if table:
        head = head_config(table, reader, config)
        config = replace(config, heads={table.output: head})
    labels = _labels(table, fields, config, choices) if table else None
    model = Transformer(config, layout)
    with torch.no_grad():
        fill(model, reader, raw)
        if table:
            module = model.heads[table.output]
            assert isinstance(module, Head)
            fill_head(module, table, reader)
    unused = reader.finish(folder)
    pooling, normalize = _sentence_transformers(folder)
    return Checkpoint(
        model=model.eval(),
        model_type=fields["model_type"],
        head=table.classes[0] if table else None,
        labels=labels,
        pooling=pooling,
        normalize=normalize,
        unused=unused,
        files=weights.files,
        dtypes=weights.dtypes,
    )


def _family(fields: Raw) -> Family:
    """CheckpointError for a family that is not supported, with the reason."""
    model_type = fields.get("model_type")
    if model_type not in FAMILIES:
        raise CheckpointError(f"config.json: {reason(model_type, sorted(FAMILIES))}")
    return FAMILIES[model_type]


def read_config(family: Family, raw: Raw) -> Config:
    """The fields of config.json, with the family's defaults -> Config, without heads."""
    for name, supported in family.only.items():
        if (value := raw.get(name)) not in supported:
            shown = " or ".join(map(repr, supported))
            raise CheckpointError(f"config.json: {name} is {value!r}, supported is {shown}")
    try:
        fields = {ours: raw[theirs] for ours, theirs in family.config.items()}
        fields |= {**family.fixed, **family.derived(raw)}
    except KeyError as error:
        raise CheckpointError(f"config.json: {error.args[0]} is missing") from None
    if (activation := fields["activation"]) not in ACTIVATIONS:
        name = family.config["activation"]
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"config.json: {name} is {activation!r}, supported are {known}")
    return Config(**{**fields, "activation": ACTIVATIONS[activation]})


def _head(family: Family, raw: Raw, reader: Reader, ignore: tuple[str, ...]) -> HeadTable | None:
    """By the name of the class in config.json; if it names no head, by the keys of the weights."""
    kept = [
        head for head in family.heads if not (ignore and f"{head.linear}.weight".startswith(ignore))
    ]
    for name in raw.get("architectures") or ():
        for head in family.heads:
            if name.endswith(head.classes):
                return head if head in kept else None
    found = [head for head in kept if all(f"{key}.weight" in reader for key in _own_keys(head))]
    if len(found) > 1:
        key, classes = f"{found[0].linear}.weight", [head.classes[0] for head in found]
        raise CheckpointError(
            f"config.json: architectures is {raw.get('architectures')}, so {key} may be the head"
            f" of {' or '.join(classes)}: name the class there, or leave it out with --ignore"
        )
    return found[0] if found else None


def _own_keys(head: HeadTable) -> list[str]:
    """What the weights have if they have this head."""
    needed = [head.dense] if head.dense and not head.dense_is_optional else []
    return needed if needed and head.tied else [*needed, head.linear]


def _labels(
    table: HeadTable, fields: Raw, config: Config, choices: Choices
) -> tuple[str, ...] | None:
    """CheckpointError if there is not one for each logit."""
    width, key = config.heads[table.output].width, table.linear
    if choices.labels is not None:
        names: Sequence[str] = choices.labels
        what = "--labels names"
    elif table.labels is True:
        named = fields.get("id2label")
        indices = sorted(named or {}, key=int)
        names = (
            [named[index] for index in indices] if named else [f"LABEL_{i}" for i in range(width)]
        )
        what = "config.json: id2label names"
    else:
        return table.labels or None
    if not names:
        return None
    if len(names) != width:
        raise CheckpointError(
            f"{what} {len(names)} labels, the head ({key}) has {width}: name a file of {width}"
            " lines with --labels FILE, or go without with --labels none"
        )
    return tuple(names)


def _sentence_transformers(folder: Path) -> tuple[str, bool]:
    """Pooling and normalization by `modules.json` and `1_Pooling`; without them mean, and none."""
    if not (folder / "modules.json").exists():
        return "mean", False
    kinds = [module["type"].rpartition(".")[2] for module in _read_json(folder / "modules.json")]
    if unknown := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise CheckpointError(f"modules.json: {', '.join(sorted(unknown))} is not supported")
    modes = _read_json(folder / "1_Pooling" / "config.json") if "Pooling" in kinds else {}
    wanted = [name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True]
    if mode := modes.get("pooling_mode"):
        wanted = [mode] if isinstance(mode, str) else mode
    if len(wanted) > 1 or set(wanted) - set(POOLINGS):
        raise CheckpointError(f"1_Pooling/config.json: {', '.join(wanted)} is not supported")
    return POOLINGS[wanted[0]] if wanted else "mean", "Normalize" in kinds


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
