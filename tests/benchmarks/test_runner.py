"""The runner: one report of all runs, goals that end with 1, ratios of sides that take turns."""

import ast
import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as runner
from benchmarks import comparison, needs, registry
from benchmarks.comparison import Goal
from benchmarks.findings import Findings, Options
from benchmarks.registry import ALL, EXPERIMENTS, Experiment
from benchmarks.rounds import Clock, Side, interleave

ROOT = Path(__file__).parents[2]
PASSES, MISSES = Findings("| a |", (), {"a": 1.0}), Findings("| b |", ["3 were late"])


def passing(_: Options) -> Findings:
    return PASSES


def missing(options: Options) -> Findings:
    options.wants("a part")
    return MISSES


def ending(_: Options) -> Findings:
    raise RuntimeError("no server")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_entry_is_a_function_of_its_module(name: str) -> None:
    """Read, not imported: some need packages of other environments."""
    module, function = EXPERIMENTS[name].entry.split(":")
    spec = find_spec(module)
    assert spec
    assert spec.origin
    statements = ast.parse(Path(spec.origin).read_text()).body
    assert function in [node.name for node in statements if isinstance(node, ast.FunctionDef)]


def test_every_need_is_a_program_or_a_file_that_make_makes() -> None:
    files = {need for entry in ALL.values() for need in entry.needs} - set(needs.PROGRAMS)
    command = ["make", "--dry-run", "--always-make", *sorted(files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_measured_is_there() -> None:
    """git counts no commits of a folder that it does not know."""
    for entry in ALL.values():
        assert all((ROOT / path).exists() for path in entry.measures), entry.measures


def test_every_environment_names_packages() -> None:
    for file in (ROOT / "benchmarks/environments").glob("*.txt"):
        assert [line for line in file.read_text().splitlines() if line[0] != "#"], file


def lost(_: Options) -> Findings:
    raise ConnectionError("GET /livez: 503")


def killed(_: Options) -> Findings:
    raise subprocess.CalledProcessError(-9, "a peer")


OWN = {
    name: Experiment(
        "a test", f"tests.benchmarks.test_runner:{name}", 1, (), only="a", beside="again"
    )
    for name in ("passing", "missing", "ending", "lost", "killed")
}


def test_a_missed_goal_ends_with_1_and_the_others_still_run(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)]
    assert runner.main(["passing", *out], OWN) == 0
    assert runner.main(["ending", "lost", "killed", "missing", *out], OWN) == 1
    seen: dict[str, Any] = json.loads((tmp_path / "figures.json").read_text())
    assert {name: entry["missed"] for name, entry in seen.items()} == {
        "passing": [],
        "ending": ["no server"],
        "lost": ["GET /livez: 503"],
        "killed": ["Command 'a peer' died with <Signals.SIGKILL: 9>."],
        "missing": ["3 were late"],
    }
    assert seen["passing"]["figures"] == {"a": 1.0}
    assert {"commit", "machine"} <= set(seen["passing"])
    assert runner.main(["missing", *out, "--only", "a"], OWN) == 1
    assert "missing --only a" in json.loads((tmp_path / "figures.json").read_text())
    report = (tmp_path / "report.md").read_text()
    assert "## passing" in report
    assert "- missed: 3 were late" in report


def test_sides_take_turns_and_each_round_goes_the_other_way() -> None:
    order = list[str]()

    def side(who: str) -> Side:
        def measure(_: float) -> dict[str, float]:
            order.append(who)
            return {"x_per_s": 1.0}

        return Side("load", who, measure)

    figures = interleave([side("a"), side("b")], 60.0, Clock(60.0), max_rounds=3)
    assert "".join(order) == "abbaab"
    assert {key: len(runs) for key, runs in figures.items()} == {"load/a": 3, "load/b": 3}


@pytest.mark.parametrize(("metric", "ours"), [("x_per_s", 4.0), ("x_ms", 1.0)])
def test_a_goal_is_a_median_of_ratios_of_which_more_is_better(metric: str, ours: float) -> None:
    figures = {"load/a": [{metric: ours}] * 3, "load/b": [{metric: 2.0}] * 3}
    assert list(Goal("load", "a", "b", metric, 2.0).misses(figures)) == []
    (miss,) = Goal("load", "a", "b", metric, 2.1).misses(figures)
    assert "a is 2.000 x over b, at least 2.1 x is wanted" in miss
    assert list(Goal("other", "a", "b", metric, 2.1).misses(figures)) == []


def test_answers_that_are_not_right_are_told_by_side_and_kind() -> None:
    runs = [{"errors: 504": 2, "errors: wrong": 1, "num_errors": 3}, {"errors: 429": 4}]
    report_lines = comparison.compare({"load/a": runs, "load/b": [{"num_errors": 0}]}, (), {})
    message = "load/a: 7 answers were not right: 2 late (504), 1 wrong, 4 refused with 429"
    assert report_lines.missed == [message]


def test_the_marks_of_the_tests_are_the_registrys(pytestconfig: pytest.Config) -> None:
    marks = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert set(registry.PROOFS) <= marks
