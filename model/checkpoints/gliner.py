"""Folders that the package gliner writes: `gliner_config.json`, the weights of a transformer and of
what is behind it, a tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm.model.checkpoints import json_files, weights
from addnorm.model.checkpoints.reader import CheckpointError
from addnorm.model.extractor import Extractor, ExtractorConfig, Kind
from addnorm.model.weight_files import GLINER

BODY = "token_rep_layer.bert_layer.model."  # what the names of the transformer's weights begin with
SPANS = "span_rep_layer.span_rep_layer."
MLPS = {  # the package's names of weights -> those of `Extractor`; of the two layers 0 and 3
    f"{SPANS}project_start.": "start.",
    f"{SPANS}project_end.": "end.",
    f"{SPANS}out_project.": "out.",
    "prompt_rep_layer.": "prompt.",
    "scorer.out_mlp.": "out.",
}
NAMES = {
    "token_rep_layer.projection.": "projection.",
    "rnn.lstm.": "rnn.",
    "scorer.proj_token.": "token.",
    "scorer.proj_label.": "label.",
    **{f"{name}0.": f"{new}first." for name, new in MLPS.items()},
    **{f"{name}3.": f"{new}last." for name, new in MLPS.items()},
}
KINDS: dict[str, Kind] = {"markerV0": "spans", "token_level": "tokens"}  # by span_mode
ONLY: dict[str, tuple[Any, ...]] = {  # fields -> supported values; the first is the default
    "span_mode": tuple(KINDS),
    "subtoken_pooling": ("first",),
    "words_splitter_type": ("whitespace",),
    "post_fusion_schema": ("", None),
    **dict.fromkeys(("fuse_layers", "represent_spans", "precomputed_prompts_mode"), (False, None)),
    **dict.fromkeys(
        ("labels_encoder", "labels_decoder", "relations_layer", "span_encoder_config"), (None,)
    ),
}
SAVE_AGAIN = 'save it again, with gliner\'s GLiNER.from_pretrained("{}").save_pretrained(FOLDER)'


@dataclass(frozen=True)
class Gliner:
    """extraction: the manifest's field. fields: the transformer's config.json. body: its weights.
    files: of weights, that were read."""

    extractor: Extractor
    extraction: Mapping[str, Any]
    fields: Mapping[str, Any]
    body: Mapping[str, Tensor]
    files: tuple[Path, ...]


def is_gliner(folder: Path) -> bool:
    return (folder / GLINER).is_file() and not (folder / "config.json").exists()


def read(folder: Path) -> Gliner:
    """CheckpointError for a kind of model, and for weights, that are not supported."""
    settings = json_files.settings(folder / GLINER)
    for name, supported in ONLY.items():
        value = settings.get(name, supported[0])
        if value not in supported:
            choices = " or ".join(map(repr, supported))
            raise CheckpointError(f"{GLINER}: {name} is {value!r}, supported is {choices}")
    if (model_type := settings.get("model_type")) == "gliner_streaming_span":
        raise CheckpointError(f"{GLINER}: model_type {model_type!r} is not supported")
    again = SAVE_AGAIN.format(settings.get("model_name", folder.name))
    fields = settings.get("encoder_config")
    if not isinstance(fields, dict) or not (folder / "tokenizer_config.json").is_file():
        raise CheckpointError(f"{folder} has no encoder_config, or no tokenizer: {again}")
    kind = KINDS[settings.get("span_mode", "markerV0")]
    try:
        config = ExtractorConfig(
            kind,
            int(fields["hidden_size"]),
            int(settings["hidden_size"]),
            int(settings.get("max_width", 12)),
            max(0, int(settings.get("num_rnn_layers", 1))),
        )
        extraction = {
            "kind": kind,
            "max_width": config.max_width if kind == "spans" else 3,
            "max_words": int(settings.get("max_len", 384)),
            "label_token": str(settings.get("ent_token", "<<ENT>>")),
            "text_token": str(settings.get("sep_token", "<<SEP>>")),
            "label_id": int(settings["class_token_index"]),
            "label_offset": int(not settings.get("embed_ent_token", True)),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / GLINER} is broken: {error!r}") from None
    stored = weights.read(folder)
    body, rest = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in stored.tensors.items():
        name = name.removeprefix("model.")  # as older releases write it
        if name.startswith(BODY):
            body[name.removeprefix(BODY)] = tensor
            continue
        prefix = next((prefix for prefix in NAMES if name.startswith(prefix)), "")
        rest[NAMES.get(prefix, "") + name.removeprefix(prefix)] = tensor.float()
    with torch.device("meta"):
        extractor = Extractor(config).eval()
    try:
        extractor.load_state_dict(rest, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder}: the weights do not fit {GLINER}: {reason}") from None
    return Gliner(extractor, extraction, fields, body, stored.files)
