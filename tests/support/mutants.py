"""Bad request bodies: good ones, broken in seeded ways. Knows no server."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**31, 2**63, 2**70, -(2**63), 1e308, float("nan"), float("inf"),
    "", "x", "\x00", "\ud800", "../../etc/passwd", "n" * 3000,
    [], {}, [[]], [[1]], [[[1]]], {"a": {"b": {}}}, [None], [[None]], [["1"]],
)  # fmt: skip
BYTES = b'{}[]",:\\\x00\xff09.eE-+ntf \n'


def mutants(good: list[dict[str, Any]], count: int, seed: int) -> Iterator[bytes]:
    """`count` bodies; a few are still good."""
    draws = random.Random(seed)
    for _ in range(count):
        body = json.loads(json.dumps(draws.choice(good)))
        for _ in range(draws.randint(0, 2)):
            _break_value(draws, body)
        written = json.dumps(body).encode()
        for _ in range(draws.randint(0, 3)):
            written = _break_bytes(draws, written)
        yield written


def _break_value(draws: random.Random, body: Any) -> None:
    """Replaces, drops, adds or doubles one value, at any depth."""
    places = list(_places(body))
    if not places:
        return
    parent, key = draws.choice(places)
    kind = draws.randrange(4)
    if kind == 0:
        parent[key] = _junk(draws)
    elif kind == 1:
        del parent[key]
    elif kind == 2:
        parent[key] = [parent[key], parent[key]]
    elif isinstance(parent, dict):
        parent[draws.choice(["", "x", "id", "texts", "input_ids ", "n" * 300])] = _junk(draws)
    else:
        parent.extend([_junk(draws)] * draws.choice([1, 3, 100]))


def _junk(draws: random.Random) -> Any:
    return deepcopy(draws.choice(JUNK))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    ):
        yield value, key
        yield from _places(value[key])


def _break_bytes(draws: random.Random, written: bytes) -> bytes:
    """Cuts, doubles, or overwrites a few bytes somewhere."""
    start = draws.randrange(len(written) + 1)
    end = min(len(written), start + draws.choice([0, 1, 1, 2, 8, 64]))
    kinds = (
        written[:start] + written[end:],
        written[:start] + written[start:end] * 2 + written[end:],
        written[:start] + bytes(draws.choices(BYTES, k=max(1, end - start))) + written[end:],
        written[:start],
    )
    return draws.choices(kinds, (4, 4, 8, 1))[0]
