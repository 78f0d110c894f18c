"""Chromium without a window, driven by ChromeDriver."""

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    missing = "there is no chromium or no chromedriver: `make browser` installs both on Debian"
    pytest.skip(missing, allow_module_level=True)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
)


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A driver with a fresh profile, which logs the console and the network."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            yield driver
        finally:
            driver.quit()


def screen(driver: Any, width: int, height: int, scheme: str = "light", scale: int = 1) -> None:
    """The size of the page, narrower than any window may be, and light or dark."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def before_load(driver: Any, script: str) -> Iterator[None]:
    """Runs a script before those of each page that is loaded."""
    parameters = {"source": f"{{{script}}}"}
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", parameters)
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def requested(driver: Any) -> list[str]:
    """Addresses of all requests since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [body["params"]["request"]["url"] for body in sent]


def picture(driver: Any, path: Path, whole: bool = False) -> None:
    """A PNG of the screen, or of the whole page."""
    parameters = {"format": "png", "captureBeyondViewport": whole}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", parameters)
    path.write_bytes(base64.b64decode(taken["data"]))
