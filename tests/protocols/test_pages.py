"""The pages as they are served: their policy, their size, and addresses below any prefix."""

import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from addnorm.service.protocols.operations import pages

ROOT = Path(__file__).parents[2]
PAGES = ["/", "/models/notebook/certificate", "/models/notebook/1/certificate"]
FILES = sorted(path.name for path in (ROOT / "service" / "page").iterdir())
MOST_BYTES = 100_000


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
    assert set(policy.values()) == {"'self'", "'none'", "'script'"}
    for kind in ("script-src", "style-src", "img-src", "connect-src"):
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
    assert f'src="{root}page/certificate.js"' in answer.text


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
    ["/page/nothing.js", "/page/", "/page/..%2fprotocols%2fpages.py", "/page/playground.html"],
)
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_pages_are_small_and_all_their_files_are_served() -> None:
    folder = ROOT / "service" / "page"
    assert {path.suffix for path in folder.iterdir()} <= set(pages.TYPES)
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST_BYTES


def test_scripts_make_no_markup_and_name_no_other_host() -> None:
    for path in (ROOT / "service" / "page").glob("*.js"):
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"https?://(?!www\.w3\.org)\w", text), path
