"""Values as their senders wrote them, cut short: for messages."""

from itertools import islice
from typing import Any

import orjson


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
        return [_cut(inner, depth - 1) for inner in value[:30]]
    if isinstance(value, dict):
        return {name[:61]: _cut(inner, depth - 1) for name, inner in islice(value.items(), 10)}
    return value
