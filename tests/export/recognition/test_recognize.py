"""A module is recognized by what it computes, and not by its names; or refused, with the reason."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle, verify_bundle
from addnorm.export.recognition.recognize import Recognized, recognize
from addnorm.export.reference.original import Original
from addnorm.export.reference.trace import Unrecognized
from addnorm.model.config import Positions
from tests.support.people import TUTORIALS
from tests.support.people.encoders import D, H, T

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
LIMIT = 1e-5  # of the largest number
# fields of the Config that are not its defaults, beside sizes, and the head's pick
EXPECTED: dict[str, tuple[dict[str, Any], str | None]] = {
    "nn.TransformerEncoder, classifier": (
        {"activation": "relu", "embedding_scale": D**0.5}, "mean",
    ),
    "nn.TransformerEncoder, seq first": (
        {"activation": "relu", "embedding_scale": D**0.5, "causal": True, "final_norm": True},
        "every",
    ),
    "nn.TransformerEncoder, pre": ({"block": "pre", "eps": 1e-6, "final_norm": True}, "first"),
    "nn.MultiheadAttention in own layers": ({"activation": "relu", "eps": 1e-6}, None),
    "Annotated Transformer": (
        {"activation": "relu", "embedding_scale": D**0.5, "norm": "std", "eps": 1e-6,
         "block": "pre", "final_norm": True}, None,
    ),
    "segments": ({"embedding_norm": True, "type_vocab_size": 2}, "first"),
    "fused by head": ({"activation": "relu"}, "every"),
    "einsum": ({"activation": "silu", "block": "pre", "final_norm": True}, None),
    "nanoGPT": (
        {"block": "pre", "causal": True, "final_norm": True, "norm_bias": False,
         "attention_bias": False}, "every",
    ),
    "minGPT": (
        {"activation": "gelu_tanh", "block": "pre", "causal": True, "final_norm": True}, "every",
    ),
    "GPT in one lecture": (
        {"activation": "relu", "block": "pre", "causal": True, "final_norm": True}, "every",
    ),
    "LLMs from scratch": (
        {"activation": "gelu_tanh", "block": "pre", "causal": True, "final_norm": True}, "every",
    ),
    "seed: post with an own norm": ({"activation": "relu", "norm": "std", "eps": 1e-6}, None),
    "seed: single": (
        {"activation": "gelu_tanh", "block": "single", "causal": True, "attention_bias": False},
        None,
    ),
    "seed: scale and shift": (
        {"block": "pre", "causal": True, "final_norm": True, "eps": 1e-5 * (D - 1) / D}, "every",
    ),
}  # fmt: skip
DEFAULTS = {
    "d_model": D, "n_heads": H, "type_vocab_size": 1, "causal": False,
    "block": "post", "activation": "gelu", "norm": "layer", "norm_bias": True, "eps": 1e-5,
    "positions": Positions(), "window": 0, "local_layers": (), "first_norm": True,
    "gated": False, "ffn_bias": "both",
    "embedding_scale": 1.0, "embedding_size": None, "embedding_norm": False,
    "final_norm": False, "attention_bias": True, "layer_groups": None,
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return TUTORIALS[name]()


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_module_of_any_names_is_recognized(name: str) -> None:
    recognition = recognize(made(name), None, None)
    config = recognition.model.config
    fields, pick = EXPECTED[name]
    assert {field: getattr(config, field) for field in DEFAULTS} == {**DEFAULTS, **fields}
    assert [head.pick for head in config.heads.values()] == ([pick] if pick else [])
    assert difference(recognition, made(name)) < LIMIT


def difference(found: Recognized, module: nn.Module) -> float:
    """The largest to the module's own answers."""
    config = found.model.config
    original = Original(found.ask, config, found.pooling, found.pad)
    worst = 0.0
    for length in (1, 3, 19):
        ids = [1 + 7 * place % (config.vocab_size - 1) for place in range(length)]
        types = [int(place > 2) for place in range(length)] if config.type_vocab_size > 1 else None
        rows = [original.rows(ids, types), original.rows_of_model(found.model, ids, types)]
        worst = max(worst, float(np.abs(rows[0] - rows[1]).max() / np.abs(rows[0]).max()))
    return worst


