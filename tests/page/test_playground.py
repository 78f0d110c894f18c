"""The playground, driven in a browser as a reader would: what it sends, shows and says."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import web

pytest.importorskip("selenium", reason="selenium is not installed: `make browser`")

from selenium.webdriver import ActionChains, Keys

from tests.page.conftest import KEY
from tests.support.browser import requested
from tests.support.pages import Playground

AXE = Path(os.environ.get("AXE", "build/axe")) / "node_modules/axe-core/axe.min.js"
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

# A model with a lens, which takes seconds to export: its attention is a tenth of layer and head.
LENS = """
const real = window.fetch;
window.fetch = async (address, options) => {
  const sent = options.body && JSON.parse(options.body);
  if (sent?.attentions) {
    window.asked = sent;
    const ids = sent.input_ids[0];
    const [layer, head] = [sent.attentions.layers[0], sent.attentions.heads[0]];
    const weight = (layer + head) / 10;
    if (layer === 1 && head === 0) await new Promise((later) => window.late = later);
    const data = {attentions: [[[ids.map(() => ids.map(() => weight))]]],
                  hidden_states: [[ids.map(() => [1, -1])]]};
    return new Response(JSON.stringify(data));
  }
  const answer = await real(address, options);
  if (!String(address).endsWith("/v1/models")) return answer;
  const listed = await answer.json();
  for (const entry of listed.data) entry.outputs.push("hidden_states", "attentions");
  return new Response(JSON.stringify(listed));
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

# Texts may have 8 tokens.
SHORT = """
const real = window.fetch;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (!String(asked[0]).endsWith("/v1/models")) return answer;
  const listed = await answer.json();
  for (const entry of listed.data) entry.limits.max_text_tokens = 8;
  return new Response(JSON.stringify(listed));
};
"""

CHANGED = "Not compared: the request has changed. Run again."

# Places of entities count characters, of which one may be two units of a string in JavaScript.
ENTITIES = """
const real = window.fetch;
const entity = {entity_group: "LOC", score: 0.75, word: "Rome", start: 2, end: 6};
window.fetch = async (address, options) => String(address).endsWith("/v1/tag")
  ? new Response(JSON.stringify({results: [[entity]]})) : real(address, options);
"""


@pytest.fixture
def page(driver: Any, url: str) -> Iterator[Playground]:
    page = Playground(driver, url)
    yield page
    assert page.console() == []


def test_it_has_run_when_it_is_loaded(driver: Any, url: str) -> None:
    driver.get("about:blank")
    requested(driver)
    page = Playground(driver, url)
    assert page.text("#verdict").startswith("Equal. ")
    assert page.mask() == [[1] * 7 + [0] * 3, [1] * 8 + [0] * 2]
    assert len(page.all("canvas")) == 7
    assert page.texts(".strips .hatch") == ["3 pads, not computed"]
    assert {urlsplit(sent).netloc for sent in requested(driver)} == {urlsplit(url).netloc}
    assert page.console() == []


def test_what_it_shows_is_what_the_server_answers(page: Playground, url: str) -> None:
    sent = json.loads(page.text("#code").split("-d '")[1].removesuffix("'"))
    answer = web.post(f"{url}/v1/infer", json=sent)
    stats, usage = answer.json()["norm_stats"], answer.json()["usage"]
    for table, name in ((1, "mean"), (2, "rstd")):
        cells = page.texts(f".pair > div:nth-child({table}) tr:not(.pad) td")
        shown = [float(cell) for cell in cells]
        expected = [value for token in stats[name][0][:7] for value in token]
        assert shown == pytest.approx(expected, rel=0.06, abs=1e-9)
    facts = dict(zip(page.texts("#answer dt"), page.texts("#answer dd"), strict=True))
    assert facts["Fingerprint"] == answer.headers["x-addnorm-fingerprint"]
    assert (facts["Real tokens"], facts["Pads dropped"]) == ("15", "5")
    assert (usage["real_tokens"], usage["pad_tokens"]) == (15, 5)
    stages = [text.split()[0] for text in page.texts(".times li")]
    assert stages == ["decode", "queue", "infer", "encode"]


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
    page.click('#grid [data-row="0"][data-column="1"]')
    assert page.mask()[0] == [1, 0] + [1] * 5 + [0] * 3
    cells = page.all('#grid [data-row="1"]')
    drag = ActionChains(page.driver).click_and_hold(cells[2])
    drag.move_to_element(cells[3]).move_to_element(cells[4]).release().perform()
    assert page.mask()[1] == [1, 1, 0, 0, 0, 1, 1, 1, 0, 0]
    assert page.text("#counts") == "2 rows, 11 tokens, 9 pads"
    assert page.find("#stale").is_displayed()
    assert page.text("#verdict") == CHANGED
    assert page.texts("#ways li") == []
    page.click("#run")
    assert not page.find("#stale").is_displayed()
    assert page.texts("#answer dd")[:2] == ["11", "9"]
    assert page.texts(".strips .hatch") == ["1 pad, not computed", "3 pads, not computed"]
    assert page.text("#verdict").startswith("Equal. ")


def test_a_row_of_pads_alone_is_answered(page: Playground) -> None:
    page.select("model", "masked-lm")
    buttons = "document.querySelectorAll('#grid [data-row=\"0\"][aria-pressed=true]')"
    page.run(f"for (const one of {buttons}) one.click()")
    assert sum(page.mask()[0]) == 0
    page.click("#run")
    assert page.text("#error") == ""
    assert page.text("#verdict") == "This row has no real token."
    assert page.texts("#answer dd")[:2] == ["8", "12"]
    assert page.texts(".strips .hatch") == ["10 pads, not computed"]


def test_pads_are_laid_out_on_each_side(page: Playground) -> None:
    for place, row in {
        "left": [0] * 3 + [1] * 7,
        "holes": [1, 0, 1, 1, 0, 1, 1, 1, 0, 1],
        "none": [1] * 7,
        "right": [1] * 7 + [0] * 3,
    }.items():
        page.choose("place", place)
        assert page.mask()[0] == row


def test_the_keyboard_is_enough(driver: Any, url: str) -> None:
    page = Playground(driver, url)
    page.run("document.body.tabIndex = -1; document.body.focus()")

    def tab_to(what: str) -> None:
        for _ in range(40):
            page.press(Keys.TAB)
            if page.run("return document.activeElement.matches(arguments[0])", what):
                return
        raise AssertionError(f"the tab key does not reach {what}")

    tab_to(".skip")
    tab_to("#lines")
    page.press(Keys.END, " same")
    page.until(lambda: len(page.mask()[1]) == 9 + 2)
    tab_to('input[name="place"]')
    page.press(Keys.ARROW_RIGHT)
    assert page.mask()[0][0] == 0
    tab_to("#grid button")
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, " ")
    assert page.mask()[1] == [0, 0, 1, 0] + [1] * 7
    assert page.text("#status").endswith("row 2: pad")
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.run(outline) == "solid"
    tab_to("#run")
    page.press(Keys.ENTER)
    assert page.texts("#answer dd")[0] == "15"
    tab_to("#bits")
    page.press(" ")
    assert page.text("#verdict") == "Not compared: the switch is off."
    assert page.console() == []


