"""A module whose parts are named by hand: our parameters by its keys, in the order that agrees.

Weights are drawn anew and small too, so that a wrong `Config` shows, eps included.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from addnorm.export.modules import asking
from addnorm.export.modules.asking import (
    Asking,
    Recognized,
    as_inputs,
    copy_module,
    drawn_anew,
    drawn_ids,
    trace_forward,
)
from addnorm.export.modules.operators.explained import first_unlisted
from addnorm.export.modules.operators.ids import Told
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.modules.operators.trace import plain_attention
from addnorm.export.sources.original import Original, as_found
from addnorm.export.sources.sources import UsageError
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer

# of the largest number, in float64: in float32 some mistakes are as small as rounding
AGREES = 1e-9
AGREES_COMPUTED = 1e-6  # where each side computes sinusoids in its own way
SIZES = (1.0, 1e-2, 1e-5)  # of drawn weights: norms then divide by the deviation, or by eps
LENGTHS = (1, 2, 7)
NAMES = {  # of a module's parameters, the first that there is
    "weight": ("weight",),
    "bias": ("bias",),
    "gamma": ("weight", "gamma", "scale", "a_2"),
    "beta": ("bias", "beta", "shift", "b_2"),
}
# of the rows of a fused matrix: three parts, heads, their dimensions
ORDERS = ("(3, h, d)", "(h, 3, d)", "(h, d, 3)")
Keys = Mapping[str, tuple[str, ...]]  # of each of our parameters, those that it joins


class MisshapenError(ValueError):
    """A matrix is of another shape than ours. The message has both."""


class Layout(NamedTuple):
    """How matrices are stored: the rows of a fused one, and whether all are [in, out]."""

    fused: str
    transposed: bool

    def __str__(self) -> str:
        return f"{self.fused}{' stored [in, out]' if self.transposed else ''}"


LAYOUTS = [Layout(fused, transposed) for transposed, fused in product((False, True), ORDERS)]


def fill_model(
    module: nn.Module,
    named: Mapping[str, str | Sequence[str]],
    config: Config | Mapping[str, Any] | None,
    reference: Callable[..., Any] | None,
) -> Recognized:
    """named: our modules, or our parameters, with `{}` for the number of a block -> the module's
    names, or its keys; several lie end to end in ours.

    UsageError for keys that do not fit, Unrecognized if no order agrees with the forward.
    """
    if not isinstance(config, Config):
        raise UsageError("weights is set: config needs a whole Config, since nothing is recognized")
    twin = module if reference else copy_module(module)
    ask = Asking(reference or twin, twin)
    keys = _all_keys(Transformer(config), named, twin)
    with as_found(ask), plain_attention():
        trace = trace_forward(
            ask, *as_inputs([config.vocab_size // 2] * min(3, config.max_positions), ask)
        )
        if step := first_unlisted(trace):
            raise Unrecognized(f"{step.op}{step.where} is an operator of no part that is known")
        told = Told(trace, config.vocab_size)
        layout, near = _layout(config, twin, keys, ask, {*told.ids})
        with drawn_anew(twin):
            drawn = _model(config, keys, twin.state_dict(), layout)
            pad = asking.pad_of(drawn, ask, "mean", told)
            asking.refuse_unlike(drawn, ask, "mean", pad)
    model = _model(config, keys, twin.state_dict(), layout)
    asked = Asking(reference or module, module)
    lines = [f"  by hand: {len(keys)} parameters; matrices {layout} (trial: {near})"]
    return Recognized(model, asked, lines, pad, "mean")


def _all_keys(
    model: Transformer, named: Mapping[str, str | Sequence[str]], module: nn.Module
) -> Keys:
    """Without biases that the module has not: they are zeros."""
    stored, parameters = module.state_dict(), dict(module.named_parameters())
    found = {
        name: None if _is_computed(name, model) else _keys(name, named, stored)
        for name in model.state_dict()
    }
    keys = {name: parts for name, parts in found.items() if parts is not None}
    missing = [
        name for name, parts in found.items()
        if parts is None and not name.endswith((".bias", ".beta")) and not _is_computed(name, model)
    ]  # fmt: skip
    missing += [key for parts in keys.values() for key in parts if key not in stored]
    used = {stored[key].data_ptr() for parts in keys.values() for key in parts if key in stored}
    surplus = [key for key in parameters if stored[key].data_ptr() not in used]
    listed = {"missing": missing, "unexpected": surplus}
    if any(listed.values()):
        words = "; ".join(f"{what}: {', '.join(x)}" for what, x in listed.items() if x)
        raise UsageError(f"weights do not fit: {words}")
    return keys


def _is_computed(name: str, model: Transformer) -> bool:
    return name == "positions.weight" and model.config.positions.added == "sinusoidal"


def _keys(
    name: str, named: Mapping[str, str | Sequence[str]], stored: Mapping[str, Tensor]
) -> tuple[str, ...] | None:
    """Keys of the caller's weights for one of our parameters."""
    parts = name.split(".")
    number = parts[1] if parts[0] == "blocks" else ""
    pattern = ".".join(["blocks", "{}", *parts[2:]]) if number else name
    if pattern in named:
        return tuple(key.format(number) for key in _as_names(named[pattern]))
    module, _, own = pattern.rpartition(".")
    if module not in named:
        return None
    found = [key.format(number) for key in _as_names(named[module])]
    for ending in NAMES[own]:
        if any(f"{key}.{ending}" in stored for key in found):
            return tuple(f"{key}.{ending}" for key in found)
    return None if own in ("bias", "beta") else tuple(f"{key}.{NAMES[own][0]}" for key in found)


