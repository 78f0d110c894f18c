"""A shape that means nothing, or contradicts itself, is refused with the field's name."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from addnorm.model.config import Bands, Config, Disentangled, HeadConfig, Positions, Rotary

BODY = Config(vocab_size=9, d_model=8, n_heads=2, d_ff=16, n_layers=2, max_positions=8)
HEAD = HeadConfig("first", 3)
ODD: tuple[Any, ...] = ("odd", -1, float("nan"), [], {"a": 1}, 0.5j)
BUILT = {"embedding_size": 4, "layer_groups": 1, "eps": 1e-6}
ROTARY, DISTANCES = Positions(rotary=Rotary()), Positions("none", disentangled=Disentangled(8, 30))
Make = Callable[..., object]
body, head, far = (
    partial(replace, BODY),
    partial(replace, HEAD),
    partial(replace, BODY, positions=DISTANCES),
)
bands = partial(Bands, **{"factor": 8.0, "low": 1.0, "high": 4.0, "trained": 64})
MAKE: dict[type, Make] = {
    Config: body, HeadConfig: head, Positions: Positions, Rotary: Rotary, Bands: bands,
}  # fmt: skip
FIELDS = [(kind, field.name) for kind in MAKE for field in fields(kind)]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_field_takes_no_odd_value(kind: type, name: str) -> None:
    for value in ODD:
        with pytest.raises(ValueError, match=rf"\b{name}"):
            MAKE[kind](**{name: value})


@pytest.mark.parametrize(
    ("make", "changed", "message"),
    [
        (body, {"positions": "rotary"}, "positions is 'rotary': a Positions is needed"),
        (body, {"positions": ROTARY, "d_model": 6},
         r"a head has 3 dimensions \(d_model 6 / n_heads 2\): rotary positions need an even"),
        (body, {"positions": ROTARY, "d_head": 5},
         "a head has 5 dimensions .*: rotary positions need an even"),
        (body, {"window": 4}, r"window is 4 and local_layers is \(\): both are needed, or neither"),
        (body, {"window": 4, "local_layers": (2,)},
         r"local_layers is \(2,\): a tuple of layers, 0 to 1"),
        (body, {"first_norm": False}, "first_norm is False and block is 'post': it needs block"),
        (body, {"activation": "geluu"}, "activation is 'geluu': known are 'identity', 'relu', "),
        (body, {"causal": 1}, "causal is 1: True or False"),
        (body, {"eps": 0.0}, "eps is 0.0: a number over 0"),
        (body, {"n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 2: each head of keys"),
        (body, {"layer_groups": 3}, "layer_groups is 3: None, or 1 to n_layers 2"),
        (body, {"d_model": 9}, "d_model 9 is not a multiple of n_heads 2"),
        (body, {"heads": {"logits": 3}}, r"heads\['logits'\] is 3: a HeadConfig is needed"),
        (head, {"pick": "cls"}, "pick is 'cls': known are 'every', 'first'"),
        (head, {"activation": "tanh"}, "activation is 'tanh' and norm is False, but dense is None"),
        (head, {"norm": True}, "norm is True, but dense is None"),
        (head, {"linear": False}, "linear is False and dense is None, but width is 3"),
        (head, {"linear": False, "dense": 4}, "linear is False and dense is 4, but width is 3"),
        (Positions, {"alibi": True}, "alibi is True and buckets is 0: one is needed for each"),
        (far, {"causal": True}, "positions are disentangled, and causal is True"),
        (far, {"window": 3, "local_layers": (0,)}, "window 3"),
        (far, {"positions": replace(DISTANCES, buckets=8)}, "buckets 8"),
        (Disentangled, {"span": 0}, "span is 0"),
        (Disentangled, {"span": 8, "farthest": 5}, "farthest is 5: 0, or 6 or more"),
        (Disentangled, {"span": 7, "farthest": 50}, "buckets are even"),
    ],
)  # fmt: skip
def test_a_shape_is_refused_in_words(make: Make, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changed)


def test_what_fits_is_taken() -> None:
    assert replace(BODY, **BUILT, heads={"logits": HEAD}).eps == 1e-6
    assert replace(BODY, d_model=9, d_head=5, n_kv_heads=1).head_dims == 5
    assert replace(HEAD, linear=False, dense=3, activation="tanh").width == 3
