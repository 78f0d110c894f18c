"""The pages as they are served: their policy, their size, and addresses below any prefix."""

import re
from collections import Counter
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from addnorm.service.dialects import operations

ROOT = Path(__file__).parents[2]
PAGES = ["/", "/models/notebook/certificate", "/models/notebook/1/certificate"]
FOLDER = ROOT / "service" / "page"
PATHS = sorted(path for path in FOLDER.rglob("*") if path.is_file())
FILES = [path.relative_to(FOLDER).as_posix() for path in PATHS]
MOST_BYTES, MOST_AT_FIRST = 160_000, 60_000


@pytest.mark.parametrize("path", PAGES)
def test_a_page_may_use_this_servers_scripts_styles_and_answers_only(
    client: httpx.Client, path: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    parts = answer.headers["content-security-policy"].split("; ")
    policy = dict(part.split(" ", 1) for part in parts)
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("img-src") == "'self' blob:"
    assert set(policy.values()) == {"'self'", "'none'", "'script'"}
    for kind in ("script-src", "style-src", "connect-src"):
        assert policy[kind] == "'self'"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<style|style=|\son\w+=|<script(?! type=\"module\" src=)", answer.text)


@pytest.mark.parametrize("model", ["nothing", "notebook/9", "notebook%2F1"])
def test_the_page_of_a_model_that_is_not_served_has_status_404(
    client: httpx.Client, model: str
) -> None:
    answer = client.get(f"/models/{model}/certificate")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    root = "../" * (2 + (model == "notebook/9"))
    assert f'src="{root}page/certificate/certificate.js"' in answer.text


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("prefix", ["/", "/some/prefix/"])
def test_addresses_are_relative(client: httpx.Client, path: str, prefix: str) -> None:
    here = prefix + path.removeprefix("/")
    for address in re.findall(r'(?:src|href)="([^"#]+)"', client.get(path).text):
        assert not address.startswith(("http", "/"))
        assert client.get("/" + urljoin(here, address).removeprefix(prefix)).status_code == 200


@pytest.mark.parametrize("file", [name for name in FILES if not name.endswith(".html")])
def test_a_file_is_sent_again_only_when_it_has_changed(client: httpx.Client, file: str) -> None:
    answer = client.get(f"/page/{file}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    again = client.get(f"/page/{file}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(f"/page/{file}", headers={"if-none-match": '"another"'})
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/nothing.js",
        "/page/",
        "/page/..%2fprotocols%2fpages.py",
        "/page/inside",
        "/page/playground.html",
    ],
)
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_pages_are_small_and_all_their_files_are_served() -> None:
    assert {path.suffix for path in PATHS} <= set(operations.TYPES)
    assert sum(path.stat().st_size for path in PATHS) < MOST_BYTES
    assert max(Counter(path.parent for path in PATHS).values()) <= 10


def test_the_first_paint_loads_little() -> None:
    """The shell and the largest view of a task. The rest is loaded when it is shown."""
    first = {"playground.html", "page.css", "icon.svg", *loaded("playground.js")}
    assert not [name for name in first if name.startswith(("inside/", "share/"))]
    tasks = [loaded(name) for name in FILES if name.startswith("tasks/")]
    most = max(sum(size(name) for name in first | task) for task in tasks)
    assert sum(size(name) for name in first) < most < MOST_AT_FIRST


def loaded(name: str) -> set[str]:
    """A script and those that it imports at once."""
    folder = (FOLDER / name).parent
    imports = re.findall(r'from "(\.[^"]+)"', (FOLDER / name).read_text())
    others = ((folder / each).resolve().relative_to(FOLDER.resolve()) for each in imports)
    return {name}.union(*(loaded(each.as_posix()) for each in others))


def size(name: str) -> int:
    return (FOLDER / name).stat().st_size


def test_scripts_make_no_markup_and_name_no_other_host() -> None:
    for path in (path for path in PATHS if path.suffix == ".js"):
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"https?://(?!www\.w3\.org)\w", text), path
