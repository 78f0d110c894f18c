"""Schemathesis' hooks: without them it names models that nobody serves, and all is a 404."""

from typing import Any

import schemathesis

NAMES = ("notebook", "all-minilm-l6-v2")
SERVED = {"name": NAMES[0], "model": NAMES[0], "version": "1"}


@schemathesis.hook
def map_body(_: Any, body: Any) -> Any:
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return body
    small_ids = {field: small(body[field]) for field in ("input", "input_ids") if field in body}
    return {**body, **small_ids, "model": NAMES[len(body["model"]) % 2]}


@schemathesis.hook
def map_path_parameters(_: Any, path: Any) -> Any:
    """Three of four are served."""
    if isinstance(path, dict) and len("".join(map(str, path.values()))) % 4:
        return {key: SERVED.get(key, value) for key, value in path.items()}
    return path


def small(value: Any) -> Any:
    """Odd integers become ids of both models, and lists no longer than the smaller takes."""
    if isinstance(value, list):
        return [small(part) for part in value[:5]]
    return value % 6 if type(value) is int and value % 2 else value
