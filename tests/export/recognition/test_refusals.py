"""What no transformer of ours has is refused, with the reason, and where it runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.export.recognition.recognize import recognize
from addnorm.export.reference.trace import Unrecognized
from tests.support.people import Classifier, NanoGPT
from tests.support.people.encoders import D, H, OwnLayers, V

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")


class Windowed(nn.Module):
    """Tokens see 60 others at most, which short sequences do not show."""

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
        q, k, v = ((x @ w).unflatten(-1, (H, -1)).transpose(1, 2) for w in self.square[:3])
        far = (places[:, None] - places[None]).abs() > self.window
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=~far)
        attended = context.transpose(1, 2).flatten(2) @ self.square[3]
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


def test_long_sequences_are_compared_too() -> None:
    torch.manual_seed(0)
    assert recognize(Windowed(100), None, None).model.config.max_positions == 100
    message = "each part agrees, but the whole does not: of 100 tokens, activations differ by"
    with pytest.raises(Unrecognized, match=message):
        recognize(Windowed(60), None, None)


class Cropped(Windowed):
    """Reads the last 40 tokens."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids[:, -40:])


def test_a_length_over_which_tokens_are_left_out_is_named() -> None:
    torch.manual_seed(0)
    message = r"of 100 tokens it reads 40: .*set config=\{\"max_positions\": that length\}"
    with pytest.raises(Unrecognized, match=message):
        recognize(Cropped(100), None, None)
    assert recognize(Cropped(100), None, 40).model.config.max_positions == 40


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


def quick_gelu(block: Any, x: Tensor) -> Tensor:
    x = block.layernorm1(x + block.att(x, x, x)[0])
    up = block.ffn[0](x)
    return block.layernorm2(x + block.ffn[2](up * (1.702 * up).sigmoid()))


def crossed(block: Any, x: Tensor) -> Tensor:
    x = block.layernorm1(x + block.att(x, block.ffn(x), block.ffn(x))[0])
    return block.layernorm2(x + block.ffn(x))


def written(block: Any, x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, 1:]
    return block(y)


CHANGES: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "rotary": (rotary, "queries are changed before the scores, for example by rotary positions"),
    "gated": (gated, "two streams are multiplied, as in a gated feed-forward"),
    "parallel": (parallel, "norm: "),
    "RMSNorm": (rms, "norm: nothing tried agrees; smallest differences: "),
    "distances": (biased_by_distance, "attention: nothing tried agrees; smallest differences: "),
    "leaky": (other_activation, r"leaky_relu, at .* is an operator of an unknown part"),
    "quick gelu": (quick_gelu, r"activation: nothing tried agrees; smallest.*: gelu 0\.0"),
    "crossed": (crossed, "queries, keys and values are computed from different rows"),
    "batch norm": (
        lambda block, x: block(nn.BatchNorm1d(D).eval()(x.mT).mT), "native_batch_norm, at ",
    ),
    "log_softmax": (
        lambda block, x: block(x).log_softmax(-1), "_log_softmax.* operator of an unknown part",
    ),
    "sigmoid": (lambda block, x: block(x).sigmoid(), "norm: nothing tried agrees"),
    "in place": (
        written, "a part of a tensor is written in place, which cannot be traced",
    ),
    "random": (lambda block, x: block(F.dropout(x, 0.5)), "is an operator of an unknown part"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_transformer_has_is_refused_with_the_reason(name: str) -> None:
    change, message = CHANGES[name]
    torch.manual_seed(0)
    with pytest.raises(Unrecognized, match=message):
        recognize(Changed(change), None, None)


def test_blocks_that_differ_are_refused() -> None:
    module = NanoGPT()
    module.transformer.h[1].ln_1 = nn.LayerNorm(D, eps=1e-6)
    with pytest.raises(Unrecognized, match="blocks and norms differ in norm"):
        recognize(module, None, None)
    module = NanoGPT()
    module.transformer.h[1].mlp["act"] = nn.ReLU()
    with pytest.raises(Unrecognized, match="blocks and norms differ in activation"):
        recognize(module, None, None)


def test_inputs_that_are_no_ids_are_refused() -> None:
    module = Classifier()
    with pytest.raises(Unrecognized, match="no table is read at the token ids, so their number"):
        recognize(
            module, lambda ids: module.encoder(ids[..., None].float().expand(-1, -1, D)), None
        )