def test_errors_are_said_in_the_servers_words(page: Playground, url: str) -> None:
    page.choose("kind", "ids")
    page.write("lines", "2 4 99999")
    page.click("#run")
    sent = json.loads(page.text("#code").split("-d '")[1].removesuffix("'"))
    refused = web.post(f"{url}/v1/infer", json=sent).json()["error"]
    assert page.text("#error strong") == refused["message"]
    about = page.text("#error .help")
    assert about.startswith("400 invalid_input, request ")
    assert len(about.rpartition(" ")[2]) == 32
    assert page.find("#error").get_attribute("role") == "alert"
    assert page.text("#verdict").startswith("Not compared")
    page.write("lines", "2 four")
    page.click("#run")
    assert page.text("#error strong").startswith("four is no token id")
    page.write("lines", "[[2, 4, 5], [6, 7]]")
    page.find("#lines").send_keys(Keys.CONTROL + Keys.ENTER)
    page.settled()
    assert page.text("#error") == ""
    assert page.text("#counts").startswith("2 rows, 5 tokens")
    assert page.text("#verdict").startswith("Equal. ")
    (logged,) = page.console()
    assert "status of 400" in logged


def test_a_server_that_is_gone_is_said(page: Playground) -> None:
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    page.click("#run")
    online = {**offline, "offline": False}
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", online)
    assert "does not answer" in page.text("#error")
    assert page.text("#verdict") == "Not compared: the request failed."
    page.click("#again")
    assert page.text("#verdict").startswith("Equal. ")
    assert page.text("#error") == ""
    assert "INTERNET_DISCONNECTED" in "".join(page.console())


