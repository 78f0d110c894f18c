"""A shape that means nothing, or contradicts itself, is refused with the field's name."""

from dataclasses import fields, replace
from typing import Any

import pytest

from addnorm.model.config import Config, HeadConfig, Positions, Rotary

BODY = Config(vocab_size=9, d_model=8, n_heads=2, d_ff=16, n_layers=2, max_positions=8)
HEAD = HeadConfig("first", 3)
ODD: tuple[Any, ...] = ("odd", -1, float("nan"), [], {"a": 1}, 0.5j)
BUILT = {"embedding_size": 4, "layer_groups": 1, "eps": 1e-6}


@pytest.mark.parametrize("name", [field.name for field in fields(Config)])
def test_a_field_of_a_shape_takes_no_odd_value(name: str) -> None:
    for value in ODD:
        with pytest.raises(ValueError, match=rf"\b{name}"):
            replace(BODY, **{name: value})


@pytest.mark.parametrize("name", [field.name for field in fields(HeadConfig)])
def test_a_field_of_a_head_takes_no_odd_value(name: str) -> None:
    for value in ODD:
        with pytest.raises(ValueError, match=rf"\b{name}"):
            replace(HEAD, **{name: value})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"positions": "rotary"}, "positions is 'rotary': a Positions is needed"),
        (
            {"positions": Positions(rotary=Rotary()), "d_model": 6},
            r"a head has 3 dimensions \(d_model 6 / n_heads 2\): rotary positions need an even",
        ),
        ({"window": 4}, r"window is 4 and local_layers is \(\): both are needed, or neither"),
        ({"window": 4, "local_layers": (2,)}, r"local_layers is \(2,\): a tuple of layers, 0 to 1"),
        ({"first_norm": False}, "first_norm is False and block is 'post': it is of order pre"),
        ({"activation": "geluu"}, "activation is 'geluu': known are 'identity', 'relu', 'gelu'"),
        ({"causal": 1}, "causal is 1: True or False"),
        ({"eps": 0.0}, "eps is 0.0: a number over 0"),
        ({"n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 2: each head of keys and values"),
        (
            {"positions": Positions(rotary=Rotary()), "d_head": 5},
            "a head has 5 dimensions .*: rotary positions need an even",
        ),
        ({"layer_groups": 3}, "layer_groups is 3: None, or 1 to n_layers 2"),
        ({"d_model": 9}, "d_model 9 is no multiple of n_heads 2"),
        ({"heads": {"logits": 3}}, r"heads\['logits'\] is 3: a HeadConfig is needed"),
    ],
)
def test_a_shape_is_refused_in_words(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BODY, **changed)


@pytest.mark.parametrize("kind", [Positions, Rotary])
def test_a_field_of_positions_takes_no_odd_value(kind: Any) -> None:
    for field in fields(kind):
        for value in ODD:
            with pytest.raises(ValueError, match=rf"\b{field.name}"):
                kind(**{field.name: value})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pick": "cls"}, "pick is 'cls': known are 'every', 'first'"),
        ({"activation": "tanh"}, "activation is 'tanh' and norm is False, but dense is None"),
        ({"norm": True}, "norm is True, but dense is None"),
        ({"linear": False}, "linear is False and dense is None, but width is 3"),
        ({"linear": False, "dense": 4}, "linear is False and dense is 4, but width is 3"),
    ],
)
def test_a_head_is_refused_in_words(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(HEAD, **changed)


def test_a_bias_that_falls_with_distance_needs_buckets() -> None:
    with pytest.raises(ValueError, match="alibi is True and buckets is 0: one is needed for each"):
        Positions(alibi=True)


def test_what_fits_is_taken() -> None:
    assert replace(BODY, **BUILT, heads={"logits": HEAD}).eps == 1e-6
    assert replace(BODY, d_model=9, d_head=5, n_kv_heads=1).head_dims == 5
    assert replace(HEAD, linear=False, dense=3, activation="tanh").width == 3
