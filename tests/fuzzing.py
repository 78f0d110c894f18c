"""Schemathesis' hook: made-up requests name models that are served, mostly with ids that these have."""

from typing import Any

import schemathesis

NAMES = ("notebook", "all-minilm-l6-v2")


@schemathesis.hook
def map_body(_: Any, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = NAMES[len(body["model"]) % 2]
        for field in ("input", "input_ids"):
            body[field] = small(body[field]) if field in body else None
    return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


@schemathesis.hook
def map_path_parameters(_: Any, path: Any) -> Any:
    names = {"name": NAMES[0], "model": NAMES[0], "version": "1"}
    if isinstance(path, dict) and len("".join(map(str, path.values()))) % 4:
        return {key: names.get(key, value) for key, value in path.items()}
    return path


def small(value: Any) -> Any:
    """Every other integer among the ids of both models, and lists no longer than the smaller takes."""
    if isinstance(value, list):
        return [small(part) for part in value[:5]]
    return value % 6 if type(value) is int and value % 2 else value
