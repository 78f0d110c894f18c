"""A module whose parts are named by hand: our parameters by its keys.

Weights are drawn anew and small too, so that a wrong `Config` shows, eps included.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.export.modules import asking
from addnorm.export.modules.asking import (
    Asking,
    Recognized,
    as_inputs,
    copy_module,
    drawn_anew,
    fill_ids,
    trace_forward,
)
from addnorm.export.modules.operators.explained import refuse_unlisted
from addnorm.export.modules.operators.ids import Told
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.modules.operators.trace import plain_attention
from addnorm.export.sources.original import Original, as_found
from addnorm.export.sources.sources import UsageError
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer

# of the largest number, in float64: in float32 some mistakes are as small as rounding
AGREES = 1e-9
SIZES = (1.0, 1e-2, 1e-5)  # of drawn weights: norms then divide by the deviation, or by eps
LENGTHS = (1, 2, 7)
NAMES = {  # of a module's parameters, the first that there is
    "weight": ("weight",),
    "bias": ("bias",),
    "gamma": ("weight", "gamma", "scale", "a_2"),
    "beta": ("bias", "beta", "shift", "b_2"),
}
Keys = Mapping[str, tuple[str, ...]]  # of each of our parameters, those that it joins


def fill_model(
    module: nn.Module,
    named: Mapping[str, str | Sequence[str]],
    config: Config | Mapping[str, Any] | None,
    reference: Callable[..., Any] | None,
) -> Recognized:
    """named: our modules, or our parameters, with `{}` for the number of a block -> the module's
    names, or its keys; several lie end to end in ours.

    UsageError for keys that do not fit, Unrecognized if the forward does not agree.
    """
    if not isinstance(config, Config):
        raise UsageError("weights is set: config needs a whole Config, since nothing is recognized")
    if config.positions.added == "sinusoidal":
        raise UsageError("positions are named, as tokens are: leave Config's positions as learned")
    twin = module if reference else copy_module(module)
    ask = Asking(reference or twin, twin)
    keys = _all_keys(Transformer(config), named, twin)
    with as_found(ask), plain_attention():
        trace = trace_forward(
            ask, *as_inputs([config.vocab_size // 2] * min(3, config.max_positions), ask)
        )
        # all of them: what is written in place hides which lead to the answer
        refuse_unlisted(step for step in trace.steps if step.rows)
        told = Told(trace, config.vocab_size)
        worst = max(_difference(config, twin, keys, ask, {*told.ids}, size) for size in SIZES)
        if not worst <= AGREES:
            raise Unrecognized(
                "with these weights and this Config the module's forward differs by"
                f" {worst:.1g} of the largest number. Compare its activation, n_heads, block,"
                " causal, eps, norm, embedding_scale and picks, and the order of a fused matrix:"
                " queries, keys, values, each head by head"
            )
        with drawn_anew(twin):
            drawn = _model(config, keys, twin.state_dict())
            pad = asking.pad_of(drawn, ask, "mean", told)
            asking.refuse_unlike(drawn, ask, "mean", pad)
    model = _model(config, keys, twin.state_dict())
    asked = Asking(reference or module, module)
    lines = [f"  by hand: {len(keys)} parameters, within {worst:.1g} of the largest number"]
    return Recognized(model, asked, lines, pad, "mean")


def _all_keys(
    model: Transformer, named: Mapping[str, str | Sequence[str]], module: nn.Module
) -> Keys:
    """Without biases that the module has not: they are zeros."""
    stored, parameters = module.state_dict(), dict(module.named_parameters())
    found = {name: _keys(name, named, stored) for name in model.state_dict()}
    keys = {name: parts for name, parts in found.items() if parts is not None}
    missing = [
        name for name, parts in found.items()
        if parts is None and not name.endswith((".bias", ".beta"))
    ]  # fmt: skip
    missing += [key for parts in keys.values() for key in parts if key not in stored]
    used = {stored[key].data_ptr() for parts in keys.values() for key in parts if key in stored}
    surplus = [key for key in parameters if stored[key].data_ptr() not in used]
    listed = {"missing": missing, "unexpected": surplus}
    if any(listed.values()):
        words = "; ".join(f"{what}: {', '.join(x)}" for what, x in listed.items() if x)
        raise UsageError(f"weights do not fit: {words}")
    return keys


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


def _difference(
    config: Config, module: nn.Module, keys: Keys, ask: Asking, pads: set[int], size: float
) -> float:
    """The largest on weights of this size, as a share of the largest number. pads: ids that the
    module takes for such."""
    gammas = {key for name, parts in keys.items() if name.endswith("gamma") for key in parts}
    with drawn_anew(module, size, gammas, torch.float64):
        model = _model(config, keys, module.state_dict())
        original = Original(ask, config, pad=min(pads, default=None), dtype=torch.float64)
        worst = 0.0
        for length in LENGTHS:
            ids = fill_ids(min(length, config.max_positions), config.vocab_size, pads)
            expected, found = original.rows(ids, None), original.rows_of_model(model, ids, None)
            difference = abs(found - expected).max() / max(abs(expected).max(), 1e-30)
            worst = max(worst, float(difference) if difference == difference else torch.inf)
    return worst


def _model(config: Config, keys: Keys, stored: Mapping[str, Tensor]) -> Transformer:
    """UsageError for a matrix of another shape."""
    model = Transformer(config, "padded").to(next(iter(stored.values())).dtype)
    found = dict[str, Tensor]()
    for name, ours in model.state_dict().items():
        parts = [stored[key] for key in keys.get(name, ())]
        if name == "positions.weight":  # buffers have axes more, and rows more
            parts = [part.reshape(-1, part.shape[-1])[: config.max_positions] for part in parts]
        found[name] = torch.cat(parts) if parts else torch.zeros_like(ours)
        if found[name].shape != ours.shape:
            raise UsageError(
                f"weights do not fit: misshaped: {name} is {list(found[name].shape)},"
                f" {list(ours.shape)} expected"
            )
    model.load_state_dict(found)
    return model.eval()
