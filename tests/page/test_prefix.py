"""The pages behind a proxy that takes a prefix off each path, as haproxy does it."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed: `make browser`")

from tests.support.browser import requested
from tests.support.haproxy import PROGRAM, prefixed
from tests.support.pages import Playground

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="haproxy is not installed")


@pytest.fixture
def below(url: str) -> Iterator[str]:
    with prefixed(url, "/some/prefix") as address:
        yield address


def test_the_pages_work_below_a_prefix(driver: Any, below: str) -> None:
    driver.get("about:blank")
    requested(driver)
    page = Playground(driver, f"{below}/")
    assert page.text(".headline").startswith("Nearest: texts ")
    page.click("#tab-copy")
    assert f"'{below}/v1/embeddings'" in page.text("#code")
    page.click("#tab-inside")
    assert page.text("#verdict").startswith("Equal. ")
    page.click("#certificate")
    assert page.text(".verdict").startswith("Passed. ")
    sent = {address for address in requested(driver) if address.startswith("http")}
    assert not [address for address in sent if not address.startswith(f"{below}/")]
    assert page.console() == []
