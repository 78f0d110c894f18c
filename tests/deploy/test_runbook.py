"""The runbook names each alert and each error code, and nothing that is not there."""

import re
from pathlib import Path

import pytest
import yaml

from addnorm.service.errors import ServiceError
from benchmarks.documents.reference import kinds

ROOT = Path(__file__).parents[2]
PAGE = "docs/runbook.md"
RUNBOOK = (ROOT / PAGE).read_text()
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
PARTS_OF_A_HISTOGRAM = r"_(bucket|sum|count)$"


def section(heading: str) -> str:
    return re.split(rf"^## {heading}$", RUNBOOK, flags=re.M)[1].partition("\n## ")[0]


def alerts() -> dict[str, list[str]]:
    """The rows of the table of alerts: the name in the first cell -> the other cells."""
    rows = re.findall(r"^\| <a id=\"\w+\"></a>`(\w+)`(.*) \|$", section("Alerts"), re.M)
    assert len({name for name, _ in rows}) == len(rows), "a name has two rows"
    return {name: rest.split(" | ") for name, rest in rows}


def test_every_alert_has_a_row_and_every_row_an_alert() -> None:
    assert alerts().keys() == ALERTS.keys()


def test_every_error_code_is_named_and_no_other() -> None:
    codes = {kind.code for kind in kinds(ServiceError) if "code" in vars(kind)}
    before_a_colon = r"^- ((?:`\w+`(?:, )?)+):"
    entries = " ".join(re.findall(before_a_colon, section("Error codes"), re.M))
    assert set(re.findall(r"`(\w+)`", entries)) <= codes
    assert codes <= set(re.findall(r"`(\w+)`", section("Error codes")))


def test_no_cell_of_an_alert_is_empty() -> None:
    rows = alerts()
    assert {len(cells) for cells in rows.values()} == {3}
    assert [name for name, cells in rows.items() if not all(map(str.strip, cells[1:]))] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_points_to_its_row(alert: str) -> None:
    page, _, anchor = ALERTS[alert]["annotations"]["runbook"].partition("#")
    assert page == PAGE
    assert f'| <a id="{anchor}"></a>`{alert}`' in RUNBOOK


def test_every_metric_that_is_named_exists() -> None:
    """Commands count too: the test of all pages looks at words in backticks only."""
    reference = (ROOT / "docs/reference.md").read_text()
    metrics = set(re.findall(r"^- `(addnorm_\w+)`", reference, re.M))
    named = {
        re.sub(PARTS_OF_A_HISTOGRAM, "", name) for name in re.findall(r"\baddnorm_\w+", RUNBOOK)
    }
    assert named
    assert named <= metrics
