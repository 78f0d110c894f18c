"""What a request multiplies to. It is known from its sizes alone, and checked before anything of it
is built: a product can be a thousand times the body."""

from collections.abc import Iterable

import orjson

from addnorm.service.errors import InvalidInput

MAX_LABEL_CHARACTERS = 1000  # of a candidate label; a hypothesis is cut to what the model takes
MAX_TEMPLATE_CHARACTERS = 1000
MAX_TARGETS = 1000  # that are to be candidates of a mask
MAX_TARGET_CHARACTERS = 256  # a target is one token


def check_size(
    field: str, value: int, what: str, limit: int, remedy: str = "send less at once"
) -> None:
    """InvalidInput if the field has more than the limit. what: a plural."""
    if value > limit:
        raise InvalidInput(
            f"{field} has {value} {what}, the limit is {limit}: {remedy}",
            param=field.partition("[")[0],
        )


def check_pairs(field: str, num: int, other: str, num_other: int, limit: int) -> None:
    """InvalidInput if each item of one field with each of another makes too many pairs."""
    if num * num_other > limit:
        raise InvalidInput(
            f"{other} has {num_other} for each of {num} {field}, which makes {num * num_other}"
            f" pairs, the limit is {limit}: send less at once",
            param=other,
        )


def json_bytes(texts: Iterable[str]) -> int:
    """Bytes of the texts as JSON strings, quotes included."""
    return sum(len(orjson.dumps(text)) for text in texts)
