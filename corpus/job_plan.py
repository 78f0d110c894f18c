"""The plan of a job of `addnorm embed`: what decides its result. It stands in the metadata of the
result and of its parts."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from addnorm.corpus.fingerprint_differences import Difference
from addnorm.corpus.storage import Location
from addnorm.service.engine.fingerprint import moved

PLAN_KEY = "addnorm.job"  # of the metadata of OUT and its parts: what they were made of
Plan = Mapping[str, Mapping[str, Any]]  # JSON


def plan_of(path: Location) -> Plan | None:
    """None if no job made the file."""
    try:
        return plan_in(path.open_parquet().metadata)
    except (pa.ArrowException, OSError):
        return None


def plan_in(metadata: pq.FileMetaData) -> Plan | None:
    """None if there is none, or none that can be read."""
    try:
        plan = json.loads((metadata.metadata or {})[PLAN_KEY.encode()])
    except (KeyError, ValueError, RecursionError):
        return None
    is_plan = isinstance(plan, dict) and all(isinstance(group, dict) for group in plan.values())
    return plan if is_plan else None


def differences(old: Plan, new: Plan) -> list[str]:
    """The options of `new` that another job had otherwise, in words. A text that was rejected may
    be cut: of the other texts this changes nothing."""
    if new["options"].get("truncate"):
        old = {**old, "options": {**old.get("options", {}), "truncate": True}}
    return [
        str(Difference(f"{group} {name}", _in_words(old, group, name), _in_words(new, group, name)))
        for group in new
        for name in _changed(group, old.get(group, {}), new[group])
    ]


def _changed(group: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    if group == "fingerprint":
        return moved(old, new)[0]
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def _in_words(plan: Plan, group: str, name: str) -> str | None:
    value = plan.get(group, {}).get(name)
    return None if value is None else str(value)[:200]
