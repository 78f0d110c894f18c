"""Common parts of families of rotated positions: the angles, in `rope_parameters` of config.json or
in fields of earlier releases, and names of weights. ValueError for what cannot
be computed."""

from collections.abc import Mapping, Sequence
from typing import Any

from addnorm.model.checkpoints.family import Modules, Raw
from addnorm.model.config import Bands, Positions, Rotary

PLAIN = "default"  # the paper's own angles
# keys of transformers' own modules, in families whose weights came with other code
IN_MEMORY: Modules = {
    "embedding_norm": "embeddings.LayerNorm",
    "blocks.{}.attention.qkv": tuple(f"layers.{{}}.self_attn.{part}_proj" for part in "qkv"),
    "blocks.{}.attention.out": "layers.{}.self_attn.o_proj",
    "blocks.{}.norm1": "layers.{}.post_attention_layernorm",
    "blocks.{}.ffn.up": ("layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"),
    "blocks.{}.ffn.down": "layers.{}.mlp.down_proj",
    "blocks.{}.norm2": "layers.{}.post_mlp_layernorm",
}
READ = (  # fields of config.json
    "rope_parameters", "rope_scaling", "rope_theta", "head_dim", "partial_rotary_factor", "mixed_b",
)  # fmt: skip
TRAINED = "original_max_position_embeddings"
FULL, LOCAL = "full_attention", "sliding_attention"  # kinds of layers
FORMER = {"attention": FULL}  # their names of before


def with_windows(raw: Raw) -> dict[str, Any]:
    """Fields of our Config, where some layers see a window of keys and have angles of their own."""
    kinds = _kinds(raw)
    local_layers = tuple(index for index, kind in enumerate(kinds) if kind == LOCAL)
    scaling = _object("rope_scaling", raw.get("rope_scaling"))  # goes into both kinds
    theta_of("rope_scaling", scaling, 0.0)
    nested = _object("rope_parameters", raw["rope_parameters"])
    if unknown := [name for name in nested if name not in (FULL, LOCAL)]:
        raise ValueError(f"rope_parameters has {unknown[0]!r}, supported are {FULL!r}, {LOCAL!r}")
    full, local = (
        theta_of(field_name, {**_object(field_name, nested.get(kind)), **scaling}, otherwise)
        for kind, otherwise in ((FULL, raw["global_rope_theta"]), (LOCAL, raw["local_rope_theta"]))
        for field_name in [f"rope_parameters.{kind}"]
    )
    rotary = Rotary(full, None if local == full or not local_layers else local)
    fields = {"positions": Positions("none", rotary), "window": 0, "local_layers": local_layers}
    if not local_layers:
        return fields
    # the largest distance of a key that is seen; `sliding_window` wins where both are there
    name, least = "local_attention", 2
    if raw.get("sliding_window") is not None:
        name, least = "sliding_window", 1
    size = raw[name]
    if type(size) is not int or size < least:
        raise ValueError(f"{name} is {size!r}: a whole number of {least} or more")
    return {**fields, "window": size // least}


def _kinds(raw: Raw) -> Sequence[str]:
    """The kind of each layer."""
    num_layers, interval = raw["num_hidden_layers"], raw["global_attn_every_n_layers"]
    kinds: Sequence[str] | None = raw["layer_types"]
    if kinds is None:
        if type(interval) is not int or interval < 1:
            raise ValueError(
                f"global_attn_every_n_layers is {interval!r}: a whole number of 1 or more"
            )
        return [LOCAL if layer % interval else FULL for layer in range(num_layers)]
    kinds = [FORMER.get(kind, kind) for kind in kinds]
    if len(kinds) != num_layers or not {*kinds} <= {FULL, LOCAL}:
        raise ValueError(
            f"layer_types is {raw['layer_types']!r}: {FULL!r} or {LOCAL!r} for each of"
            f" num_hidden_layers {num_layers}"
        )
    return kinds


def of_all_layers(raw: Raw, more_types: Sequence[str] = ()) -> Positions:
    """Positions, if all layers have the same angles. The base is `rope_theta` if no other is named.

    more_types: "dynamic", whose angles are the paper's up to the trained length; "ntk" (NTK-aware
    scaling with a fixed factor); "llama3", see Bands.
    """
    kind, factor = type_of(raw), _parameters(raw).get("factor", 1.0)
    _refuse_other_types("rope_parameters", kind, (PLAIN, "linear", *more_types))
    dims = raw["hidden_size"] // raw["num_attention_heads"]
    theta = _parameters(raw).get("rope_theta", raw["rope_theta"])
    for name, expected in (("head_dim", dims), ("partial_rotary_factor", 1.0), ("mixed_b", None)):
        if (value := _parameters(raw).get(name, raw.get(name))) not in (None, expected):
            raise ValueError(f"{name} is {value!r}, supported is {expected!r}")
    if kind == "linear":
        return Positions("none", Rotary(theta, scale=factor))
    if kind == "ntk":
        return Positions("none", Rotary(theta * factor, scale=factor ** (2 / dims)))
    if kind == "llama3":
        return Positions("none", Rotary(theta, bands=_bands(raw)))
    return Positions("none", Rotary(theta))


def _bands(raw: Raw) -> Bands:
    parameters = _parameters(raw)
    for name in ("factor", "low_freq_factor", "high_freq_factor"):
        if name not in parameters:
            raise ValueError(f"rope_parameters has no {name}, which the type 'llama3' needs")
    trained = parameters.get(TRAINED, raw["max_position_embeddings"])
    return Bands(
        parameters["factor"],
        low=parameters["low_freq_factor"],
        high=parameters["high_freq_factor"],
        trained=raw.get(TRAINED, trained),  # outside it wins
    )


def type_of(raw: Raw) -> str:
    """The type of the angles that all layers have."""
    rope_type: str = _parameters(raw).get("rope_type", _parameters(raw).get("type", PLAIN))
    return rope_type


def _parameters(raw: Raw) -> Mapping[str, Any]:
    scaling, parameters = (
        _object(name, raw.get(name)) for name in ("rope_scaling", "rope_parameters")
    )
    return scaling or parameters


def _object(name: str, value: Any) -> Mapping[str, Any]:
    """name: of the field. An absent one has no parameters."""
    parameters = {} if value is None else value
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{name} is {value!r}: an object is needed")
    return parameters


def theta_of(name: str, parameters: Mapping[str, Any] | None, otherwise: float | None) -> Any:
    """The base of the angles. name: of the field. otherwise: where it is not there."""
    parameters = _object(name, parameters)
    kind = parameters.get("rope_type", parameters.get("type", PLAIN))
    _refuse_other_types(name, kind, (PLAIN,))
    return parameters.get("rope_theta", otherwise)


def _refuse_other_types(name: str, kind: Any, types: Sequence[str]) -> None:
    if kind not in types:
        choices = " or ".join(map(repr, types))
        raise ValueError(f"rope_type in {name} is {kind!r}, supported is {choices}")
