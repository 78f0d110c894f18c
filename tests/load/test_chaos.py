"""Some scenarios of `python -m addnorm.load.stress`, in short; `make chaos` runs them long."""

import json
from collections import Counter
from pathlib import Path

import pytest

from addnorm.load import servers
from addnorm.load.stress.__main__ import SCENARIOS, Scenario, main
from addnorm.load.stress.findings import Findings
from addnorm.load.stress.requests.mutants import mutants
from addnorm.load.stress.scenarios.overload import overload
from addnorm.load.stress.scenarios.storms import STORMS, good_bodies
from addnorm.service.runtime import bundle as bundle_format

SIZES = {"bodies": 1000, "leavers": 100, "slow": 60}


@pytest.mark.parametrize("name", STORMS)
def test_a_storm_hurts_nothing(bundles: Path, name: str) -> None:
    assert STORMS[name](notebook_of(bundles), SIZES[name])


def test_an_overloaded_server_answers_right_or_refuses_and_says_when(bundles: Path) -> None:
    minilm = bundle_format.read(bundles / "minilm" / "1")
    figures, missed = overload(minilm, seconds=1, times=8, deadline_ms=3000)
    assert figures["refusals without Retry-After"] == 0
    assert not [words for words in missed if words.startswith("answers")]
    # `make chaos` asks for goodput, on a quiet machine
    assert figures["CPU time for a useful token over that at capacity"] < 4
    assert sum(value for name, value in figures.items() if name.startswith("refused")) > 0


def notebook_of(root: Path) -> bundle_format.Bundle:
    return bundle_format.read(root / "notebook" / "1")


def test_mutants_are_the_same_each_time_and_mostly_bad(bundles: Path) -> None:
    good = good_bodies(notebook_of(bundles))
    first, again = (list(mutants(good, 500, seed=3)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 350
    kinds: Counter[str] = Counter()
    for body in first:
        try:
            kinds["good" if json.loads(body) in good else "other JSON"] += 1
        except ValueError:
            kinds["no JSON"] += 1
    assert min(kinds["other JSON"], kinds["no JSON"]) > 100


def test_every_scenario_is_listed_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, scenario in SCENARIOS.items():
        assert f"  {name:11s}{scenario.summary}" in lines


@pytest.mark.parametrize(
    ("findings", "code"),
    [(Findings("| a |"), None), (Findings("| a |", ["goal of 3 missed"]), 1), (None, 1)],
)
def test_a_missed_goal_is_named_and_ends_with_1(
    bundles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    findings: Findings | None,
    code: int | None,
) -> None:
    """So does a scenario that cannot start its server; the others of `all` still run."""

    def run(_: object) -> Findings:
        if findings is None:
            raise RuntimeError("no server")
        return findings

    monkeypatch.setattr(servers, "end_on_sigterm", lambda: None)  # of this process, too
    for name in SCENARIOS:
        monkeypatch.setitem(SCENARIOS, name, Scenario("a test", run))
    words = ["all", "--bundle", str(bundles / "notebook" / "1"), "--out", str(tmp_path)]
    if code:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == code
    else:
        main(words)
    written = (tmp_path / "stall.md").read_text()
    missed = ["no server"] if findings is None else findings.missed
    assert all(f"- missed: {goal}" in written for goal in missed)
    assert ("No goal was missed." in written) == (not missed)