def _as_names(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def _layout(
    config: Config, module: nn.Module, keys: Keys, ask: Asking, pads: set[int]
) -> tuple[Layout, str]:
    """The only one that agrees with the forward, and how near the others come. pads: ids that the
    module takes for such."""
    tried: dict[Layout, float] = {}
    misshapen: MisshapenError | None = None
    is_fused = any(len(keys[name]) == 1 for name in keys if name.endswith("qkv.weight"))
    for layout in LAYOUTS:
        if not is_fused and layout.fused != ORDERS[0]:
            continue  # the order of a fused matrix, which there is not
        try:
            tried[layout] = max(
                _difference(config, module, keys, ask, pads, layout, size) for size in SIZES
            )
        except MisshapenError as raised:
            misshapen = misshapen or raised
    if not tried:
        raise UsageError(f"weights do not fit: misshaped: {misshapen}")
    near = sorted(tried.items(), key=lambda item: item[1])
    limit = AGREES_COMPUTED if config.positions.added == "sinusoidal" else AGREES
    agreeing = [layout for layout, difference in near if difference <= limit]
    shown = ", ".join(f"{layout} {difference:.1g}" for layout, difference in near[:3])
    if len(agreeing) != 1:
        raise Unrecognized(
            f"with these weights and this Config {len(agreeing)} of {len(tried)} orders agree with"
            f" the module's forward; differences, as shares of the largest number: {shown}."
            " Compare its activation, n_heads, block, causal, eps, norm, embedding_scale and picks"
        )
    return agreeing[0], shown


def _difference(
    config: Config,
    module: nn.Module,
    keys: Keys,
    ask: Asking,
    pads: set[int],
    layout: Layout,
    size: float,
) -> float:
    """The largest on weights of this size, as a share of the largest number."""
    gammas = {key for name, parts in keys.items() if name.endswith("gamma") for key in parts}
    with drawn_anew(module, size, gammas, torch.float64):
        model = _model(config, keys, module.state_dict(), layout)
        pad = min(pads, default=None)
        original = Original(ask, config, pad=pad, dtype=torch.float64)
        worst = 0.0
        for length in LENGTHS:
            length = min(length, config.max_positions)
            ids = drawn_ids(length, config.vocab_size, pads, seed=length)
            expected, found = original.rows(ids, None), original.rows_of_model(model, ids, None)
            difference = abs(found - expected).max() / max(abs(expected).max(), 1e-30)
            worst = max(worst, float(difference) if difference == difference else torch.inf)
    return worst


def _model(config: Config, keys: Keys, stored: Mapping[str, Tensor], layout: Layout) -> Transformer:
    """MisshapenError for a matrix of another shape."""
    model = Transformer(config, "padded").to(next(iter(stored.values())).dtype)
    found = {
        name: _parameter(name, tensor, [stored[key] for key in keys[name]], layout, config)
        if name in keys else tensor if _is_computed(name, model) else torch.zeros_like(tensor)
        for name, tensor in model.state_dict().items()
    }  # fmt: skip
    model.load_state_dict(found)
    return model.eval()


def _parameter(
    name: str, ours: Tensor, parts: list[Tensor], layout: Layout, config: Config
) -> Tensor:
    is_matrix = name.endswith(".weight") and name not in ("tokens.weight", "types.weight")
    if name == "positions.weight":  # buffers have axes more, and rows more
        parts = [part.reshape(-1, part.shape[-1])[: config.max_positions] for part in parts]
    elif is_matrix and layout.transposed and not name.startswith("heads."):
        parts = [part.T for part in parts]
    joined = torch.cat(parts)
    if joined.shape != ours.shape:
        raise MisshapenError(f"{name} is {list(joined.shape)}, {list(ours.shape)} expected")
    if ".qkv." not in name or len(parts) > 1:
        return joined
    # rows [3 * d, ..] in any order -> queries, keys, values, head by head
    sizes = {"3": 3, "h": config.n_heads, "d": len(joined) // 3 // config.n_heads}
    names = layout.fused.strip("()").split(", ")
    rows = joined.reshape(*(sizes[name] for name in names), *joined.shape[1:])
    axes = [names.index(name) for name in ("3", "h", "d")]
    return rows.permute(*axes, *range(3, rows.dim())).flatten(0, 2)
