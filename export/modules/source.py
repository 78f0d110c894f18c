"""A module that somebody wrote, as the source of a bundle: recognized, or filled by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from addnorm.export.modules import by_hand
from addnorm.export.modules.operators.parts import Unrecognized
from addnorm.export.modules.recognize import recognize
from addnorm.export.sources import sources
from addnorm.export.sources.original import OriginalError, digest
from addnorm.export.sources.sources import Source, UsageError
from addnorm.model.config import Config

WAYS_ON = (
    "Ways on: reference=lambda ids: ... says how it is called, and which answer is meant;"
    " weights={...} and config=Config(...) name its parts by hand; see docs/own-models.md"
)
ANY = ("max_positions", "positions", "layer_groups")  # compared in another way, or without effect


def of_module(
    module: nn.Module,
    *,
    reference: Callable[..., Any] | None,
    config: Config | Mapping[str, Any] | None,
    weights: Mapping[str, str | Sequence[str]] | None,
    pooling: str | None,
    batch_first: bool | None = None,
    **options: Any,
) -> Source:
    """config: fields that must be as found; max_positions where the module sets no limit. weights:
    see `by_hand`. batch_first: see `recognize`. options: of `sources.module`.

    UsageError if it is not recognized, in words.
    """
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    name = type(module).__qualname__
    stated: dict[str, Any] = {}
    if isinstance(config, Config):
        stated = {field: getattr(config, field) for field in Config.__dataclass_fields__}
    elif config is not None:
        stated = dict(config)
    if unknown := sorted(stated.keys() - Config.__dataclass_fields__.keys()):
        raise UsageError(f"config names {', '.join(unknown)}: a Config has no such field")
    try:
        if weights is not None:
            found = by_hand.fill_model(module, weights, config, reference)
        else:
            found = recognize(module, reference, stated.get("max_positions"), batch_first)
            _refuse_contradictions(stated, found.model.config)
    except (Unrecognized, OriginalError) as error:
        raise UsageError(f"{name}: {error}. {WAYS_ON}") from error
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        first = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UsageError(f"{name} cannot be followed: {first}. {WAYS_ON}") from error
    print(f"recognized {name}:", *found.lines, sep="\n", flush=True)
    source = sources.module(
        found.model, reference=found.ask, pad=found.pad, pooling=pooling or found.pooling, **options
    )
    kept = {key: source.origin[key] for key in ("max_length",) if key in source.origin}
    origin = {"module": name, "sha256": digest(module), **kept}
    return replace(source, name=name, origin=origin)


def _refuse_contradictions(stated: Mapping[str, Any], found: Config) -> None:
    """Unrecognized for a field that the module contradicts."""
    wrong = [
        f"{field} is {value!r}, the module has {getattr(found, field)!r}"
        for field, value in stated.items()
        if field not in ANY and value != getattr(found, field)
    ]
    asked = stated.get("max_positions", found.max_positions)
    if asked > found.max_positions:
        wrong.append(f"max_positions is {asked}, the module takes {found.max_positions}")
    if wrong:
        raise Unrecognized(f"config is not the module's: {'; '.join(wrong)}")