def test_a_verdict_is_of_the_request_that_is_shown(page: Playground) -> None:
    page.run(HELD)
    page.run("document.getElementById('again').click()")  # its answers come after the change
    page.until(lambda: page.run("return held.length"))
    page.run("document.querySelector('#grid button').click(); held.forEach((go) => go())")
    page.settled()
    assert page.text("#verdict") == CHANGED
    page.run("document.getElementById('run').click()")
    page.until(lambda: page.run("return held.length") > 1)
    page.run("document.querySelector('#grid button').click(); held.forEach((go) => go())")
    page.settled()
    assert page.text("#verdict") == CHANGED
    assert page.find("#stale").is_displayed()
    assert page.texts("#answer dd")[0] == "15"  # not the answer to 14 tokens
    page.write("lines", " ")
    page.click("#run")
    assert page.text("#error strong") == "There is no text: type one a line."
    assert page.text("#verdict") == "Not compared: the request failed."


@pytest.mark.parametrize("answer", ["{}", "", "<html>", '{"usage": {}, "activations": []}'])
def test_an_answer_that_is_not_expected_is_said(page: Playground, answer: str) -> None:
    page.run(f"window.fetch = async () => new Response({json.dumps(answer)})")
    for button in ("#run", "#again"):
        page.click(button)
        expected = "The answer of POST v1/infer is not what the page expects: "
        assert page.text("#error strong").startswith(expected)
        assert page.text("#verdict") == "Not compared: the request failed."
        assert page.text("#status") == ""


def test_what_openai_is_sent_is_what_the_page_sends(page: Playground) -> None:
    page.choose("language", "openai")
    assert '"Pads are dropped."' in page.text("#code")
    page.click('#grid [data-row="0"][data-column="1"]')
    assert '"Pads are dropped."' not in page.text("#code")
    ids = page.texts("#grid tr:first-child button[aria-pressed=true] .id")
    assert f"[{', '.join(ids)}]" in page.text("#code")
    page.run("for (const one of document.querySelectorAll('[aria-pressed=true]')) one.click()")
    assert page.text("#code") == ""
    assert page.text("#code-note") == "There is nothing to send: every token is masked."


def test_a_text_that_only_ids_can_carry_is_said_and_drawn_in_part(page: Playground) -> None:
    page.run(SHORT)
    page.click("#key-form button")
    page.write("lines", "are " * 34)
    page.click("#run")
    assert page.text("#lengths") == (
        "Text 1 has 36 tokens; requests with texts take 8 at most. The page sends token ids."
    )
    assert page.text("#verdict").startswith("Equal. ")
    assert len(page.all("canvas")) == 32
    titles = page.texts("#answer h3")
    assert titles
    assert all("the first 32 of 36 tokens" in title for title in titles)
    page.choose("language", "openai")
    assert "are are" not in page.text("#code")


PAGES = pytest.mark.parametrize("path", ["/", "/models/embedder/certificate"])


