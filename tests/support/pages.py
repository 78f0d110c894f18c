"""What a reader does on the pages, and what they say."""

from collections.abc import Callable
from typing import Any

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.support.browser import screen

LONGEST_S = 30


class Playground:
    """The page in a browser. Each act waits until nothing is under way."""

    def __init__(self, driver: Any, url: str, width: int = 1280, scheme: str = "light") -> None:
        self.driver = driver
        screen(driver, width, 900, scheme)
        driver.get("about:blank")  # else another fragment alone would not load the page anew
        driver.get(url)
        self.settled()

    def settled(self) -> None:
        self.until(lambda: self.run("return document.body.dataset.jobs") == "0")

    def until(self, condition: Callable[[], Any]) -> None:
        WebDriverWait(self.driver, LONGEST_S, 0.02).until(lambda _: condition())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)  # type: ignore[no-any-return]

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)  # type: ignore[no-any-return]

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
        return self.run(script, selector)  # type: ignore[no-any-return]

    def click(self, selector: str) -> None:
        self.find(selector).click()
        self.settled()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()
        self.settled()

    def choose(self, name: str, value: str) -> None:
        """One of several radio buttons."""
        self.find(f'input[name="{name}"][value="{value}"] + span').click()
        self.settled()

    def select(self, field: str, value: str) -> None:
        Select(self.find(f"#{field}")).select_by_visible_text(value)
        self.settled()

    def write(self, field: str, text: str) -> None:
        box = self.find(f"#{field}")
        box.clear()
        box.send_keys(text.replace("\n", Keys.SHIFT + Keys.ENTER + Keys.NULL))

    def mask(self) -> list[list[int]]:
        rows = "return [...document.querySelectorAll('#grid tr')].map(row =>"
        cells = "[...row.querySelectorAll('button')].map(b => Number(b.ariaPressed === 'true')))"
        return self.run(rows + cells)  # type: ignore[no-any-return]

    def console(self) -> list[str]:
        """What went wrong since the last look."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
