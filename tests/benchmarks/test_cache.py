"""The experiment of the cache, the only one whose servers cache: rounds of equal requests."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from addnorm.service.runtime import bundle as bundle_format
from benchmarks import cache, processes
from benchmarks.findings import Options
from examples.serving import served


class Started(Exception):
    """Carries the environment of a process that was not started."""


def environment(monkeypatch: pytest.MonkeyPatch, start: Any) -> dict[str, str]:
    def popen(*_: Any, env: dict[str, str], **__: Any) -> None:
        raise Started(env)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(Started) as started, start():
        pass
    given: dict[str, str] = started.value.args[0]
    return given


def test_servers_that_are_measured_cache_nothing_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever this process's own environment says."""
    monkeypatch.setenv("ADDNORM_CACHE_BYTES", "123")
    name = "ADDNORM_CACHE_BYTES"
    assert environment(monkeypatch, lambda: processes.folder(tmp_path))[name] == "0"
    assert environment(monkeypatch, lambda: served(tmp_path))[name] == "0"
    told = environment(monkeypatch, lambda: processes.folder(tmp_path, ADDNORM_CACHE_BYTES="7"))
    assert told[name] == "7"


def test_the_cache_is_measured_in_rounds_of_the_same_requests(bundles: Path) -> None:
    """Two real servers, in short: all answers right. The ratios say nothing of this machine."""
    notebook = bundle_format.read(bundles / "notebook" / "1")
    lines = {"repeats": (2, 30), "new": (2, 10)}
    found = cache.measured(notebook, Options(1, 1), lines, num_distinct=50)
    rounds: Any = found.figures
    nums = {key: [run["num_answers"] for run in runs] for key, runs in rounds.items()}
    assert nums["repeats/on"] == nums["repeats/off"] == [30, 30]
    assert nums["new/on"] == nums["new/off"] == [10, 10]
    assert all(run["num_errors"] == 0 for runs in rounds.values() for run in runs)
    assert rounds["repeats/on"][1]["hits"] > 30
    assert [run["hits"] for run in rounds["new/on"]] == [0, 0]
    assert "`repeats`" in found.tables
