"""*Look inside*, driven in a browser: mask, five ways, activations, statistics, time."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import web

pytest.importorskip("selenium", reason="selenium is not installed: `make browser`")

from selenium.webdriver import ActionChains, Keys

from tests.support.pages import Playground

FIVE = ["Alone", "Pads left", "Pads right", "Pads in holes", "In company"]
# From now on the second and the third answer of tensors have another lowest bit in their last
# number: with pads on the left it is of a token, with pads on the right of a pad.
FORGED = """
const real = window.fetch;
let sent = 0;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (!asked[1].headers.accept?.includes("safetensors") || ![2, 3].includes(++sent)) return answer;
  const bytes = new Uint8Array(await answer.arrayBuffer());
  bytes[bytes.length - 4] ^= 1;
  return new Response(bytes, answer);
};
"""

# Answers are held back until the functions in `held` are called.
HELD = """
const real = window.fetch;
window.held = [];
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (String(asked[0]).endsWith("/v1/infer")) await new Promise((go) => held.push(go));
  return answer;
};
"""
SENT = """
const real = window.fetch;
window.fetch = (...asked) => {
  if (String(asked[0]).endsWith("/v1/infer")) window.sent ??= asked[1].body;
  return real(...asked);
};
"""
CHANGED = "Not compared: the request has changed. Send it again."
TEXTS = "#tab=tab-inside&prompt=&lines=Pads are dropped.%0AAre pads computed? Never.&model="


@pytest.fixture
def page(driver: Any, url: str) -> Iterator[Playground]:
    page = Playground(driver, f"{url}{TEXTS}embedder")
    yield page
    assert page.console() == []


def test_it_has_compared_when_it_is_opened(driver: Any, url: str) -> None:
    page = Playground(driver, url)
    page.click("#tab-inside")  # one click
    assert page.text("#verdict").startswith("Equal. ")
    assert page.find("#verdict").is_displayed()
    assert page.console() == []


def test_what_it_shows_is_what_the_server_answers(page: Playground, url: str) -> None:
    page.run(SENT)
    page.click("#in-mask")
    page.click("#send")
    requests = json.loads(page.run("return sent"))
    assert page.mask() == requests["attention_mask"] == [[1] * 7 + [0] * 3, [1] * 8 + [0] * 2]
    answer = web.post(f"{url}/v1/infer", json=requests)
    stats, usage = answer.json()["norm_stats"], answer.json()["usage"]
    for table, name in ((1, "mean"), (2, "rstd")):
        cells = page.texts(f".pair > div:nth-child({table}) tr:not(.pad) td")
        shown = [float(cell) for cell in cells]
        expected = [value for token in stats[name][0][:7] for value in token]
        assert shown == pytest.approx(expected, rel=0.06, abs=1e-9)
    facts = dict(zip(page.texts("#of-cost dt"), page.texts("#of-cost dd"), strict=True))
    assert facts["Fingerprint"] == answer.headers["x-addnorm-fingerprint"]
    assert (facts["Real tokens"], facts["Pads dropped"]) == ("15", "5")
    assert (usage["real_tokens"], usage["pad_tokens"]) == (15, 5)
    stages = [text.split()[0] for text in page.texts(".times li")]
    assert stages == ["decode", "queue", "infer", "encode"]
    assert len(page.all("canvas")) == 7
    assert page.texts(".strips .hatch") == ["3 pads, not computed"]


def test_one_sequence_sent_five_ways_has_equal_bits(page: Playground, url: str) -> None:
    config = web.get(f"{url}/v1/models/embedder").json()["config"]
    width, num_norms = config["d_model"], 1 + 2 * config["n_layers"]
    before = page.texts("#ways small")[-1]
    for row in ("Row 1", "Row 2"):
        page.select("row", row)
        for name, title in zip(FIVE, page.texts("#ways h3"), strict=True):
            assert title.startswith(name)
        assert page.texts("#ways strong") == ["reference"] + ["equal"] * 4
        assert len(set(page.texts("#ways .digest"))) == 1
        # activations, the pooled vector, mean and rstd of every norm
        num_tokens = {"Row 1": 7, "Row 2": 8}[row]
        num_numbers = num_tokens * width + width + num_tokens * 2 * num_norms
        assert page.text("#verdict") == (
            f"Equal. {num_numbers:,} numbers, {32 * num_numbers:,} bits, the same in all five"
            " answers."
        )
        assert all("computed" in mark for mark in page.texts("#ways .mark"))
    page.click("#again")
    assert page.texts("#ways small")[-1] != before


def test_one_bit_that_differs_is_found(page: Playground) -> None:
    page.run(FORGED)
    page.click("#again")
    assert page.text("#verdict") == "Not equal. Pads left, Pads right: other bits than alone."
    assert page.texts("#ways strong") == ["reference", "differs", "differs", "equal", "equal"]
    assert len(set(page.texts("#ways .digest"))) == 2
    of_token, of_pad = page.texts("#ways .found")
    assert of_token.startswith("Differs in 1 number of ")
    assert ", first norm_stats.rstd of token 7, number " in of_token
    assert of_pad == "Differs in 1 number at pads, which should be 0."


def test_the_mask_is_edited_by_click_and_drag(page: Playground) -> None:
    page.click("#in-mask")
    page.click('#grid [data-row="0"][data-column="1"]')
    assert page.mask()[0] == [1, 0] + [1] * 5 + [0] * 3
    cells = page.all('#grid [data-row="1"]')
    drag = ActionChains(page.driver).click_and_hold(cells[2])
    drag.move_to_element(cells[3]).move_to_element(cells[4]).release().perform()
    assert page.mask()[1] == [1, 1, 0, 0, 0, 1, 1, 1, 0, 0]
    assert page.text("#counts") == "2 rows, 11 tokens, 9 pads"
    assert page.all("#view-inside.stale")
    assert page.text("#verdict") == CHANGED
    assert page.texts("#ways li") == []
    page.click("#send")
    assert not page.all("#view-inside.stale")
    assert page.texts("#of-cost dd")[:2] == ["11", "9"]
    assert page.texts(".strips .hatch") == ["1 pad, not computed", "3 pads, not computed"]
    assert page.text("#verdict").startswith("Equal. ")


def test_a_row_of_pads_alone_is_answered(driver: Any, url: str) -> None:
    page = Playground(driver, f"{url}{TEXTS}masked-lm&task=sparse")
    page.click("#in-mask")
    buttons = "document.querySelectorAll('#grid [data-row=\"0\"][aria-pressed=true]')"
    page.run(f"for (const one of {buttons}) one.click()")
    assert sum(page.mask()[0]) == 0
    page.click("#send")
    assert page.texts(".error.shown") == []
    assert page.text("#verdict") == "This row has no real token."
    assert page.texts("#of-cost dd")[:2] == ["8", "12"]
    assert page.texts(".strips .hatch") == ["10 pads, not computed"]
    assert page.console() == []


def test_pads_are_laid_out_on_each_side(page: Playground) -> None:
    page.click("#in-mask")
    for place, row in {
        "left": [0] * 3 + [1] * 7,
        "holes": [1, 0, 1, 1, 0, 1, 1, 1, 0, 1],
        "none": [1] * 7,
        "right": [1] * 7 + [0] * 3,
    }.items():
        page.choose("place", place)
        assert page.mask()[0] == row


def test_a_verdict_is_of_the_request_that_is_shown(page: Playground) -> None:
    page.run(HELD)
    for button in ("again", "send"):
        page.run(f"document.getElementById('{button}').click()")  # answered after the change
        page.until(lambda: page.run("return held.length"))
        page.run("document.querySelector('#grid button').click(); held.forEach((go) => go())")
        page.settled()
        assert page.text("#verdict") == CHANGED
        page.run("held.length = 0")
    assert page.all("#view-inside.stale")
    assert page.texts("#of-cost dd")[0] == "15"  # not the answer to 14 tokens
    page.write("lines", " ")
    page.click("#run")
    assert page.text("#verdict") == "There is no text to look into."
    assert page.mask() == []


def test_errors_of_the_grid_stand_beside_it(page: Playground) -> None:
    page.run("window.fetch = async () => new Response('{}')")
    for button, where in (("#again", "ways"), ("#send", "mask")):
        page.click(f"#in-{where}")
        page.click(button)
        message = page.text("#inside-error.shown strong")
        assert message.startswith("The answer of POST v1/infer is not")
        assert page.text("#verdict") == "Not compared: the request failed."


def test_the_grid_is_reached_by_keys(page: Playground) -> None:
    page.run("document.getElementById('tab-inside').focus()")
    page.press(Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.run("return document.activeElement.id") == "in-ways"
    page.press(Keys.ARROW_RIGHT)
    assert page.find("#of-mask").is_displayed()
    page.find("#spare").send_keys(Keys.TAB)
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, " ")
    assert page.mask()[1] == [1, 1, 0] + [1] * 5 + [0] * 2
    assert page.text("#status").endswith("row 2: pad")
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
