"""Batch-invariance over HTTP: the same bits, whatever the padding and the other sequences."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from addnorm.model.presets import PRESETS
from tests.conftest import Ask

OUTPUTS = ["activations", "logits", "pooled", "norm_stats"]


def sequences(
    preset: str, seed: int, lengths: tuple[int, ...] = (1, 2, 3, 5, 9, 17, 40)
) -> list[list[int]]:
    config, draws = PRESETS[preset], np.random.default_rng(seed)
    return [
        draws.integers(0, config.vocab_size, min(n, config.max_positions)).tolist() for n in lengths
    ]


def options(preset: str) -> dict[str, Any]:
    return {"outputs": OUTPUTS, **({"logits": {"positions": "last"}} if preset == "minilm" else {})}


def row(answer: dict[str, Any], index: int, mask: list[int]) -> list[Any]:
    """All that an answer says of one row, at its real places. Equal numbers are equal bits."""
    grids = [answer["activations"], answer["norm_stats"]["mean"], answer["norm_stats"]["rstd"]]
    vectors = [answer["pooled"][index]]
    if np.ndim(answer["logits"][index]) == 2:
        grids.append(answer["logits"])
    else:
        vectors.append(answer["logits"][index])
    return [
        [cell for cell, real in zip(grid[index], mask, strict=True) if real] for grid in grids
    ] + vectors


def place(sequence: list[int], width: int, where: str) -> tuple[list[int], list[int]]:
    columns = {
        "right": range(len(sequence)),
        "left": range(width - len(sequence), width),
        "holes": sorted(
            np.random.default_rng(len(sequence))
            .choice(width, len(sequence), replace=False)
            .tolist()
        ),
    }[where]
    ids, mask = [0] * width, [0] * width
    for column, token in zip(columns, sequence, strict=True):
        ids[column], mask[column] = token, 1
    return ids, mask


@pytest.fixture(scope="module")
def alone(ask: Ask) -> dict[str, list[list[Any]]]:
    """What each sequence gives when nobody else is there."""
    return {
        preset: [
            row(ask(preset, [s], **options(preset)), 0, [1] * len(s)) for s in sequences(preset, 0)
        ]
        for preset in PRESETS
    }


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("where", ["right", "left", "holes"])
def test_padding_changes_no_bit(ask: Ask, alone: dict[str, Any], preset: str, where: str) -> None:
    grid = [place(sequence, 47, where) for sequence in sequences(preset, 0)]
    answer = ask(preset, [ids for ids, _ in grid], [mask for _, mask in grid], **options(preset))
    for index, (_, mask) in enumerate(grid):
        assert row(answer, index, mask) == alone[preset][index]
        pads = [
            cell for cell, real in zip(answer["activations"][index], mask, strict=True) if not real
        ]
        assert not np.any(pads)


@pytest.mark.parametrize("preset", PRESETS)
def test_company_changes_no_bit(ask: Ask, alone: dict[str, Any], preset: str) -> None:
    """Many callers at once, each with one known sequence among others of its own."""
    batches = sequences(preset, 0)

    def one_caller(seed: int) -> None:
        batch = sequences(preset, seed, (3, 11, 30))
        index = seed % len(batches)
        batch.insert(seed % 4, batches[index])
        answer = ask(preset, batch, **options(preset))
        assert row(answer, seed % 4, [1] * len(batches[index])) == alone[preset][index]

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(one_caller, range(1, 25)))


@pytest.mark.parametrize("preset", PRESETS)
def test_the_last_token_reaches_earlier_rows_only_where_attention_looks_ahead(
    ask: Ask, preset: str
) -> None:
    *start, last = [1, 3, 4, 5, 2]
    one, other = (
        np.array(ask(preset, [[*start, end]], outputs=["activations"])["activations"][0])
        for end in (last, 0)
    )
    assert (
        np.array_equal(one[:-1], other[:-1])
        == PRESETS[preset].causal
        == (preset in ("notebook", "gpt"))
    )
    assert not np.array_equal(one[-1], other[-1])
