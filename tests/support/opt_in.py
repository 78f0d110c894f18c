"""Proofs that take minutes: tests that run where `-m` names their mark.

The marks, and what they need of the machine, are those of benchmarks/registry.py.
"""

import faulthandler
from collections.abc import Mapping

import pytest

from benchmarks import needs
from benchmarks.registry import PROOFS, Proof


def register(config: pytest.Config) -> None:
    for name, proof in PROOFS.items():
        line = f"{name}: {proof.summary}; opt-in, about {proof.minutes:g} min"
        config.addinivalue_line("markers", line)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests whose mark was not asked for."""
    expression = config.getoption("-m")
    unasked = [
        item for item in items if (own := _proofs(item)) and not any(map(expression.count, own))
    ]
    items[:] = [item for item in items if item not in unasked]
    config.hook.pytest_deselected(items=unasked)


def allow(item: pytest.Item, proofs: Mapping[str, Proof] = PROOFS) -> None:
    """Skips a proof without what it needs. It may take longer than a test that hangs."""
    for name in _proofs(item):
        faulthandler.cancel_dump_traceback_later()
        if absent := needs.in_words(proofs[name].needs):
            pytest.skip(absent)


def _proofs(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers() if mark.name in PROOFS]
