"""Families whose positions are rotated, beside transformers: long sequences in ragged grids, and
every way in which config.json says which angles and windows they have."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from addnorm.model.checkpoints import CheckpointError, load_checkpoint
from addnorm.model.layout import LAYOUTS
from tests.support.families import (
    CLASSES,
    ROTARY,
    VOCAB_SIZE,
    answers,
    family_of,
    made,
    rows_of,
    save,
)

LENGTHS = (1, 2, 17, 63, 64, 65, 130, 200)
LONG = {"max_position_embeddings": 256}


def grids() -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and masks `[B, S]`: sequences of all lengths, padded right, left and with holes."""
    draws, seq = torch.Generator().manual_seed(0), max(LENGTHS) + 3
    for side in ("right", "left", "holes"):
        mask = torch.zeros(len(LENGTHS), seq, dtype=torch.int64)
        for row, length in zip(mask, LENGTHS, strict=True):
            holes = torch.randperm(seq, generator=draws)[:length]
            chosen = {"right": slice(0, length), "left": slice(seq - length, seq), "holes": holes}
            row[chosen[side]] = 1
        yield torch.randint(5, VOCAB_SIZE, (len(LENGTHS), seq), generator=draws), mask


def largest_gaps(theirs: PreTrainedModel, folder: Path) -> tuple[float, float]:
    """The largest differences from transformers', one sequence at a time: of a row, as a share of
    the row's largest value; of logits, as a share of their largest."""
    ours, of_rows, of_logits = load_checkpoint(save(theirs, folder)).model, [0.0], [0.0]
    for ids, mask in grids():
        for layout in LAYOUTS.values():
            ours.layout = layout
            with torch.no_grad():
                rows = ours(ids, mask)[0]
                logits = ours.head("logits", rows, mask) if ours.heads else None
            for index, real in enumerate(mask == 1):
                hidden, right = answers(theirs, ids[index, real].tolist(), [0] * int(real.sum()))
                assert hidden is not None
                difference = (rows[index, real] - hidden).abs().amax(-1)
                of_rows.append(float((difference / hidden.abs().amax(-1)).max()))
                if logits is not None and right is not None:
                    got = logits[index] if logits.dim() == 2 else logits[index, real]
                    right = rows_of(right, len(hidden), ours.config.heads["logits"].pick)
                    assert got.shape == right.shape
                    of_logits.append(float((got - right).abs().max() / right.abs().max()))
    return max(of_rows), max(of_logits)


@pytest.mark.parametrize("class_name", [name for name in CLASSES if family_of(name) in ROTARY])
def test_long_sequences_in_ragged_grids_equal_those_of_transformers(
    class_name: str, tmp_path: Path
) -> None:
    found = largest_gaps(made(class_name, **LONG), tmp_path)
    print(class_name, *(f"{gap:.1e}" for gap in found))
    assert max(found) <= 1e-5


def changed(folder: Path, **fields: Any) -> Path:
    """Fields of config.json, removed where they are None."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    file.write_text(
        json.dumps({name: value for name, value in config.items() if value is not None})
    )
    return folder


NO_WINDOWS = {"layer_types": ["full_attention"] * 3}
BEFORE = {"layer_types": None, "rope_parameters": None}  # transformers 5


@pytest.mark.parametrize(
    ("made_with", "written_before"),
    [
        ({}, BEFORE),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 160_000.0}}},
            {**BEFORE, "local_rope_theta": 160_000.0},
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 900.0}}},
            {**BEFORE, "global_rope_theta": 900.0, "position_embedding_type": "absolute"},
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            {**BEFORE, "global_attn_every_n_layers": 2},
        ),
        (NO_WINDOWS, {**BEFORE, "global_attn_every_n_layers": 1}),
    ],
)
def test_earlier_fields_of_config_json_give_the_same_model(
    tmp_path: Path, made_with: dict[str, Any], written_before: dict[str, Any]
) -> None:
    folder = save(made("ModernBertModel", **made_with), tmp_path)
    new = load_checkpoint(folder).model.config
    assert load_checkpoint(changed(folder, **written_before)).model.config == new
    assert new.window == (0 if made_with == NO_WINDOWS else 4)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"rope_parameters": {"sliding_attention": YARN}},
            "rope_type in rope_parameters.sliding_attention is 'yarn', supported is 'default'",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type in rope_scaling is 'lin"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has 'rope_theta', supported"),
        ({**BEFORE, "global_rope_theta": "160k"}, "theta is '160k': a number over 0"),
        ({"layer_types": ["full_attention"] * 2}, "each of num_hidden_layers 3"),
        ({"layer_types": ["full_attention"] * 2 + ["linear_attention"]}, "'linear_attention'"),
        ({**BEFORE, "global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0: a whole"),
        ({"local_attention": 1}, r"window is 0 and local_layers is \(1, 2\): both are needed"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max', supported is 'cls' or"),
        ({"classifier_activation": "mish"}, "classifier_activation is 'mish', supported is"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    folder = changed(save(made("ModernBertModel"), tmp_path), **fields)
    with pytest.raises(CheckpointError, match=rf"^config\.json: .*{words}"):
        load_checkpoint(folder)
