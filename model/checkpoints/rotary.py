"""What config.json says of rotated positions: in `rope_parameters`, or in other fields, as releases
of transformers before 5 wrote it. ValueError for what cannot be computed."""

from collections.abc import Mapping, Sequence
from typing import Any

from addnorm.model.checkpoints.family import Raw
from addnorm.model.config import Positions, Rotary

PLAIN = "default"  # the paper's own angles
FULL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers


def with_windows(raw: Raw) -> dict[str, Any]:
    """Fields of our Config, where some layers see a window of keys and have angles of their own."""
    local_layers = tuple(index for index, kind in enumerate(_kinds(raw)) if kind == LOCAL)
    return {
        "positions": Positions("none", _of_both_kinds(raw, bool(local_layers))),
        "window": raw["local_attention"] // 2 if local_layers else 0,
        "local_layers": local_layers,
    }


def _kinds(raw: Raw) -> Sequence[str]:
    """The kind of each layer."""
    num_layers, every = raw["num_hidden_layers"], raw["global_attn_every_n_layers"]
    kinds: Sequence[str] | None = raw["layer_types"]
    if kinds is None:
        if type(every) is not int or every < 1:
            raise ValueError(
                f"global_attn_every_n_layers is {every!r}: a whole number of 1 or more"
            )
        return [LOCAL if layer % every else FULL for layer in range(num_layers)]
    if len(kinds) != num_layers or not {*kinds} <= {FULL, LOCAL}:
        raise ValueError(
            f"layer_types is {kinds!r}: {FULL!r} or {LOCAL!r} for each of num_hidden_layers"
            f" {num_layers}"
        )
    return kinds


def _of_both_kinds(raw: Raw, has_windows: bool) -> Rotary:
    theta_of("rope_scaling", raw.get("rope_scaling"), 0.0)
    nested = raw["rope_parameters"] or {}
    if unknown := [name for name in nested if name not in (FULL, LOCAL)]:
        raise ValueError(f"rope_parameters has {unknown[0]!r}, supported are {FULL!r}, {LOCAL!r}")
    full, local = (
        theta_of(f"rope_parameters.{kind}", nested.get(kind), otherwise)
        for kind, otherwise in ((FULL, raw["global_rope_theta"]), (LOCAL, raw["local_rope_theta"]))
    )
    return Rotary(full, None if local == full or not has_windows else local)


def theta_of(name: str, parameters: Mapping[str, Any] | None, otherwise: float | None) -> Any:
    """The base of the angles. name: of the field. otherwise: where it is not there."""
    parameters = parameters or {}
    kind = parameters.get("rope_type", parameters.get("type", PLAIN))
    if kind != PLAIN:
        raise ValueError(f"rope_type in {name} is {kind!r}, supported is {PLAIN!r}")
    return parameters.get("rope_theta", otherwise)
