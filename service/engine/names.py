"""Names by which callers may call a model. One rule, for bodies and for paths:

an alias of the operator's; a bundle's `name` or `name/version`; one of these, a colon, and one of
the model's prompts; one of these and `:latest`, the tag that Ollama's clients add.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from addnorm.service.engine.bundle import Bundle
from addnorm.service.errors import StartupError

OPTIONS = {
    "prompt": "prompt_name",
    **{name: name for name in ("precision", "dimensions", "first", "keep", "max_time_ms")},
}
NUMBERS = ("dimensions", "keep", "max_time_ms")
TAG = LATEST = "latest"  # as a tag it means nothing, unless a prompt is called so
VERSION = re.compile(r"[1-9]\d{0,16}")
FORM = (
    "write NAME=MODEL, or NAME=MODEL?prompt=P&precision=int8&dimensions=256, for a reranker also"
    " first=EMBEDDER&keep=50 and max_time_ms=300"
)


class Alias(NamedTuple):
    """Another name of a model, and what requests get that do not say otherwise."""

    ref: str  # `name` or `name/version`
    prompt_name: str | None = None
    precision: str | None = None
    dimensions: int | None = None
    first: str | None = None  # a model whose vectors say which documents are reranked
    keep: int | None = None  # so many of them
    max_time_ms: int | None = None  # of reranking


def read_aliases(written: Mapping[str, str]) -> dict[str, Alias]:
    """name -> alias, of the setting's values. StartupError for an option that there is not."""
    aliases = {}
    for name, value in written.items():
        ref, _, options = value.partition("?")
        named = dict(parse_qsl(options, keep_blank_values=True))
        numbers = {option: named[option] for option in NUMBERS if option in named}
        is_wrong = not ref or any(option not in OPTIONS for option in named)
        is_wrong |= any(not number.isdecimal() for number in numbers.values())
        if is_wrong or "0" in numbers.values() or ("first" in named) != ("keep" in named):
            raise StartupError(f"ADDNORM_ALIASES has {name}={value}: {FORM}")
        given: dict[str, Any] = {**named, **{name: int(one) for name, one in numbers.items()}}
        aliases[name] = Alias(ref, **{OPTIONS[option]: one for option, one in given.items()})
    return aliases


def check_alias(name: str, alias: Alias, bundle: Bundle) -> None:
    """StartupError if the alias asks for what its bundle does not have."""
    manifest, width = bundle.manifest, bundle.width("pooled")
    for option, value, known in (
        ("prompt", alias.prompt_name, list(manifest.prompts)),
        ("precision", alias.precision, list(manifest.precisions)),
    ):
        if value is not None and value not in known:
            raise StartupError(
                f"ADDNORM_ALIASES: {name} has {option}={value}, {bundle.ref} has"
                f" {', '.join(known) or 'none'}"
            )
    if (alias.first or alias.max_time_ms) and "rerank" not in bundle.tasks:
        raise StartupError(
            f"ADDNORM_ALIASES: {name} has first or max_time_ms, and {bundle.ref} cannot rerank"
        )
    if alias.dimensions is not None and not 1 <= alias.dimensions <= width:
        raise StartupError(
            f"ADDNORM_ALIASES: {name} has dimensions={alias.dimensions}, {bundle.ref} has 1 to"
            f" {width}"
        )


def check_distinct(aliases: Mapping[str, Alias], bundle: Bundle) -> None:
    """StartupError if an alias is also a name of the bundle's own."""
    name = bundle.manifest.name
    prompted = {f"{name}:{suffix}" for suffix in (*bundle.manifest.prompts, TAG)}
    for alias in aliases:
        is_version = alias.startswith(f"{name}/") and alias.removeprefix(f"{name}/").isdecimal()
        if alias == name or is_version or alias in prompted:
            raise StartupError(
                f"ADDNORM_ALIASES: {alias} is a name of the bundle {bundle.ref} too: choose another"
            )


def read_pin(written: str) -> int | None:
    """None for `latest`. ValueError says how it is written."""
    if written == LATEST:
        return None
    if not VERSION.fullmatch(written):
        raise ValueError(f"{written[:60]!r}: write latest or VERSION")
    return int(written)


def read_pins(written: Mapping[str, str]) -> dict[str, int]:
    """name -> version, of the setting's values. StartupError for what is none."""
    try:
        pins = {name: read_pin(value) for name, value in written.items()}
    except ValueError as error:
        raise StartupError(f"ADDNORM_VERSIONS: {error}") from None
    return {name: version for name, version in pins.items() if version}
