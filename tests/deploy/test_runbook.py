"""docs/runbook.md has a row for each alert and each error, and the alerts lead to it."""

import re
from pathlib import Path

import yaml

from addnorm.service.errors import ServiceError
from benchmarks.documents.reference import kinds

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy" / "rules.yml").read_text())["groups"][0]["rules"]
PAGE = (ROOT / "docs" / "runbook.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """The other cells of each row of a section's table, by the name in its first cell."""
    section = re.split(r"^## ", PAGE.partition(f"\n## {heading}\n")[2], flags=re.M)[0]
    cells = [re.split(r" *\| *", line)[1:-1] for line in section.splitlines() if line[:3] == "| `"]
    names = [row[0].strip("`") for row in cells]
    assert len(set(names)) == len(names), "a name has two rows"
    return {name: row[1:] for name, row in zip(names, cells, strict=True)}


def test_each_alert_has_a_row_and_no_row_names_another() -> None:
    assert rows("Alerts").keys() == {rule["alert"] for rule in RULES}


def test_each_error_has_a_row_and_no_row_names_another() -> None:
    assert rows("Errors").keys() == {kind.code for kind in kinds(ServiceError)}


def test_each_row_says_where_to_look_and_what_to_do() -> None:
    for name, others in (rows("Alerts") | rows("Errors")).items():
        assert len(others) == 3, name
        assert all(others), name


def test_each_alert_leads_to_the_runbook() -> None:
    for rule in RULES:
        page, _, heading = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / page).read_text() == PAGE, rule["alert"]
        assert f"\n## {heading.capitalize()}\n" in PAGE, rule["alert"]
