"""Pictures of the pages, in build/pictures, to be looked at: the views of the playground and a
certificate, in light and dark, wide and on a phone. docs/playground.png is a copy of the last.
"""

import socket
from pathlib import Path
from typing import Any

import pytest

from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import serving
from tests.support.browser import browser, picture, screen
from tests.support.pages import Playground

pytestmark = pytest.mark.pictures
MODEL = "all-minilm-l6-v2"
WIDTHS = {"": 1280, "-phone": 390}
SCREENS = {
    f"{scheme}{name}": (width, scheme)
    for scheme in ("light", "dark")
    for name, width in WIDTHS.items()
}
VIEWS = {"similarity": "", "code": "tab=tab-copy", "inside": "tab=tab-inside"}
OUT, HEIGHT = Path("build/pictures"), 1080


def test_pictures_are_taken() -> None:
    """Takes pictures of the newest bundle of MODEL, on the port that they show. Look at them."""
    OUT.mkdir(parents=True, exist_ok=True)
    settings = Settings(port=free(8000))
    service = build(load_all(Path("bundles"), settings), settings)
    with serving(service) as url, browser() as driver:
        for name, (width, scheme) in SCREENS.items():
            for page, path in pages().items():
                take(driver, url + path, OUT / f"{page}-{name}.png", width, scheme)
        take(driver, f"{url}/", OUT / "playground.png", 1280, "light", HEIGHT)


def free(port: int) -> int:
    with socket.socket() as tried:
        if not tried.connect_ex(("127.0.0.1", port)):
            pytest.fail(f"port {port} is taken: end the server there first")
    return port


def pages() -> dict[str, str]:
    views = {name: f"/#model={MODEL}&{theme}" for name, theme in VIEWS.items()}
    return {**views, "certificate": f"/models/{MODEL}/certificate"}


def take(
    driver: Any, url: str, path: Path, width: int, scheme: str, height: int | None = None
) -> None:
    """The whole page, or the top of it."""
    page = Playground(driver, url, width, scheme)
    page.run("document.documentElement.style.scrollbarWidth = 'none'")
    whole = page.run("return document.documentElement.scrollHeight")
    screen(driver, width, height or whole, scheme)
    picture(driver, path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