def test_a_module_is_exported_by_one_call_and_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = made("nanoGPT").train()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    bundle = export_bundle(module, tmp_path, "own")
    assert "attention     4 heads of 8, causal, scale 1" in capsys.readouterr().out
    assert all(part.training and not part._forward_hooks for part in module.modules())
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert bundle.certificate
    record = bundle.certificate["compared_with"]
    assert (record["kind"], record["name"], record["output"]) == ("reference", "NanoGPT", "logits")
    assert bundle.manifest.source["module"] == "NanoGPT"
    assert verify_bundle(bundle.path, module).certificate == bundle.certificate
    with torch.no_grad():
        module.lm_head.weight[3, 3] += 1e-4
    with pytest.raises(ExportError, match="was exported from"):
        verify_bundle(bundle.path, module)


def test_the_way_it_is_called_can_be_said() -> None:
    """A mask that the caller makes, axes turned, and the second of two answers."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made("nn.TransformerEncoder, seq first")

        def forward(self, src: Tensor, mask: Tensor) -> tuple[int, Tensor]:
            return 0, self.inner(src, mask)

    module = Masked()
    with pytest.raises(
        Unrecognized, match="it needs a mask: show how it is called with reference=lambda ids"
    ):
        recognize(module, None, None)
    call = lambda ids: module(ids.T, torch.zeros(ids.shape[1], ids.shape[1]))[1]  # noqa: E731
    recognition = recognize(module, call, None)
    assert not recognition.model.config.causal
    assert difference(recognition, module) < LIMIT


def test_a_limit_is_said_where_the_module_sets_none() -> None:
    module = made("nn.TransformerEncoder, classifier")
    assert recognize(module, None, 20).model.config.max_positions == 20
    assert recognize(module, None, None).model.config.max_positions == T

    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, ids: Tensor) -> Tensor:
            angles = torch.arange(ids.shape[1])[:, None] * torch.linspace(0.1, 1, D)
            x = self.inner.embedding(ids) + angles.sin()
            return self.inner.encoder(x)

    recognition = recognize(Computed(), None, 70)
    assert recognition.model.config.max_positions == 70
    assert "the module has no limit" in "".join(recognition.lines)


class Bare(nn.Module):
    """Embeddings made in another way."""

    def __init__(self, embed: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.own, self.norm = made("nn.MultiheadAttention in own layers"), nn.LayerNorm(D, eps=1e-6)
        self.embed = embed

    def forward(self, ids: Tensor) -> Tensor:
        return self.own.block(self.embed(self, ids))


def placed(module: Any, ids: Tensor) -> Tensor:
    return module.own.token_emb(ids) + module.own.pos_emb.weight[: ids.shape[1]]


EMBEDDINGS: dict[str, tuple[Callable[[Any, Tensor], Tensor], dict[str, Any]]] = {
    "without places": (lambda m, ids: m.own.token_emb(ids), {}),
    "a scale alone": (lambda m, ids: m.own.token_emb(ids) * 3.0, {"embedding_scale": 3.0}),
    "a norm alone": (lambda m, ids: m.norm(m.own.token_emb(ids)), {"embedding_norm": True}),
    "scaled together": (lambda m, ids: placed(m, ids) / 2.0, {"embedding_scale": 0.5}),
    "a norm of both": (lambda m, ids: m.norm(placed(m, ids)), {"embedding_norm": True}),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_are_made_in_many_ways(name: str) -> None:
    embed, fields = EMBEDDINGS[name]
    module = Bare(embed)
    found = recognize(module, None, T)
    config = found.model.config
    expected = {"embedding_scale": 1.0, "embedding_norm": False, **fields}
    assert {field: getattr(config, field) for field in expected} == expected
    assert difference(found, module) < LIMIT


class Reversed(nn.Module):
    """A norm that reads beta before gamma: only drawn weights tell which is which."""

    def __init__(self) -> None:
        super().__init__()
        self.own = made("nn.MultiheadAttention in own layers")
        self.gamma, self.beta = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, ids: Tensor) -> Tensor:
        x = placed(self, ids)
        centred = x - x.mean(-1, keepdim=True)
        rate = (centred.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return self.own.block(torch.addcmul(self.beta, centred * rate, self.gamma))


def test_gamma_and_beta_are_told_apart() -> None:
    module = Reversed()
    found = recognize(module, None, None)
    assert torch.equal(found.model.embedding_norm.gamma, module.gamma)
    assert difference(found, module) < LIMIT
