"""JSON bodies into models, in bounded time, and what does not fit in our words. Knows no HTTP."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, get_args

import orjson
from pydantic import BaseModel, ValidationError

from service.errors import InvalidInput, UnknownField
from service.settings import Settings

MAX_KEYS = 1000  # of all objects of a body

Body = TypeVar("Body", bound=BaseModel)


def validated(model: type[Body], body: bytes, settings: Settings, reserved: Sequence[str] = ()) -> Body:
    """JSON -> the model. InvalidInput says in our words what does not fit."""
    _check_counts(body, settings)
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as error:
        raise _validation_error(error, model, reserved) from None
    _check_each_key_once(body, parsed)
    return parsed


def _check_each_key_once(body: bytes, parsed: BaseModel) -> None:
    """Of two values of one key the parser takes the last, others the first: what was checked elsewhere is not what is done."""
    num_keys = _num_keys(parsed)
    if body.count(b":") == num_keys:
        return  # as nearly always
    if (num_sent := _outside_strings(body).count(b":")) > num_keys:
        raise InvalidInput(f"the body has {num_sent} keys, of which {num_keys} differ: send each key once")


def _num_keys(value: Any) -> int:
    """Of all objects in it. Lists of numbers or texts are not walked."""
    if isinstance(value, BaseModel):
        return sum(1 + _num_keys(getattr(value, name)) for name in value.model_fields_set)
    if isinstance(value, dict):
        return sum(1 + _num_keys(inner) for inner in value.values())
    if isinstance(value, list) and value and isinstance(value[0], BaseModel | dict | list):
        return sum(map(_num_keys, value))
    return 0


def _outside_strings(body: bytes) -> bytes:
    """The body without what its strings hold, which may be any character."""
    quotes_left = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(quotes_left.split(b'"')[::2])


def _check_counts(body: bytes, settings: Settings) -> None:
    """Some bodies that fit the limit take seconds to parse, and hold up every other request. They are known by counting."""
    num_lists = 2 * settings.max_sequences + 100  # of ids and masks
    most = {
        b":": ("keys", MAX_KEYS),
        b"{": ("objects", MAX_KEYS),
        b"[": ("lists", num_lists),
        b",": ("values", 2 * settings.max_cells + num_lists + MAX_KEYS),
    }
    if all(body.count(character) <= limit for character, (_, limit) in most.items()):
        return
    quotes_left = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # around strings, which may hold any character
    num_strings = settings.max_sequences + 2 * MAX_KEYS
    if quotes_left.count(b'"') > 2 * num_strings:
        raise InvalidInput(f"the body has more than {num_strings} strings, the limit")
    outside = b"".join(quotes_left.split(b'"')[::2])
    for character, (what, limit) in most.items():
        if (number := outside.count(character)) > limit:
            raise InvalidInput(f"the body has {number} {what}, the limit is {limit}")


def _validation_error(error: ValidationError, model: type[BaseModel], reserved: Sequence[str] = ()) -> InvalidInput:
    """pydantic's first complaint in our words: field, what is wrong, value."""
    first = error.errors(include_url=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")[:200]
    if not field:
        return InvalidInput(f"the body is not a JSON object: {first['msg']}")
    param = field.split("[")[0]
    if field in reserved:
        return InvalidInput(f"{field} is reserved for a later version: leave it out", param=param)
    if first["type"] == "extra_forbidden":
        return UnknownField(f"{field} is unknown; known are {', '.join(_known(model, first['loc']))}", param=param)
    if first["type"] == "missing":
        return InvalidInput(f"{field} is missing", param=param)
    return InvalidInput(f"{field}: {first['msg']}, got {shown(first['input'])}", param=param)


def _known(model: type[BaseModel], loc: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that stand where `loc` ends."""
    for part in loc[:-1]:
        inner = model.model_fields[part].annotation if isinstance(part, str) else None
        nested = [kind for kind in (*get_args(inner), inner) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        model = nested[0] if nested else model
    return model.model_fields


def shown(value: Any) -> str:
    """A value as its sender wrote it, cut short."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested or integers over 64 bits
        text = "a value too deep or too large to show"
    return text if len(text) <= 60 else f"{text[:60]}..."
