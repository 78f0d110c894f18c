"""The model against the documents it comes from. Wrong numbers in them are recomputed."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from addnorm.model.config import Positions
from addnorm.model.grid import BLOCK
from addnorm.model.layout import LAYOUTS
from addnorm.model.norms import LayerNorm
from addnorm.model.presets import PRESETS, build
from addnorm.model.transformer import Config, FeedForward, Transformer, randomize, sinusoids


def normalized(x: Any, shape: int | tuple[int, ...], eps: float, kind: Any = "layer") -> np.ndarray:
    with torch.no_grad():
        return LayerNorm(shape, eps, kind)(torch.tensor(x))[0].numpy()


def test_layer_norm_over_two_axes_gives_the_classs_numbers() -> None:
    x = [[[0.2, 0.1, 0.3]], [[0.5, 0.1, 0.1]]]
    y, mean, rstd = LayerNorm((1, 3), 1e-5)(torch.tensor(x))
    assert y.flatten().tolist() == pytest.approx(
        [0, -1.2238, 1.2238, 1.4140, -0.7070, -0.7070], abs=1e-4
    )
    assert mean.flatten().tolist() == pytest.approx([0.2, 0.7 / 3])
    assert (1 / rstd).flatten().tolist() == pytest.approx([0.0817, 0.1886], abs=5e-5)


@pytest.mark.parametrize("shape", [(8,), (5, 8), (3, 5, 8)])
@pytest.mark.parametrize("kind", ["layer", "std"])
def test_layer_norm_over_any_trailing_axes(shape: tuple[int, ...], kind: Any) -> None:
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    axes = tuple(range(-len(shape), 0))
    norm = LayerNorm(shape, 1e-5, kind).double()
    y, mean, rstd = norm(x)
    expected_mean = x.mean(axes, keepdim=True)
    std = x.std(axes, keepdim=True, unbiased=kind == "std")
    denominator = std + 1e-5 if kind == "std" else (std**2 + 1e-5).sqrt()
    torch.testing.assert_close(mean, expected_mean)
    torch.testing.assert_close(rstd, 1 / denominator)
    torch.testing.assert_close(y, (x - expected_mean) / denominator)


def test_row_wise_statistics_of_the_batch_norm_comparison() -> None:
    rows = torch.tensor([[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]]).float()
    _, mean, rstd = LayerNorm(3, 0.0)(rows)
    assert mean.flatten().tolist() == pytest.approx([16 / 3, 3, 2, 6, 10 / 3])
    expected = [1.2472, 0.8165, 0.8165, 0.8165, 0.4714]
    assert (1 / rstd).flatten().tolist() == pytest.approx(expected, abs=1e-4)


def test_std_norm_divides_by_the_unbiased_deviation_plus_eps() -> None:
    """The document's prose says std(6.5, 2.1, 8.3) = 2.51; its code computes the unbiased 3.189."""
    got = normalized([[6.5, 2.1, 8.3], [0.0, 0.0, 0.0]], 3, 1e-6, "std")
    mean = 16.9 / 3
    std = math.sqrt(sum((v - mean) ** 2 for v in (6.5, 2.1, 8.3)) / 2)
    assert std == pytest.approx(3.189, abs=1e-3)
    assert got[0].tolist() == pytest.approx(
        [(v - mean) / (std + 1e-6) for v in (6.5, 2.1, 8.3)], abs=1e-6
    )
    assert got[1].tolist() == [0, 0, 0]  # a PAD row of zeros stays zero


