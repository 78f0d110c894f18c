"""A module is recognized by what it computes, and not by its names; or refused, with the reason."""

import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle, verify_bundle
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.modules.recognize import Recognized, recognized
from addnorm.export.original import Original
from tests.support.people import TUTORIALS, Classifier, NanoGPT
from tests.support.people.encoders import D, H, OwnLayers, T, V
from tests.support.people.strangers import IMPOSSIBLE, STRANGERS

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
MODULES = {**TUTORIALS, **STRANGERS}
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
    "alpha": (
        {"activation": "relu", "block": "pre", "eps": 1e-3, "final_norm": True,
         "attention_bias": False}, None,
    ),
    "bravo": ({"norm_bias": False}, "mean"),
    "charlie": (
        {"activation": "silu", "block": "pre", "causal": True, "final_norm": True}, "every",
    ),
    "delta": (
        {"activation": "relu", "causal": True, "norm_bias": False, "attention_bias": False,
         "embedding_size": 24, "n_heads": 2}, "last",
    ),
}  # fmt: skip
DEFAULTS = {
    "d_model": D, "n_heads": H, "type_vocab_size": 1, "causal": False,
    "block": "post", "activation": "gelu", "norm": "layer", "norm_bias": True, "eps": 1e-5,
    "positions": "learned",
    "relative_buckets": 0, "embedding_scale": 1.0, "embedding_size": None, "embedding_norm": False,
    "final_norm": False, "attention_bias": True, "layer_groups": None,
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[name]()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_any_names_is_recognized(name: str) -> None:
    found = recognized(made(name), None, None)
    config = found.model.config
    fields, pick = EXPECTED[name]
    known = {**asdict(config), "heads": None}
    assert {field: known[field] for field in DEFAULTS} == {**DEFAULTS, **fields}
    assert [head.pick for head in config.heads.values()] == ([pick] if pick else [])
    assert difference(found, made(name)) < LIMIT


def difference(found: Recognized, module: nn.Module) -> float:
    """The largest to the module's own answers."""
    config = found.model.config
    original = Original(found.ask, config, found.pooling, found.pad)
    worst = 0.0
    for length in (1, 3, 19):
        ids = [1 + 7 * place % (config.vocab_size - 1) for place in range(length)]
        types = [int(place > 2) for place in range(length)] if config.type_vocab_size > 1 else None
        rows = [original.rows(ids, types), original.of_model(found.model, ids, types)]
        worst = max(worst, float(np.abs(rows[0] - rows[1]).max() / np.abs(rows[0]).max()))
    return worst


@pytest.mark.usefixtures("exports_shared")
def test_a_module_is_exported_by_one_call_and_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = made("nanoGPT").train()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    bundle = export_bundle(module, tmp_path, "own")
    assert "attention     4 heads of 8 (shapes), causal, scale 1" in capsys.readouterr().out
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
    with pytest.raises(ExportError, match="was made from"):
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
    with pytest.raises(Unrecognized, match="forward needs src, mask: say how it is called"):
        recognized(module, None, None)
    call = lambda ids: module(ids.T, torch.zeros(ids.shape[1], ids.shape[1]))[1]  # noqa: E731
    found = recognized(module, call, None)
    assert not found.model.config.causal
    assert difference(found, module) < LIMIT


def test_a_limit_is_said_where_the_module_sets_none() -> None:
    module = made("nn.TransformerEncoder, classifier")
    assert recognized(module, None, 20).model.config.max_positions == 20
    assert recognized(module, None, None).model.config.max_positions == T

    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, ids: Tensor) -> Tensor:
            angles = torch.arange(ids.shape[1])[:, None] * torch.linspace(0.1, 1, D)
            x = self.inner.embedding(ids) + angles.sin()
            return self.inner.encoder(x)

    found = recognized(Computed(), None, 70)
    assert found.model.config.max_positions == 70
    assert "the module sets no limit" in "".join(found.lines)


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
    found = recognized(module, None, None)
    config = found.model.config
    expected = {"embedding_scale": 1.0, "embedding_norm": False, **fields}
    assert {field: getattr(config, field) for field in expected} == expected
    assert difference(found, module) < LIMIT


class Windowed(nn.Module):
    """Tokens see 60 others at most, which short sequences do not show; weights by einsum."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(100, D)
        self.square = nn.ParameterList([nn.Parameter(torch.randn(D, D) * 0.2) for _ in range(4)])
        self.up, self.down = nn.Linear(D, 48), nn.Linear(48, D)
        self.norms = nn.ModuleList([nn.LayerNorm(D) for _ in range(2)])

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.places(places)
        q, k, v = (
            torch.einsum("bsd,de->bse", x, w).unflatten(-1, (H, -1)).transpose(1, 2)
            for w in self.square[:3]
        )
        far = (places[:, None] - places[None]).abs() > self.window
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=~far)
        attended = torch.einsum("bsd,de->bse", context.transpose(1, 2).flatten(2), self.square[3])
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


def test_long_sequences_are_compared_too() -> None:
    torch.manual_seed(0)
    assert recognized(Windowed(100), None, None).model.config.max_positions == 100
    message = "each part agrees, and the whole does not: of 100 tokens, activations differ by"
    with pytest.raises(Unrecognized, match=message):
        recognized(Windowed(60), None, None)


class Changed(OwnLayers):
    """Something in the block that no transformer has."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        block, x = self.block, self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1]))
        return self.change(block, x)


