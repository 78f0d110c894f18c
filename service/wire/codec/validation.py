"""JSON bodies into models, in bounded time, and what does not fit in our words. Knows no HTTP.

What clients in other languages write for a whole number, a boolean or nothing is taken as that
where the model rejects it as it is, so bodies that fit pay nothing.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache, partial
from typing import Any, TypeVar, get_args

import numpy as np
import orjson
from pydantic import AliasChoices, BaseModel, ValidationError

from addnorm.service.engine.checkpoint import checkpoint
from addnorm.service.engine.outputs.output import Strict as Strict  # the base of bodies
from addnorm.service.errors import BodyTooLarge, InvalidInput, UnknownField
from addnorm.service.settings import Settings
from addnorm.service.wire.codec import foreign_fields
from addnorm.service.wire.codec.foreign_fields import BOOLEANS, FOREIGN, Ignored
from addnorm.service.wire.codec.shown import shown

NO_MEMORY = "Not enough memory"  # in orjson's words
MAX_KEYS = 1000  # of all objects of a body, beside those of documents
MAX_FIELDS = 4  # of a document, on average
MAX_VECTORS = 65_536  # take 20 ms, which hold up others; as tensors more may be sent
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
# kinds of values that are mended, one after another where pydantic tells of one at a time
MAX_ROUNDS = 50
EXACT = 2.0**53  # whole numbers below it are exact as floats
NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
BLOCK_BYTES = 1024 * 1024
# Whatever so few bytes hold is parsed in 0.1 ms. Larger: small bodies of many keys hold up others.
# Smaller: requests of a few sequences are counted, which takes three times their parsing.
UNCOUNTED_BYTES = 8 * 1024

OURS = "windows"  # an object of ours in the bodies of all dialects: a misspelt name is rejected
Body = TypeVar("Body", bound=BaseModel)
Value = TypeVar("Value")


def parse(body: bytes, settings: Settings, keeps_nulls: bool = False) -> dict[str, Any]:
    """JSON -> its object, which may hold any fields. Those that are null are left out;
    keeps_nulls: of the body's own alone.

    Each piece holds the interpreter's lock to its end, so the size of each is checked before it.
    """
    if len(body) > settings.max_json_bytes:
        raise BodyTooLarge(
            f"the body has {len(body)} bytes of JSON, the limit is {settings.max_json_bytes}: send"
            " tensors as bytes, or less at once"
        )
    number_of: Callable[[bytes], int] = body.count
    if len(body) > UNCOUNTED_BYTES:
        _check_counts(body, settings)
        number_of = partial(count_unlocked, body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if NO_MEMORY in str(error):
            raise MemoryError(NO_MEMORY) from None
        raise InvalidInput(f"the body is not a JSON object: {error}"[:200]) from None
    checkpoint()
    if not isinstance(value, dict):
        raise InvalidInput(f"the body is not a JSON object: got {shown(value)}")
    # Where a key is sent twice this parser takes the last value, and others the first: what a proxy
    # has checked would not be what is computed
    is_flat = number_of(b"{") == 1 and number_of(b"[") < MAX_DEPTH
    num_keys = len(value) if is_flat else _num_keys(value)
    if number_of(b":") != num_keys:
        outside = outside_strings(body, _max_strings(settings))
        if (num_sent := sum(part.count(b":") for part in outside)) > num_keys:
            raise InvalidInput(
                f"the body has {num_sent} keys, of which {num_keys} differ: send each key once"
            )
    checkpoint()
    has_nulls = b"null" in body
    if has_nulls and keeps_nulls:
        value = {name: inner for name, inner in value.items() if inner is not None}
    elif has_nulls:
        _drop_nulls(value)
        checkpoint()
    return value


def fit(model: type[Body], value: dict[str, Any], ignored: Ignored | None = None) -> Body:
    """InvalidInput names the field that does not fit. value: is changed to what is meant. ignored:
    is told the fields that no body has, which are left out; None: such a field is rejected.

    A text that is empty is left out where a field may be left out, as is an object in the dialects
    of others: clients send these for what was not set.
    """
    names = _names(model)
    is_open = model.model_config.get("extra") == "allow"
    may_lack = _may_lack(model)
    for name in [name for name, sent in value.items() if sent == "" or name not in names]:
        if name in may_lack:
            del value[name]
        elif name not in names and not is_open and (ignored or name in FOREIGN):
            _ignore(value, name, [name], ignored)
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(value, context=ignored)
        except ValidationError as error:
            # complaints of one kind about items of one list are looked at once
            kinds = {
                (
                    complaint["type"],
                    *(part for part in complaint["loc"] if isinstance(part, str)),
                ): complaint
                for complaint in reversed(error.errors(include_url=False))
            }
            changes = [_mend(value, complaint, ignored) for complaint in kinds.values()]
            for name in may_lack.intersection(complaint["loc"][0] for complaint in kinds.values()):
                if ignored and value.get(name) == {}:
                    del value[name]
                    changes.append(True)
            if not any(changes):
                raise _validation_error(error, model) from None
    raise InvalidInput("the body has too many kinds of values that do not fit")


@cache
def _may_lack(model: type[BaseModel]) -> frozenset[str]:
    """The fields that are None where a body lacks them."""
    fields = model.model_fields.items()
    return frozenset(
        name for name, field in fields if not field.is_required() and field.default is None
    )


@cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    """The names by which a body may call its fields."""
    aliases = (field.validation_alias for field in model.model_fields.values())
    choices = (alias.choices for alias in aliases if isinstance(alias, AliasChoices))
    return frozenset(
        (*model.model_fields, *(name for choice in choices for name in map(str, choice)))
    )


def _ignore(
    holder: dict[str, Any], name: str, path: list[int | str], ignored: Ignored | None
) -> None:
    if name in FOREIGN:
        foreign_fields.check(name, holder[name], _place(path))
    del holder[name]
    if ignored:
        ignored(_place(part for part in path if isinstance(part, str)))


def _mend(value: dict[str, Any], complaint: Any, ignored: Ignored | None) -> bool:
    """Changes the value that a complaint of pydantic's is about, and those like it in the same
    lists, if it is clear what is meant. Returns whether it did."""
    path, kind = _path(value, complaint["loc"]), complaint["type"]
    if not path or (kind == "greater_than_equal" and complaint["ctx"]["ge"] != 1):
        return False
    *before, last = path
    is_misspelt = OURS in before and complaint["input"] is not None
    is_rejected = is_misspelt or (not ignored and last not in FOREIGN)
    if kind == "extra_forbidden" and is_rejected:
        return False
    # objects and lists to which the path leads, also by other indices of the same lists
    alike: list[Any] = [value]
    for part in before:
        if isinstance(part, int):
            inside = (inner for holder in alike if isinstance(holder, list) for inner in holder)
        else:
            dicts = (holder for holder in alike if isinstance(holder, dict))
            inside = (holder[part] for holder in dicts if part in holder)
        alike = [inner for inner in inside if isinstance(inner, CONTAINERS)]
    is_mended = False
    for holder in alike:
        if isinstance(holder, list):
            if kind == "int_type":
                integers = with_whole_floats(holder)
                is_mended |= list(map(type, integers)) != list(map(type, holder))
                holder[:] = integers
        elif kind == "extra_forbidden" and last in holder:
            _ignore(holder, str(last), path, ignored)
            is_mended = True
        elif last in holder and (intended := _plain_value(kind, holder[last])) is not holder[last]:
            holder[last] = intended
            if intended is None:
                del holder[last]
            is_mended = True
    return is_mended


def with_whole_floats(ids: list[Any]) -> list[Any]:
    """The same with whole numbers that are written as floats as integers. A text is a mistake."""
    return [int(sent) if type(sent) is float and _is_whole(sent) else sent for sent in ids]


def _is_whole(sent: float) -> bool:
    return sent.is_integer() and abs(sent) < EXACT


def _plain_value(kind: str, sent: Any) -> Any:
    """The value that this one stands for; None: nothing. The value itself if that is not clear."""
    if kind in ("int_type", "float_type") and isinstance(sent, str) and NUMBER.fullmatch(sent):
        number = float(sent)
    else:
        number = sent
    if kind == "int_type" and type(number) is float and _is_whole(number):
        return int(number)
    if kind == "float_type":
        return number
    if kind == "bool_type" and isinstance(sent, str):
        return BOOLEANS.get(sent.lower(), sent)
    if kind == "greater_than_equal" and sent == 0:
        return None  # of what begins at 1
    return sent


def _path(value: Any, loc: tuple[int | str, ...]) -> list[int | str]:
    """Keys and indices of a complaint's place, without the kinds that pydantic puts between."""
    path: list[int | str] = []
    for part in loc:
        if isinstance(value, dict):
            is_key = part in value
        else:
            is_key = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_key:
            value = value[part]
            path.append(part)
    return path


