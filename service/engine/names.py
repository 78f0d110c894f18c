"""The names of models in requests. One rule, for bodies and for paths:

an alias of the operator's; a bundle's `name` or `name/version`; one of these, a colon, and one of
the model's prompts; one of these and `:latest`, the tag that Ollama's clients add.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.manifest import WindowRule
from addnorm.service.errors import StartupError

OPTIONS = {
    "prompt": "prompt_name",
    **{name: name for name in ("precision", "dimensions", "first", "keep", "max_time_ms")},
}
NUMBERS = ("dimensions", "keep", "max_time_ms")
OF_WINDOWS = ("windows", "take", "label")  # parts of a `WindowRule`; windows is its overlap
TAG = LATEST = "latest"  # as a tag it means nothing, unless a prompt is called so
VERSION = re.compile(r"[1-9]\d{0,16}")
FORM = (
    "write NAME=MODEL, or NAME=MODEL?prompt=P&precision=int8&dimensions=256, for a reranker also"
    " first=EMBEDDER&keep=50 and max_time_ms=300, for long texts windows=64, and with it take=max"
    " or take=mean, and label=L"
)


class Alias(NamedTuple):
    """Another name of a model, with defaults for requests that use it."""

    ref: str  # `name` or `name/version`
    prompt_name: str | None = None
    precision: str | None = None
    dimensions: int | None = None
    first: str | None = None  # a model whose vectors say which documents are reranked
    keep: int | None = None  # so many of them
    max_time_ms: int | None = None  # of reranking
    windows: WindowRule | None = None  # of texts that are longer than the model takes


def read_aliases(texts: Mapping[str, str]) -> dict[str, Alias]:
    """name -> alias, of the setting's values. StartupError for an option that does not exist."""
    aliases = {}
    for name, value in texts.items():
        ref, _, options = value.partition("?")
        query = dict(parse_qsl(options, keep_blank_values=True))
        rule_parts = {option: query.pop(option) for option in OF_WINDOWS if option in query}
        numbers = {option: query[option] for option in NUMBERS if option in query}
        is_wrong = not ref or any(option not in OPTIONS for option in query)
        is_wrong |= any(not number.isdecimal() for number in numbers.values())
        if is_wrong or "0" in numbers.values() or ("first" in query) != ("keep" in query):
            raise StartupError(f"ADDNORM_ALIASES has {name}={value}: {FORM}")
        rule = None
        if rule_parts:
            overlap = rule_parts.pop("windows", "")
            try:
                rule = WindowRule.model_validate({"overlap": int(overlap), **rule_parts})
            except ValueError:  # of int, or of pydantic
                raise StartupError(f"ADDNORM_ALIASES has {name}={value}: {FORM}") from None
        values: dict[str, Any] = {**query, **{name: int(value) for name, value in numbers.items()}}
        values = {OPTIONS[option]: value for option, value in values.items()}
        aliases[name] = Alias(ref, **values, windows=rule)
    return aliases


def check_alias(name: str, alias: Alias, bundle: Bundle) -> None:
    """StartupError if the alias asks for something that its bundle does not have."""
    manifest, width = bundle.manifest, bundle.width("pooled")
    for option, value, choices in (
        ("prompt", alias.prompt_name, list(manifest.prompts)),
        ("precision", alias.precision, list(manifest.precisions)),
    ):
        if value is not None and value not in choices:
            raise StartupError(
                f"ADDNORM_ALIASES: {name} has {option}={value}, {bundle.ref} has"
                f" {', '.join(choices) or 'none'}"
            )
    if (alias.first or alias.max_time_ms) and "rerank" not in bundle.tasks:
        raise StartupError(
            f"ADDNORM_ALIASES: {name} has first or max_time_ms, but {bundle.ref} cannot rerank"
        )
    if alias.windows and not {"classify", "tag", "rerank"}.intersection(bundle.tasks):
        raise StartupError(
            f"ADDNORM_ALIASES: {name} has windows, but {bundle.ref} has no labels and cannot rerank"
        )
    if alias.windows and alias.windows.label not in (None, *(manifest.labels or ())):
        raise StartupError(
            f"ADDNORM_ALIASES: {name} has label={alias.windows.label}, the labels of {bundle.ref}"
            f" are {', '.join(manifest.labels or ()) or 'none'}"
        )
    if alias.dimensions is not None and not 1 <= alias.dimensions <= width:
        raise StartupError(
            f"ADDNORM_ALIASES: {name} has dimensions={alias.dimensions}, {bundle.ref} has 1 to"
            f" {width}"
        )


def check_distinct(aliases: Mapping[str, Alias], bundle: Bundle) -> None:
    """StartupError if an alias is also a name of the bundle's own."""
    name = bundle.manifest.name
    prompt_names = {f"{name}:{suffix}" for suffix in (*bundle.manifest.prompts, TAG)}
    for alias in aliases:
        is_version = alias.startswith(f"{name}/") and alias.removeprefix(f"{name}/").isdecimal()
        if alias == name or is_version or alias in prompt_names:
            raise StartupError(
                f"ADDNORM_ALIASES: {alias} is also a name of the bundle {bundle.ref}: choose"
                " another"
            )


def read_pin(text: str) -> int | None:
    """None for `latest`. The message of ValueError says how to write it."""
    if text == LATEST:
        return None
    if not VERSION.fullmatch(text):
        raise ValueError(f"{text[:60]!r}: write latest or VERSION")
    return int(text)


def read_pins(texts: Mapping[str, str]) -> dict[str, int]:
    """name -> version, of the setting's values. StartupError for a value that is no version."""
    try:
        pins = {name: read_pin(value) for name, value in texts.items()}
    except ValueError as error:
        raise StartupError(f"ADDNORM_VERSIONS: {error}") from None
    return {name: version for name, version in pins.items() if version}
