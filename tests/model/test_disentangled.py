"""Scores with terms of content by distance: DeBERTa v2 and v3 beside transformers, blocks beside
the whole grid, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from addnorm.model.checkpoints import load_checkpoint
from addnorm.model.config import Config, Disentangled, Positions
from addnorm.model.disentangled import skew, vectors_of
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer, randomize, shorten
from tests.support.families import answers, made, save
from tests.support.ragged_grids import gaps_of
from tests.support.sentence_transformers import tell

LONG = {"max_position_embeddings": 256}
SHAPE = Config(
    vocab_size=50, d_model=16, n_heads=2, d_ff=24, n_layers=2, max_positions=80,
    positions=Positions("none", disentangled=Disentangled(span=8, farthest=30)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        ("Model", {"share_att_key": False}),
        ("ForMaskedLM", {"pos_att_type": "c2p", "legacy": False}),
        ("ForMaskedLM", {"pos_att_type": ["p2c"], "share_att_key": False, "norm_rel_ebd": "none"}),
        ("ForSequenceClassification", {"pooler_hidden_act": "tanh", "max_relative_positions": 90}),
        ("ForSequenceClassification", {"num_labels": 1}),
        ("ForTokenClassification", {"position_buckets": -1, "max_relative_positions": 30}),
        ("ForQuestionAnswering", {"position_biased_input": True, "type_vocab_size": 2}),
    ],
)
def test_long_sequences_in_ragged_grids_equal_those_of_transformers(
    head: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    original = made(f"DebertaV2{head}", **LONG, **fields)
    assert max(gaps_of(load_checkpoint(save(original, tmp_path)).model, original)) <= 1e-5


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (8, 300), (64, 65), (30, 0)])
def test_distances_have_the_vectors_of_transformers(span: int, farthest: int) -> None:
    distances = torch.arange(-1200, 1201)
    buckets = make_log_bucket_position(distances, span, farthest) if farthest else distances
    expected = (buckets.long() + span).clamp(0, 2 * span - 1)
    assert torch.equal(vectors_of(distances, Disentangled(span, farthest)), expected)


@pytest.mark.parametrize(("n", "columns"), [(1, 1), (1, 3), (3, 3), (4, 7)])
def test_rows_are_shifted_into_their_place(n: int, columns: int) -> None:
    by_distance = torch.arange(n * (columns + n)).view(n, -1)
    shifted = skew(by_distance[None])[0]
    rows, places = torch.arange(n)[:, None], torch.arange(columns)
    assert torch.equal(shifted, by_distance.gather(1, places - rows + n - 1))


@pytest.mark.parametrize("seq", [1, 2, 15, 16, 17, 33, 80])
def test_blocks_equal_the_whole_grid(seq: int) -> None:
    models = [randomize(Transformer(SHAPE, layout), 0).eval() for layout in LAYOUTS]
    ids = torch.randint(0, 50, (3, seq), generator=torch.Generator().manual_seed(seq))
    mask = torch.ones_like(ids)
    mask[1, seq // 2 :], mask[2, ::2] = 0, 0
    heads = [torch.arange(2)] * SHAPE.n_layers
    for model in models:
        model.block = 16
    with torch.no_grad():
        packed, padded = (model(ids, mask)[0] for model in models)
        maps = [model.lens(ids, mask, None, heads)[1] for model in models]
    torch.testing.assert_close(packed, padded, atol=5e-6, rtol=1e-5)
    for left, right in zip(*maps, strict=True):
        # a map is by place in blocks, and by cell in the whole grid
        torch.testing.assert_close(left[:2], right[:2], atol=5e-6, rtol=1e-5)


def test_a_shortened_model_computes_as_before() -> None:
    model = randomize(Transformer(SHAPE), 0).eval()
    ids = torch.randint(0, 50, (2, 20))
    with torch.no_grad():
        before = model(ids, torch.ones_like(ids))[0]
        shorten(model, 20)
        assert len(model.distances.chosen) == 39
        assert torch.equal(model(ids, torch.ones_like(ids))[0], before)


def test_the_first_release_names_no_head_and_has_one(tmp_path: Path) -> None:
    original = made("DebertaV2ForMaskedLM", legacy=False)
    folder = save(original, tmp_path)
    ours = load_checkpoint(tell(folder, architectures=..., legacy=...)).model
    ids = [7, 8, 9]
    logits = answers(original, ids, [0] * 3)[1]
    with torch.no_grad():
        rows = ours(torch.tensor([ids]), torch.ones(1, 3))[0]
        got = ours.head("logits", rows, torch.ones(1, 3))[0]
    assert logits is not None
    torch.testing.assert_close(got, logits, atol=1e-5, rtol=1e-5)