def agreed(**sent: Value | None) -> Value | None:
    """The value of fields of one meaning, each None if not sent. InvalidInput if two differ."""
    values = {field: value for field, value in sent.items() if value is not None}
    (first, value), *rest = values.items() or [("", None)]
    for field, rest_value in rest:
        if rest_value != value:
            raise InvalidInput(
                f"{field} and {first} mean the same, but have different values: send one of them",
                param=field,
            )
    return value


def into_body(value: Any, names: Container[str] | None = None) -> Any:
    """Moves what stands in the body's `parameters` beside it, as it means the same there. names: of
    what is moved; None: all. InvalidInput if both places have it and differ."""
    parameters = value.get("parameters") if isinstance(value, dict) else None
    if not isinstance(parameters, dict):
        return value
    moved_names = [name for name in parameters if names is None or name in names]
    for name in moved_names:
        sent = parameters.pop(name)
        value[name] = agreed(**{f"parameters.{name}": sent, name: value.get(name)})
    if not parameters and (moved_names or names is None):
        del value["parameters"]
    return value


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


def max_values(settings: Settings) -> int:
    """A request's: ids, masks and types of its tokens, and what is beside them."""
    return 3 * (settings.max_padded_tokens + settings.max_sequences) + 100 + MAX_KEYS


