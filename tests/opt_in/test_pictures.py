"""Pictures of the pages.

docs/playground.png is the README's. The others, in build/pictures, are to be looked at: the views
of the playground and a certificate, in light and dark, wide and on a phone. Shows the first paint,
the bytes of the page, and the longest task of many texts and of a long one.
"""

import socket
from pathlib import Path
from typing import Any

import pytest

from addnorm.service.loading.loader import load_all
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import serving
from tests.support.browser import before_load, browser, picture, screen
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
README, HEIGHT = Path("docs/playground.png"), 1080
LONGEST = """
window.longest = 0;
const longer = (one) => (longest = Math.max(longest, one.duration));
const all = (list) => list.getEntries().forEach(longer);
new PerformanceObserver(all).observe({type: "longtask", buffered: true});
"""
OUT = Path("build/pictures")
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
BYTES = """
const loaded = performance.getEntriesByType('resource').filter(one => one.name.includes('/page/'));
const all = [...performance.getEntriesByType('navigation'), ...loaded];
return [all.length, all.reduce((sum, one) => sum + one.decodedBodySize, 0)]"""


def test_pictures_are_taken() -> None:
    """Takes pictures of the newest bundle of MODEL, on the port that they show. Look at them."""
    OUT.mkdir(parents=True, exist_ok=True)
    settings = Settings(port=free(8000))
    service = build(load_all(Path("bundles"), settings), settings)
    with serving(service) as url, browser() as driver:
        first_paint(driver, url)
        longest_task(driver, url)
        for name, (width, scheme) in SCREENS.items():
            for page, path in pages().items():
                take(driver, url + path, OUT / f"{page}-{name}.png", width, scheme)
        take(driver, f"{url}/", README, 1280, "light", HEIGHT)


def free(port: int) -> int:
    with socket.socket() as tried:
        if not tried.connect_ex(("127.0.0.1", port)):
            pytest.fail(f"port {port} is taken: end the server there first")
    return port


def pages() -> dict[str, str]:
    views = {name: f"/#model={MODEL}&{said}" for name, said in VIEWS.items()}
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


def first_paint(driver: Any, url: str) -> None:
    """Prints the median first paint of five loads with nothing held by the browser."""
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    paints = sorted(Playground(driver, url).run(PAINT) for _ in range(5))
    files, num_bytes = driver.execute_script(BYTES)
    print(f"first contentful paint: {paints[2]:.0f} ms, of {paints[0]:.0f} to {paints[-1]:.0f} ms")
    print(f"the page: {num_bytes:,} bytes in {files} files")


def longest_task(driver: Any, url: str) -> None:
    """Prints the longest time that the page did not answer its reader."""
    many = "\n".join(f"This is text {number}, of {number % 7} kinds." for number in range(200))
    for name, text in {"200 texts": many, "2,000 tokens": "token " * 2000}.items():
        with before_load(driver, LONGEST):
            page = Playground(driver, f"{url}/#model={MODEL}")
            page.run("document.getElementById('lines').value = arguments[0]", text)
            page.click("#run")
            page.click("#tab-inside")
            print(f"{name}: longest task {page.run('return longest'):.0f} ms")
