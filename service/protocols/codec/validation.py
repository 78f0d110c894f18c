"""JSON bodies into models, in bounded time, and what does not fit in our words. Knows no HTTP."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar, get_args

import orjson
from pydantic import BaseModel, ValidationError

from addnorm.service.errors import BodyTooLarge, InvalidInput, UnknownField
from addnorm.service.inference.outputs.output import Strict as Strict  # the base of bodies
from addnorm.service.scheduling.cooperative import Steps
from addnorm.service.settings import Settings

NO_MEMORY = "Not enough memory"  # in orjson's words
MAX_KEYS = 1000  # of all objects of a body, beside those of documents
MAX_FIELDS = 4  # of a document, on average
MAX_DEPTH = 20  # bodies have 5
CONTAINERS = (dict, list)
# what pydantic puts into a path where a value may be of several kinds
KIND = re.compile(r"^(str|int|float|bool)$|[A-Z\[]")
# of pydantic's complaints those that speak of Python
WORDS = {
    "model_type": "Input should be an object",
    "model_attributes_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "none_required": "Input should be left out",
    "too_short": "Input should have {min_length} items or more",
    "too_long": "Input should have {max_length} items or fewer",
    "string_too_long": "Input should have {max_length} characters or fewer",
}
BLOCK_BYTES = 1024 * 1024
# Whatever so few bytes hold is parsed in 0.1 ms. Larger: small bodies of many keys hold up others.
# Smaller: requests of a few sequences are counted, which takes three times their parsing.
UNCOUNTED_BYTES = 8 * 1024

Body = TypeVar("Body", bound=BaseModel)
Value = TypeVar("Value")


def validated(model: type[Body], body: bytes, settings: Settings) -> Steps[Body]:
    """JSON -> the model. InvalidInput says in our words what does not fit."""
    value = yield from parse(body, settings)
    return fit(model, value)


def parse(body: bytes, settings: Settings) -> Steps[dict[str, Any]]:
    """JSON -> its object, which may hold any fields. Those that are null are left out.

    Each step holds the interpreter's lock to its end, so the size of each is checked before it.
    """
    if len(body) > settings.max_json_bytes:
        raise BodyTooLarge(
            f"the body has {len(body)} bytes of JSON, the limit is {settings.max_json_bytes}: send"
            " tensors as bytes, or less at once"
        )
    if len(body) > UNCOUNTED_BYTES:
        yield from _check_counts(body, settings)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if NO_MEMORY in str(error):
            raise MemoryError(NO_MEMORY) from None
        raise InvalidInput(f"the body is not a JSON object: {error}"[:200]) from None
    yield
    if not isinstance(value, dict):
        raise InvalidInput(f"the body is not a JSON object: got {shown(value)}")
    _check_each_key_once(body, value, settings)
    yield
    if b"null" in body:
        _drop_nulls(value)
        yield
    return value


def fit(model: type[Body], value: dict[str, Any]) -> Body:
    """InvalidInput names the field that does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _validation_error(error, model) from None


def agreed(**sent: Value | None) -> Value | None:
    """What fields of one meaning say, each None if it was not sent. InvalidInput if two differ."""
    said = {field: value for field, value in sent.items() if value is not None}
    (first, value), *others = said.items() or [("", None)]
    for field, other in others:
        if other != value:
            raise InvalidInput(
                f"{field} and {first} mean the same and say different things: send one of them",
                param=field,
            )
    return value


def _check_each_key_once(body: bytes, value: Any, settings: Settings) -> None:
    """Where a key is sent twice this parser takes the last value, and others the first.

    Then what a proxy has checked would not be what is computed.
    """
    is_flat = body.count(b"{") == 1 and body.count(b"[") < MAX_DEPTH
    num_keys = len(value) if is_flat else _num_keys(value)
    if body.count(b":") == num_keys:
        return  # as nearly always
    num_sent = sum(outside.count(b":") for outside in outside_strings(body, _max_strings(settings)))
    if num_sent > num_keys:
        raise InvalidInput(
            f"the body has {num_sent} keys, of which {num_keys} differ: send each key once"
        )


def _drop_nulls(value: dict[str, Any] | list[Any]) -> None:
    """A field that is null is absent, known or not: clients send null for what was not set.

    The items of a list stay: a null among them is a value. No deeper than `_num_keys` has looked.
    """
    inside: Iterable[Any] = ()
    if isinstance(value, dict):
        for name in [name for name, inner in value.items() if inner is None]:
            del value[name]
        inside = value.values()
    elif value and type(value[0]) in (str, *CONTAINERS):
        inside = value
    for inner in inside:
        if type(inner) in CONTAINERS:
            _drop_nulls(inner)