@PAGES
def test_the_pages_fit_a_phone(driver: Any, url: str, path: str) -> None:
    page = Playground(driver, url + path, width=360)
    width, of_window = page.run(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert width <= of_window <= 360


@PAGES
@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", ["color-contrast"])])
def test_axe_finds_nothing(
    driver: Any, url: str, path: str, scheme: str, rules: list[str] | None
) -> None:
    if not AXE.exists():
        pytest.skip(f"there is no {AXE}: `make browser` installs axe-core")
    page = Playground(driver, url + path, scheme=scheme)
    page.run(AXE.read_text())
    asked = "axe.run(arguments[0] ? {runOnly: arguments[0]} : {}).then(arguments[1])"
    for one in driver.execute_async_script(asked, rules)["violations"]:
        raise AssertionError(f"{one['id']}: {one['nodes'][0]['html']}: {one['help']}")


def test_a_key_is_asked_for_and_kept_out_of_addresses(driver: Any, closed_url: str) -> None:
    driver.get("about:blank")
    requested(driver)
    page = Playground(driver, closed_url)
    assert (
        page.text("#error strong") == web.get(f"{closed_url}/v1/models").json()["error"]["message"]
    )
    assert page.run("return document.activeElement.id") == "key"
    page.press(KEY, Keys.ENTER)
    assert page.text("#error") == ""
    assert page.text("#verdict").startswith("Equal. ")
    assert "$ADDNORM_API_KEY" in page.text("#code")
    for language in ("curl", "httpx", "openai", "tritonclient"):
        page.choose("language", language)
        assert KEY not in page.text("#code")
        assert "ADDNORM_API_KEY" in page.text("#code")
    page.click("#certificate")
    assert page.text("#title") == "Certificate of embedder/1"
    assert not [sent for sent in requested(driver) if KEY in sent]
    assert {message.count("status of 401") for message in page.console()} == {1}


def test_copied_code_runs(page: Playground) -> None:
    programs = []
    for place in ("holes", "none"):
        page.choose("place", place)
        page.choose("language", "curl")
        curl = subprocess.run(["bash", "-c", page.text("#code")], capture_output=True, check=True)
        assert json.loads(curl.stdout)["usage"]["real_tokens"] == 15
        for language in ("httpx", "openai", "tritonclient"):
            page.choose("language", language)
            programs.append(page.text("#code"))
    # in one process, as imports take seconds
    everything = f"for program in {programs!r}: exec(program, {{}})"
    command = [sys.executable, "-c", everything]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("'real_tokens': 15") == 2
    assert ended.stdout.count("'pooled': (2, ") == 2


def test_tasks_of_heads_are_shown(page: Playground) -> None:
    for model, title, shown in (
        ("reranker", "Rerank", ".bars li"),
        ("classifier", "Classify", ".bars li"),
        ("tagger", "Entities", ".said"),
        ("masked-lm", "Fill masks", ".bars li"),
    ):
        page.select("model", model)
        assert page.text("#error") == ""
        assert page.text("#verdict").startswith("Equal. ")
        assert title in page.text("#answer .result h3")
        assert page.all(f"#answer .result:first-child {shown}")
        assert page.texts("#answer .found") == []


def test_entities_are_marked_in_their_text(page: Playground) -> None:
    page.run(ENTITIES)
    page.select("model", "tagger")
    page.run("document.getElementById('lines').value = '\U0001f3db Rome is old.'")
    page.click("#run")
    assert page.text(".said mark") == "Rome LOC 0.7500"
    assert page.text(".said").endswith(" is old.")


def test_attention_and_hidden_states_of_a_lens_are_shown(driver: Any, url: str) -> None:
    before = {"source": f"{{{LENS}}}"}
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", before)
    try:
        page = Playground(driver, url)
        page.select("lens-layer", "1")
        page.select("lens-head", "2")
        page.until(lambda: set(page.texts(".square td")) == {"30"})
        # the answer for layer 1, head 0 comes last, and is of no interest by then
        driver.execute_async_script("late(); setTimeout(arguments[0], 50)")
        assert set(page.texts(".square td")) == {"30"}
        assert "layer 1, head 2" in page.text("h4:has(+ div .square)")
        assert len(page.all(".square td")) == 7 * 7
        asked = page.run("return window.asked")
        assert asked["attentions"] == {"layers": [1], "heads": [2]}
        assert asked["hidden_states"] == {"layers": [1]}
        assert (len(asked["input_ids"][0]), asked["precision"]) == (7, "fp32")
        assert len(page.all("canvas")) == 14
        assert page.console() == []
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