def test_norms_are_pytorchs_own_and_rms_norm_subtracts_no_mean() -> None:
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1)) + 3
    torch.testing.assert_close(LayerNorm(6, 1e-5)(x)[0], nn.LayerNorm(6, eps=1e-5)(x))
    y, mean, rstd = LayerNorm(6, 1e-5, "rms", bias=False)(x)
    torch.testing.assert_close(y, nn.RMSNorm(6, eps=1e-5)(x))
    torch.testing.assert_close(rstd[..., 0], (x.square().mean(-1) + 1e-5).rsqrt())
    assert not mean.any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_share_keys_as_if_each_had_a_copy(layout: str) -> None:
    grouped = randomize(Transformer(GROUPED, layout), 0).eval()
    single = Transformer(replace(GROUPED, n_kv_heads=None), layout).eval()
    weights = grouped.state_dict()
    for name in [name for name in weights if ".qkv." in name]:
        q, k, v = weights[name].split(grouped.blocks[0].attention.widths)
        heads = (part.unflatten(0, (2, 6)).repeat_interleave(2, 0).flatten(0, 1) for part in (k, v))
        weights[name] = torch.cat([q, *heads])
    single.load_state_dict(weights)
    ids = torch.randint(11, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(40) < torch.tensor([40, 1, 17])[:, None]
    shown = [torch.arange(4)] * GROUPED.n_layers
    with torch.no_grad():
        for one, other in zip(grouped(ids, mask), single(ids, mask), strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
        (_, maps), (_, expected) = (x.lens(ids, mask, None, shown) for x in (grouped, single))
    torch.testing.assert_close(maps, expected)


GROUPED = Config(
    vocab_size=11, d_model=16, n_heads=4, d_ff=16, n_layers=2, max_positions=40, block="pre",
    n_kv_heads=2, d_head=6, norm="rms", norm_bias=False, qk_norm=True,
)  # fmt: skip


def test_add_and_norm_example() -> None:
    """x + sublayer = [1.5, 1.7, 3.2, 4.1]: its variance is 1.1569, not the document's 1.359."""
    assert normalized([2.0, 4.0, 6.0, 8.0], 4, 1e-6).tolist() == pytest.approx(
        [-1.3416, -0.4472, 0.4472, 1.3416], abs=1e-4
    )
    _, mean, rstd = LayerNorm(4, 1e-6)(torch.tensor([1.5, 1.7, 3.2, 4.1]))
    assert mean.item() == pytest.approx(2.625)
    assert 1 / rstd.item() ** 2 == pytest.approx(1.156875 + 1e-6, abs=1e-5)
    got = normalized([1.5, 1.7, 3.2, 4.1], 4, 1e-6)
    assert got.tolist() == pytest.approx([-1.0459, -0.8600, 0.5346, 1.3714], abs=1e-4)


def test_feed_forward_example() -> None:
    """x W1 + b1 = [0.49, -0.03, 0.96], the output is [-0.043, 0.194, 0.431, 0.531]. Not as the
    document says.
    """
    config = replace(PRESETS["encoder"], d_model=4, d_ff=3, n_heads=1)
    ffn = FeedForward(config)
    with torch.no_grad():
        ffn.up.weight.copy_(
            torch.tensor([[0.2, 0.3, 0.1], [0.4, -0.1, 0.5], [0.1, 0.2, -0.3], [-0.2, 0.4, 0.2]]).T
        )
        ffn.up.bias.copy_(torch.tensor([0.1, -0.1, 0.2]))
        ffn.down.weight.copy_(
            torch.tensor([[0.5, 0.2, -0.1, 0.3], [0.1, 0.4, 0.2, -0.2], [-0.3, 0.1, 0.5, 0.4]]).T
        )
        ffn.down.bias.zero_()
        got = ffn(torch.tensor([[0.5, 1.0, -0.5, 0.3]]))[0]
    assert got.tolist() == pytest.approx([-0.043, 0.194, 0.431, 0.531], abs=1e-6)


def test_notebook_model_gives_the_notebooks_output(golden_notebook: dict[str, Any]) -> None:
    model = build("notebook")
    ids = torch.tensor([golden_notebook["tokens"]])
    with torch.no_grad():
        activations, mean, rstd = model(ids, torch.ones_like(ids))
    np.testing.assert_allclose(
        activations[0].numpy(), golden_notebook["layer_norm_output"], atol=1e-5
    )
    np.testing.assert_allclose(mean[0, :, 0].numpy(), golden_notebook["mean"], atol=1e-7)
    np.testing.assert_allclose(rstd[0, :, 0].numpy(), golden_notebook["rstd"], rtol=1e-5)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_norms_they_count_and_nothing_trivial(preset: str) -> None:
    model = build(preset)
    norms = [
        module
        for name, module in model.named_modules()
        if isinstance(module, LayerNorm) and "head" not in name
    ]
    assert len(norms) == model.config.n_norms
    assert "logits" in model.heads
    if preset != "notebook":  # whose gamma is 1 and beta 0
        assert all(norm.gamma.std() > 0.01 and norm.beta.std() > 0.01 for norm in norms)


@pytest.mark.parametrize("block", [2, 3, BLOCK])
@pytest.mark.parametrize("preset", ["notebook", "postnorm", "gpt"])
def test_layouts_agree_wherever_the_pads_stand(preset: str, block: int) -> None:
    draws = np.random.default_rng(0)
    ids = torch.tensor(draws.integers(0, PRESETS[preset].vocab_size, (4, 7)))
    mask = torch.tensor([[1] * 5 + [0] * 2, [0] * 2 + [1] * 5, [1, 0, 1, 0, 1, 0, 1], [0] * 7])
    packed, padded = (build(preset, layout) for layout in LAYOUTS)
    packed.block = block
    with torch.no_grad():
        for left, right in zip(packed(ids, mask), padded(ids, mask), strict=True):
            torch.testing.assert_close(left, right, atol=5e-6, rtol=1e-5)
            assert not left[mask == 0].any()
            assert not right[mask == 0].any()


@pytest.mark.parametrize("block", ["post", "pre", "single"])
@pytest.mark.parametrize("norm", ["layer", "std", "rms"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_combination_runs_and_only_causal_ones_hide_the_future(
    block: Any, norm: Any, activation: Any, causal: bool
) -> None:
    config = Config(
        vocab_size=11, d_model=8, n_heads=2, d_ff=16, n_layers=2, max_positions=6,
        causal=causal, block=block,
        activation=activation, norm=norm, embedding_norm=True, final_norm=True,
    )  # fmt: skip
    model = randomize(Transformer(config), 0).eval()
    first, second = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 5]])
    with torch.no_grad():
        one, other = (model(ids, torch.ones_like(ids))[0][0] for ids in (first, second))
    assert one.shape == (4, 8)
    assert torch.equal(one[:3], other[:3]) == causal
    assert not torch.equal(one[3], other[3])


def test_sinusoids_are_the_papers() -> None:
    table = sinusoids(50, 6)
    for position in (0, 1, 49):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("buckets", [0, 8])
def test_can_be_trained_and_then_says_the_same(layout: str, buckets: int) -> None:
    """Attention has a gradient, and other code with one than without."""
    config = Config(
        vocab_size=11, d_model=8, n_heads=2, d_ff=16, n_layers=2, max_positions=6,
        positions=Positions(buckets=buckets),
    )  # fmt: skip
    model = randomize(Transformer(config, layout), 0)
    ids, mask = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]]), torch.tensor([[1] * 4, [1, 0, 1, 0]])
    trained = model(ids, mask)[0]
    trained.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert model.blocks[0].attention.qkv.weight.grad.abs().min() > 0  # type: ignore[union-attr, operator]
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask)[0], trained, atol=1e-6, rtol=1e-6)