def _num_keys(value: Any, depth: int = 1) -> int:
    """The number of keys of all objects. InvalidInput if nested too deep."""
    if depth > MAX_DEPTH:
        raise InvalidInput(f"the body is nested more than {MAX_DEPTH} deep, the limit")
    if type(value) is dict:
        return len(value) + sum(
            _num_keys(inner, depth + 1) for inner in value.values() if type(inner) in CONTAINERS
        )
    if not set(map(type, value)).isdisjoint(CONTAINERS):  # quick where all are numbers
        inside = (inner for inner in value if type(inner) in CONTAINERS)
        return sum(_num_keys(inner, depth + 1) for inner in inside)
    return 0


def _max_lists(settings: Settings) -> int:
    return 3 * settings.max_sequences + 100  # of ids, masks and types


def max_values(settings: Settings) -> int:
    """Of a request: ids, masks and types of its tokens, and what is beside them."""
    return 3 * settings.max_padded_tokens + _max_lists(settings) + MAX_KEYS


def _max_strings(settings: Settings) -> int:
    return 2 * _max_keys(settings)  # each key with a text


def _max_keys(settings: Settings) -> int:
    return MAX_KEYS + MAX_FIELDS * settings.max_sequences


def _check_counts(body: bytes, settings: Settings) -> Steps[None]:
    """Rejects bodies that are within their size, but take long to parse and so hold up others."""
    num_lists = _max_lists(settings)
    num_keys = _max_keys(settings)
    most = {
        b":": ("keys", num_keys),
        b"{": ("objects", num_keys),
        b"[": ("lists", num_lists),
        b",": ("values", max_values(settings)),
    }
    max_strings = _max_strings(settings)
    for character, limit in (
        *((character, limit) for character, (_, limit) in most.items()),
        (b'"', 2 * max_strings),
    ):
        if body.count(character) > limit:
            break
        yield
    else:
        return
    numbers = dict.fromkeys(most, 0)
    for outside in outside_strings(body, max_strings):
        for character, (what, limit) in most.items():
            numbers[character] += outside.count(character)
            if numbers[character] > limit:
                raise InvalidInput(f"the body has more than {limit} {what}, the limit")
        yield


def outside_strings(body: bytes, max_strings: int) -> Iterator[bytes]:
    """What is not in strings, which may hold any character, block by block."""
    start = num_quotes = 0
    while start < len(body):
        block = body[start : start + BLOCK_BYTES]
        start += len(block)
        if (len(block) - len(block.rstrip(b"\\"))) % 2:  # the last of them escapes what comes next
            block += body[start : start + 1]
            start += 1
        block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
        is_inside, num_quotes = num_quotes % 2, num_quotes + block.count(b'"')
        if num_quotes > 2 * max_strings:
            raise InvalidInput(f"the body has more than {max_strings} strings, the limit")
        yield b"".join(block.split(b'"')[is_inside::2])


def _validation_error(error: ValidationError, model: type[BaseModel]) -> InvalidInput:
    """pydantic's first complaint in our words: field, what is wrong, value."""
    first = error.errors(include_url=False)[0]
    loc = [part if isinstance(part, int) else part[:200] for part in first["loc"]]
    loc = [part for part in loc if isinstance(part, int) or not KIND.search(part)]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(
        "."
    )[:200]
    if not field:
        return InvalidInput(f"the body is not a JSON object: {first['msg']}")
    param = field.split("[")[0]
    if first["type"] == "extra_forbidden":
        return UnknownField(
            f"{field} is unknown; known are {', '.join(_known(model, first['loc']))}", param=param
        )
    if first["type"] == "missing":
        return InvalidInput(f"{field} is missing", param=param)
    what = WORDS.get(first["type"], first["msg"]).format(**first.get("ctx", {}))
    sent = first["input"]
    got = f"{len(sent)}" if first["type"].endswith("too_long") else shown(sent)
    return InvalidInput(f"{field}: {what}, got {got}", param=param)


def _known(model: type[BaseModel], loc: tuple[int | str, ...]) -> Iterable[str]:
    """The keys that stand where `loc` ends."""
    for part in loc[:-1]:
        inner = model.model_fields[part].annotation if isinstance(part, str) else None
        nested = [
            kind
            for kind in (*get_args(inner), inner)
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        model = nested[0] if nested else model
    return model.model_fields


def shown(value: Any) -> str:
    """A value as its sender wrote it, cut short."""
    text = orjson.dumps(_cut(value)).decode()
    if isinstance(value, float) and abs(value) >= 2**63:
        return f"{text}: more than 64 bits hold"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _cut(value: Any, depth: int = 3) -> Any:
    """No more of the value than is shown."""
    if isinstance(value, str):
        return value[:61]
    if isinstance(value, list | dict) and not depth:
        return "..."
    if isinstance(value, list):
        return [_cut(item, depth - 1) for item in value[:30]]
    if isinstance(value, dict):
        return {name[:61]: _cut(item, depth - 1) for name, item in islice(value.items(), 10)}
    return value
