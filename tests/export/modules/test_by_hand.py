"""Parts named by hand: filled, and refused where the Config is wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from addnorm.export import ExportError, export_bundle
from addnorm.export.modules import by_hand
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.sources.sources import UsageError
from addnorm.model.config import Config, Positions
from tests.support.people import Annotated
from tests.support.people.encoders import D, Einsum, H, T, V

CONFIG = Config(
    vocab_size=V, d_model=D, n_heads=H, d_ff=64, n_layers=2, max_positions=T, activation="silu",
    block="pre", final_norm=True,
)  # fmt: skip
NAMES = {
    "tokens": "token_emb",
    "positions": "pos_emb",
    "blocks.{}.norm1": "layers.{}.norm1",
    "blocks.{}.norm2": "layers.{}.norm2",
    "blocks.{}.attention.qkv": "layers.{}.to_qkv",
    "blocks.{}.attention.out": "layers.{}.to_out",
    "blocks.{}.ffn.up": "layers.{}.ff.0",
    "blocks.{}.ffn.down": "layers.{}.ff.2",
    "final_norm": "norm",
}


class Rows(Einsum):
    """Activations in place of one row."""

    def forward(self, x):
        x = self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1]))[None]
        return self.norm(self.layers(x))


def made() -> nn.Module:
    torch.manual_seed(0)
    return Rows()


def test_named_parts_are_filled() -> None:
    found = by_hand.fill_model(made(), NAMES, CONFIG, None)
    ids = torch.tensor([[3, 9, 1, 4, 4]])
    with torch.no_grad():
        expected = made()(ids)
        activations, *_ = found.model(ids, torch.ones_like(ids))
    assert (activations - expected).abs().max() < 1e-5


def test_separate_matrices_and_parameters_of_any_name_are_joined() -> None:
    torch.manual_seed(0)
    module = Annotated().eval()
    config = Config(
        vocab_size=V, d_model=D, n_heads=H, d_ff=64, n_layers=2, max_positions=64,
        activation="relu", block="pre", norm="std", eps=1e-6, embedding_scale=D**0.5,
        final_norm=True,
    )  # fmt: skip
    names = {
        "tokens": "lut", "positions.weight": "pe", "final_norm": "norm",
        "blocks.{}.attention.qkv": [f"layers.{{}}.self_attn.linears.{i}" for i in range(3)],
        "blocks.{}.attention.out": "layers.{}.self_attn.linears.3",
        "blocks.{}.norm1.gamma": "layers.{}.sublayer.0.norm.a_2",
        "blocks.{}.norm1.beta": "layers.{}.sublayer.0.norm.b_2",
        "blocks.{}.norm2": "layers.{}.sublayer.1.norm",
        "blocks.{}.ffn.up": "layers.{}.w_1", "blocks.{}.ffn.down": "layers.{}.w_2",
    }  # fmt: skip
    found = by_hand.fill_model(module, names, config, None)
    assert found.pad == 0
    assert torch.equal(found.model.blocks[0].norm1.gamma, module.layers[0].sublayer[0].norm.a_2)


class Written(Rows):
    """A clamp that no drawn number reaches, behind a tensor that is written in place."""

    def forward(self, x):
        rows = super().forward(x)
        kept = torch.zeros(rows.shape)
        kept[0] = rows.clamp(-1e5, 1e5)[0]
        return kept


def test_an_operator_that_no_part_has_is_refused_wherever_it_is_written() -> None:
    torch.manual_seed(0)
    with pytest.raises(Unrecognized, match=r"clamp, in .* is an operator of no part that is known"):
        by_hand.fill_model(Written(), NAMES, CONFIG, None)


@pytest.mark.parametrize(
    ("names", "fields", "message"),
    [
        ({"final_norm": None}, {}, r"missing: final_norm\.gamma; unexpected: norm\.weight, norm"),
        ({"tokens": "no"}, {}, r"missing: no\.weight; unexpected: token_emb\.weight"),
        ({}, {"d_ff": 32}, r"misshaped: blocks\.0\.ffn\.up\.weight is .*, \[32, 32\] expected"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_are_named(
    tmp_path: Path, names: dict[str, str | None], fields: dict[str, Any], message: str
) -> None:
    named = {ours: theirs for ours, theirs in {**NAMES, **names}.items() if theirs}
    config = replace(CONFIG, **fields)
    with pytest.raises(ExportError, match=f"weights do not fit: {message}"):
        export_bundle(made(), tmp_path, "own", weights=named, config=config)
    with pytest.raises(ExportError, match="weights is set: config needs a whole Config"):
        export_bundle(made(), tmp_path, "own", weights=named, config={"n_heads": 4})


CHANGES: list[dict[str, Any]] = [
    {"activation": "gelu"}, {"n_heads": 2}, {"causal": True}, {"block": "post"}, {"eps": 1e-4},
    {"norm": "std"}, {"embedding_scale": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_wrong_config_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Unrecognized, match=r"with these weights and this Config the module's"):
        by_hand.fill_model(made(), NAMES, replace(CONFIG, **change), None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"final_norm": False}, r"unexpected: norm\.weight"),
        ({"positions": Positions("sinusoidal")}, "leave Config's positions as learned"),
    ],
    ids=str,
)
def test_a_config_without_a_part_of_the_module_is_refused(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        by_hand.fill_model(made(), NAMES, replace(CONFIG, **change), None)