def rotary(block: Any, x: Tensor) -> Tensor:
    q = x @ block.ffn[0].weight
    turn = torch.arange(x.shape[1])[:, None] * torch.linspace(0.1, 1, D)
    q = q * turn.cos() + q.roll(D // 2, -1) * turn.sin()
    a = (q @ q.mT).softmax(-1) @ (x @ block.ffn[2].weight)
    return block.layernorm2(block.ffn(y := block.layernorm1(x + block.att.out_proj(a))) + y)


def gated(block: Any, x: Tensor) -> Tensor:
    x = block.layernorm1(x + block.att(x, x, x)[0])
    return block.layernorm2(x + block.ffn[2](F.silu(block.ffn[0](x)) * block.ffn[2](x)))


def parallel(block: Any, x: Tensor) -> Tensor:
    y = block.layernorm1(x)
    return x + block.att(y, y, y)[0] + block.ffn(y)


def rms(block: Any, x: Tensor) -> Tensor:
    x = block.layernorm1(x + block.att(x, x, x)[0])
    y = x + block.ffn(x)
    return y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * block.layernorm2.weight


def biased_by_distance(block: Any, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    bias = -(places[:, None] - places[None]).abs().float()
    x = block.layernorm1(x + block.att(x, x, x, attn_mask=bias)[0])
    return block.layernorm2(x + block.ffn(x))


def other_activation(block: Any, x: Tensor) -> Tensor:
    x = block.layernorm1(x + block.att(x, x, x)[0])
    return block.layernorm2(x + block.ffn[2](F.leaky_relu(block.ffn[0](x))))


def crossed(block: Any, x: Tensor) -> Tensor:
    x = block.layernorm1(x + block.att(x, block.ffn(x), block.ffn(x))[0])
    return block.layernorm2(x + block.ffn(x))


def written(block: Any, x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, 1:]
    return block(y)


CHANGES: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "rotary": (rotary, "queries are changed on their way, as by rotary positions"),
    "gated": (gated, "two streams are multiplied, as in a gated feed-forward"),
    "parallel": (parallel, "norm: "),
    "RMSNorm": (rms, "norm: nothing tried agrees; smallest differences: "),
    "distances": (biased_by_distance, "attention: nothing tried agrees; smallest differences: "),
    "leaky": (other_activation, r"activation: nothing tried agrees; smallest.*: relu 0\.0"),
    "crossed": (crossed, "queries, keys and values are made of different rows"),
    "batch norm": (
        lambda block, x: block(nn.BatchNorm1d(D).eval()(x.mT).mT), "a batch normalization is no",
    ),
    "log_softmax": (
        lambda block, x: block(x).log_softmax(-1), "_log_softmax comes after the last layer",
    ),
    "sigmoid": (lambda block, x: block(x).sigmoid(), "sigmoid comes after the last layer"),
    "in place": (
        written, "a part of a tensor is written in place, which cannot be followed",
    ),
    "random": (lambda block, x: block(F.dropout(x, 0.5)), "gives two answers to one sequence"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_transformer_has_is_refused_with_the_reason(name: str) -> None:
    change, message = CHANGES[name]
    torch.manual_seed(0)
    with pytest.raises(Unrecognized, match=message):
        recognized(Changed(change), None, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("convolution", r"a convolution mixes tokens outside of attention, in filter \(Conv1d\)"),
        ("across tokens", "norm: a token's row depends on others' rows, so tokens are mixed"),
    ],
)
def test_what_mixes_tokens_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ExportError, match=rf"{message}.* Ways on: reference=lambda ids"):
        export_bundle(IMPOSSIBLE[name](), tmp_path, "own")
    assert not list(tmp_path.iterdir())


def test_blocks_that_differ_are_refused() -> None:
    module = NanoGPT()
    module.transformer.h[1].ln_1 = nn.LayerNorm(D, eps=1e-6)
    with pytest.raises(Unrecognized, match="blocks and norms differ in norm"):
        recognized(module, None, None)
    module = NanoGPT()
    module.transformer.h[1].mlp["act"] = nn.ReLU()
    with pytest.raises(Unrecognized, match="blocks and norms differ in activation"):
        recognized(module, None, None)


def test_inputs_that_are_no_ids_are_refused() -> None:
    module = Classifier()
    with pytest.raises(Unrecognized, match="no table is read at the token ids: inputs that are"):
        recognized(
            module, lambda ids: module.encoder(ids[..., None].float().expand(-1, -1, D)), None
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation", "relu"), ("n_heads", 2), ("causal", False), ("block", "post"), ("eps", 1e-4),
        ("norm", "std"), ("norm_bias", True), ("final_norm", False), ("embedding_scale", 2.0),
        ("max_positions", T + 1), ("attention_bias", True), ("d_ff", 64), ("n_layers", 1),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_the_module_is_refused(
    tmp_path: Path, field: str, value: Any
) -> None:
    with pytest.raises(ExportError, match=f"config is not the module's: {field} is "):
        export_bundle(made("nanoGPT"), tmp_path, "own", config={field: value})
