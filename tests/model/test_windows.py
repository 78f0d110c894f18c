"""Layers that see a window of keys, and rotated positions, against their definitions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from addnorm.model.config import Config, Positions, Rotary
from addnorm.model.layout import LAYOUTS
from addnorm.model.positions import RotaryTable, rotate
from addnorm.model.transformer import Transformer, randomize

BLOCK, WINDOW = 16, 5
LENGTHS = (1, WINDOW, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + WINDOW, 2 * BLOCK, 2 * BLOCK + 1, 70)
SHAPE = Config(
    vocab_size=50, d_model=16, n_heads=2, d_ff=24, n_layers=3, max_positions=80, block="pre",
    first_norm=False, embedding_norm=True, final_norm=True, norm_bias=False, attention_bias=False,
    gated=True, ffn_bias="none", positions=Positions("none", Rotary(160_000.0, 10_000.0)),
    window=WINDOW, local_layers=(1, 2),
)  # fmt: skip
HEADS = [torch.arange(2)] * SHAPE.n_layers


def models(config: Config) -> list[Transformer]:
    """The same weights in each layout."""
    made = [randomize(Transformer(config, layout), 0).eval() for layout in LAYOUTS]
    for model in made:
        model.block = BLOCK
    return made


def ragged(seq: int) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(seq)
    mask = torch.ones(4, seq, dtype=torch.int64)
    mask[1, seq // 2 :], mask[2, ::2], mask[3, : seq // 3] = 0, 0, 0
    return torch.tensor(draws.integers(0, SHAPE.vocab_size, (4, seq))), mask


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq", LENGTHS)
def test_layouts_agree_at_every_length(seq: int, causal: bool) -> None:
    ids, mask = ragged(seq)
    with torch.no_grad():
        packed, padded = (model(ids, mask) for model in models(replace(SHAPE, causal=causal)))
    for left, right in zip(packed, padded, strict=True):
        torch.testing.assert_close(left, right, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("seq", LENGTHS)
def test_a_query_sees_keys_at_the_windows_distance_and_none_farther(seq: int) -> None:
    ids, mask = ragged(seq)
    places = torch.arange(seq)
    near = (places - places[:, None]).abs() <= WINDOW
    for model in models(SHAPE):
        with torch.no_grad():
            full, *local = model.lens(ids, mask, None, HEADS)[1]
        for maps in local:
            assert torch.equal(maps[0] > 0, near.expand(2, seq, seq))  # the sequence without pads
            torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, seq))
        assert (full[0] > 0).all()


def test_angles_are_the_papers_and_scores_know_the_distance_alone() -> None:
    table = RotaryTable(50, 6, Rotary())
    rotation = table(torch.arange(50))
    for place in (0, 1, 49):
        angles = [place / 10_000 ** (2 * i / 6) for i in range(3)]
        np.testing.assert_allclose(rotation.cos[place, 0], np.cos(angles), rtol=0, atol=1e-7)
        np.testing.assert_allclose(rotation.sin[place, 0], np.sin(angles), rtol=0, atol=1e-7)
    qkv = torch.randn(36, generator=torch.Generator().manual_seed(0)).expand(50, 36)  # two heads
    q, k, v = rotate(qkv, rotation, 4).unflatten(-1, (3, 2, 6)).unbind(1)
    assert torch.equal(v.flatten(1), qkv[:, 24:])
    scores = torch.einsum("qhe,khe->hqk", q, k)
    torch.testing.assert_close(scores[:, 3:, 3:], scores[:, :-3, :-3], atol=1e-5, rtol=1e-5)
    assert (scores[:, 0, 0] - scores[:, 0, 1]).abs().min() > 1e-3


def test_places_are_divided_by_the_scale() -> None:
    scaled, plain = (RotaryTable(9, 4, Rotary(100.0, scale=scale)) for scale in (4.0, 1.0))
    assert torch.equal(scaled.cos[::4], plain.cos[:3])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_can_be_trained(layout: str) -> None:
    model = randomize(Transformer(SHAPE, layout), 0)
    model(*ragged(20))[0].square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