def _max_strings(settings: Settings) -> int:
    return 2 * _max_keys(settings)  # each key with a text


def _max_keys(settings: Settings) -> int:
    return MAX_KEYS + MAX_FIELDS * settings.max_sequences


def _check_counts(body: bytes, settings: Settings) -> None:
    """Rejects bodies that are within their size, but take long to parse and so hold up others."""
    # of ids, masks and types, and of vectors, one for each token
    num_lists = 3 * settings.max_sequences + MAX_VECTORS + 100
    num_keys = _max_keys(settings)
    limits = {
        b":": ("keys", num_keys),
        b"{": ("objects", num_keys),
        b"[": ("lists", num_lists),
        b",": ("values", max_values(settings)),
    }
    max_strings = _max_strings(settings)
    for character, limit in (
        *((character, limit) for character, (_, limit) in limits.items()),
        (b'"', 2 * max_strings),
    ):
        if count_unlocked(body, character) > limit:
            break
        checkpoint()
    else:
        return
    numbers = dict.fromkeys(limits, 0)
    for outside in outside_strings(body, max_strings):
        for character, (noun, limit) in limits.items():
            numbers[character] += outside.count(character)
            if numbers[character] > limit:
                raise InvalidInput(f"the body has more than {limit} {noun}, the limit")
        checkpoint()


def count_unlocked(body: bytes, character: bytes) -> int:
    """The number of times that a character occurs in a large body. numpy lets go of the
    interpreter's lock meanwhile."""
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(character)))


def outside_strings(body: bytes, max_strings: int) -> Iterator[bytes]:
    """The parts outside strings, which may hold any character, block by block."""
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
    is_unknown = first["type"] == "extra_forbidden"
    loc = [part if isinstance(part, int) else part[:200] for part in first["loc"]]
    name = loc[-1:] if is_unknown else []  # as it was sent: topN is no kind
    before = loc[: len(loc) - len(name)]
    loc = [part for part in before if isinstance(part, int) or not KIND.search(part)] + name
    field = _place(loc)[:200]
    if not field:
        return InvalidInput(f"the body is not a JSON object: {first['msg']}")
    param = field.split("[")[0]
    if is_unknown:
        for part in first["loc"][:-1]:  # to the model that has it
            inner = model.model_fields[part].annotation if isinstance(part, str) else None
            inner_models = [
                kind
                for kind in (*get_args(inner), inner)
                if isinstance(kind, type) and issubclass(kind, BaseModel)
            ]
            model = inner_models[0] if inner_models else model
        return UnknownField(
            f"{field} is unknown; known are {', '.join(model.model_fields) or 'none'}", param=param
        )
    if first["type"] == "missing":
        return InvalidInput(f"{field} is missing", param=param)
    complaint = WORDS.get(first["type"], first["msg"]).format(**first.get("ctx", {}))
    sent = first["input"]
    got = f"{len(sent)}" if first["type"].endswith("too_long") else shown(sent)
    return InvalidInput(f"{field}: {complaint}, got {got}", param=param)


def _place(path: Iterable[int | str]) -> str:
    """A path as messages have it: `documents[0].text`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).lstrip(".")
