"""The playground, driven in a browser as a reader would: what it asks, says and shares."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.support import web

pytest.importorskip("selenium", reason="selenium is not installed: `make browser`")

from selenium.webdriver import Keys

from tests.page.conftest import KEY
from tests.support.browser import before_load, requested
from tests.support.pages import Playground
from tests.support.people.unrecognized import NUM_FEATURES

AXE = Path(os.environ.get("AXE", "build/axe")) / "node_modules/axe-core/axe.min.js"
LINES = "return document.getElementById('lines').value"
# What the list of models says is changed by `entry => ...` before the page reads it.
MODELS = """
const real = window.fetch;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (!String(asked[0]).endsWith("/v1/models")) return answer;
  const listed = await answer.json();
  listed.data.forEach((entry) => {%s});
  return new Response(JSON.stringify(listed));
};
"""
NO_TOKENIZER = MODELS % "entry.inputs = ['input_ids', 'attention_mask']"
# In int8 the labels come in the opposite order.
INT8 = """
const asked = window.fetch;
window.fetch = async (address, options) => {
  const body = options.body && JSON.parse(options.body);
  if (body?.precision !== "int8") return asked(address, options);
  delete body.precision;
  const answer = await (await asked(address, {...options, body: JSON.stringify(body)})).json();
  for (const found of answer.results.slice(0, 1)) found.reverse();
  return new Response(JSON.stringify(answer));
};
"""
TASKS = {
    "embed": "embedder", "rerank": "reranker", "classify": "classifier", "tag": "tagger",
    "fill_mask": "masked-lm", "sparse": "masked-lm", "complete": "gpt", "multi_vector": "colbert",
}  # fmt: skip


@pytest.fixture
def page(driver: Any, url: str) -> Iterator[Playground]:
    page = Playground(driver, url)
    yield page
    assert page.console() == []


def test_it_has_answered_when_it_is_loaded(driver: Any, url: str) -> None:
    driver.get("about:blank")
    requested(driver)
    page = Playground(driver, url)
    assert page.text(".headline").startswith("Nearest: texts ")
    sent = requested(driver)
    assert {urlsplit(address).netloc for address in sent} - {""} == {urlsplit(url).netloc}
    assert not [address for address in sent if "/inside/" in address or "/share/" in address]
    assert page.console() == []


@pytest.mark.parametrize(("task", "model"), TASKS.items())
def test_a_model_shows_its_own_task_first(page: Playground, task: str, model: str) -> None:
    page.select("model", model)
    if task != "sparse":
        assert page.run("return document.getElementById('task').value") == task
    assert page.text(".headline")
    assert page.texts(".error.shown") == []


def test_a_task_that_a_model_lacks_says_how_to_export_it(page: Playground) -> None:
    for task, words in (("Rerank", "one label for a pair"), ("Attention", "with a lens")):
        page.select("task", task)
        assert words in page.text("#answer")
        assert page.text("#answer code").startswith("addnorm export FOLDER ")
        assert not page.find("#after").is_displayed()
    assert page.text("#answer code").endswith(" --lens")


def test_a_model_without_a_tokenizer_starts_in_ids(driver: Any, url: str) -> None:
    with before_load(driver, NO_TOKENIZER):
        page = Playground(driver, f"{url}#model=reranker&task=rerank")
        assert page.run("return document.querySelector('[name=kind]:checked').value") == "ids"
        assert "has no tokenizer" in page.text("#answer")
        page.select("model", "gpt")
        assert page.all(".lp")
        assert page.console() == []


@pytest.mark.parametrize(
    ("model", "task", "kind", "answer", "path"),
    [
        (
            "shaped", "tensors", "ids",
            "4 tensors: rows [3, S, 5], scores [3, S], mean [3, 5], odds [3].", "/v1/infer",
        ),
        ("series", "tensors", "vectors", "1 tensor: output [2, S, 3].", "/v1/infer"),
        ("labelled", "classify", "texts", "Text 1: ", "/v1/classify"),
        ("embeds", "embed", "texts", "Nearest: texts ", "/v1/embeddings"),
    ],
)  # fmt: skip
def test_a_graph_as_its_authors_wrote_it_has_the_form_and_the_view_that_fit(
    driver: Any, written_url: str, model: str, task: str, kind: str, answer: str, path: str
) -> None:
    page = Playground(driver, f"{written_url}#model={model}")
    assert page.run("return document.getElementById('task').value") == task
    assert page.run("return document.querySelector('[name=kind]:checked').value") == kind
    assert page.text("#answer .headline").startswith(answer)
    page.click("#tab-copy")
    assert f"{written_url}{path}" in page.text("#code")
    page.click("#tab-inside")
    verdict = "this model takes vectors" if kind == "vectors" else "the same in all five answers"
    assert verdict in page.text("#verdict")
    shown = "return document.body.innerText + document.getElementById('lines').value"
    assert not re.search("NaN|undefined", page.run(shown))
    assert page.texts(".error.shown") == []
    assert page.console() == []


def test_tensors_are_those_of_the_answer(driver: Any, written_url: str, url: str) -> None:
    page = Playground(driver, f"{written_url}#model=shaped")
    rows = [list(map(int, line.split())) for line in page.run(LINES).split("\n")]
    sent = {"model": "shaped", "input_ids": rows}
    answer = web.post(f"{written_url}/v1/infer", json=sent).json()
    shown = [float(cell) for cell in page.texts(".result:last-child td")]
    assert shown == pytest.approx(answer["odds"], rel=1e-3)
    page.select("task", "Rerank")
    assert "as its authors wrote it" in page.text("#answer")
    for name, lines, words in (
        ("series", "[[1, 2], [3]", "[[1, 2], [3] is no list of vectors"),
        ("series", "[[1, 2]]", f"series/1 takes vectors of {NUM_FEATURES} numbers"),
        ("shaped", "1 99", "ids of shaped/1 are 0 to "),
    ):
        page = Playground(driver, f"{written_url}#model={name}&lines={quote(lines)}")
        assert words in page.text("#error strong")
    page.console()
    for name in ("embedder", "gpt"):
        page = Playground(driver, f"{url}#model={name}&task=tensors")
        assert page.text(".headline").startswith("1 tensor: pooled ["), "of texts the vector"
        assert page.console() == []


def test_an_emptied_box_empties_the_answer(page: Playground) -> None:
    page.find("#lines").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE)
    page.settled()
    assert page.text("#answer") == "Type a text, and its answer comes here."
    assert not page.find("#after").is_displayed()
    page.click("#run")
    assert page.texts(".error.shown") == []
    page.write("lines", "pads")
    page.click("#run")
    assert page.text(".headline") == "Type a second text, and the two are compared."


def test_typed_texts_come_back_from_ids(page: Playground) -> None:
    page.write("lines", "pads are\ndropped")
    page.click("#run")
    page.choose("kind", "ids")
    value = "return document.getElementById('lines').value"
    assert page.run(value) == "2 16 4 5 3\n2 16 6 7 3"
    page.choose("kind", "texts")
    assert page.run(value) == "pads are\ndropped"


def test_a_changed_request_is_said_to_be_changed(page: Playground) -> None:
    page.find("#lines").send_keys(" pads")
    page.settled()
    assert page.find("#stale").is_displayed()
    page.click("#run")
    assert not page.find("#stale").is_displayed()


def test_it_shows_where_a_text_was_cut(driver: Any, url: str) -> None:
    long = f"{'are ' * 38}pads dropped"
    for model, read in (("classifier", 38), ("reranker", 36)):
        page = Playground(driver, f"{url}#model={model}&query=the&lines=pads%0A{quote(long)}")
        message = page.text("#cuts")
        assert message.startswith("Text 2 was cut: ")
        assert "the model reads 40 tokens." in message
        assert page.text("#cuts s").startswith(long[4 * read - 1 :][:20])
        assert page.text("#answer .cut") == " cut"
        assert page.console() == []


def test_errors_stand_beside_the_texts_in_the_servers_words(page: Playground, url: str) -> None:
    page.choose("kind", "ids")
    page.write("lines", "2 4 99999")
    page.click("#run")
    sent = {"model": "embedder", "input": [[2, 4, 99999]]}
    refused = web.post(f"{url}/v1/embeddings", json=sent).json()["error"]
    assert page.text("#error strong") == refused["message"]
    assert page.find("#error").is_displayed()
    about = page.text("#error .help")
    assert about.startswith("400 ")
    assert len(about.rpartition(" ")[2]) == 32
    assert page.find("#error").get_attribute("role") == "alert"
    assert page.text("#answer") == ""
    page.write("lines", "2 four")
    page.click("#run")
    assert page.text("#error strong").startswith("four is no token id")
    page.write("lines", "[[2, 4, 3], [2, 7, 3]]")
    page.find("#lines").send_keys(Keys.CONTROL + Keys.ENTER)
    page.settled()
    assert page.text("#error") == ""
    assert page.text(".headline").startswith("Nearest: texts 1 and 2")
    (logged,) = page.console()
    assert "status of 400" in logged


def test_a_server_that_is_gone_is_said_where_its_answer_would_be(page: Playground) -> None:
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    page.click("#run")
    online = {**offline, "offline": False}
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", online)
    assert "does not answer" in page.text("#answer-error.shown")
    page.click("#run")
    assert page.text("#answer-error") == ""
    assert page.text(".headline")
    assert "INTERNET_DISCONNECTED" in "".join(page.console())


@pytest.mark.parametrize("answer", ["{}", "", "<html>", '{"data": [], "input_ids": 3}'])
def test_an_answer_that_is_not_expected_is_said(page: Playground, answer: str) -> None:
    page.run(f"window.fetch = async () => new Response({json.dumps(answer)})")
    page.click("#run")
    assert page.text("#answer-error strong").startswith("The answer of ")
    assert page.text("#status") == ""


def test_what_int8_changes_is_said_of_this_answer(driver: Any, url: str) -> None:
    with before_load(driver, MODELS % "entry.precisions.push('int8')" + INT8):
        page = Playground(driver, f"{url}#model=classifier&lines=pads%0Aare")
        best, *_, worst = page.texts(".bars .name")[:3]
        assert page.text("#compare") == "What does int8 change?"
        page.click("#compare")
        assert page.text("#changes .headline") == (
            f"int8 decides otherwise in 1 of 2. First: text 1, {best} → {worst}."
        )
        assert page.texts("#changes td:last-child")[0] == "0"  # the same numbers
        assert page.texts("#changes thead th")[1:] == ["fp32", "int8", "change"]


def test_a_link_has_the_state_and_no_server_sees_it(driver: Any, url: str) -> None:
    page = Playground(driver, f"{url}#model=reranker")
    page.write("query", "the text & more")
    page.write("lines", "pads are\n50 % dropped")
    page.click("#run")
    answer = page.text("#answer")
    page.click("#link")
    address = page.run("return location.href")
    requested(driver)
    again = Playground(driver, address)
    assert again.text("#answer") == answer
    assert again.run("return document.getElementById('lines').value") == "pads are\n50 % dropped"
    assert not [sent for sent in requested(driver) if "dropped" in sent.partition("#")[0]]
    assert "whoever has it can read them" in again.text("#link-note")
    assert again.console() == []


def test_the_answer_is_saved_as_a_picture(page: Playground) -> None:
    hook = """window.kept = [];
    const real = URL.createObjectURL;
    URL.createObjectURL = (blob) => (kept.push(blob), real.call(URL, blob));
    HTMLAnchorElement.prototype.click = function () { window.file = this.download; };"""
    page.run(hook)
    page.click("#svg")
    read = "kept[0].text().then(arguments[0])"
    svg = page.driver.execute_async_script(read)
    assert page.run("return file") == "embedder-embed.svg"
    assert "Nearest: texts " in svg
    assert svg.count("<circle") == 4
    assert "foreignObject" not in svg
    page.click("#png")
    page.until(lambda: page.run("return file") == "embedder-embed.png")
    assert page.run("return kept.at(-1).type") == "image/png"
    assert page.run("return kept.at(-1).size") > 5_000


def test_code_is_of_the_task_with_its_texts(page: Playground) -> None:
    page.click("#tab-copy")
    assert page.texts("#languages span") == [
        "curl",
        "httpx",
        "JavaScript",
        "OpenAI",
        "Cohere",
        "TEI",
    ]
    for language in ("curl", "httpx", "JavaScript", "OpenAI", "Cohere", "TEI"):
        page.choose("language", language)
        assert "Where can I change my password?" in page.text("#code")
    page.choose("language", "httpx")
    page.select("model", "reranker")
    assert "/v1/rerank" in page.text("#code")
    assert page.run("return document.querySelector('[name=language]:checked').value") == "httpx"
    page.write("query", "")
    page.find("#lines").clear()
    page.settled()
    page.click("#run")
    assert page.text("#code-note") == "There is nothing to send."


def test_the_keyboard_is_enough(page: Playground) -> None:
    page.run("document.body.tabIndex = -1; document.body.focus()")

    def tab_to(what: str) -> None:
        for _ in range(30):
            page.press(Keys.TAB)
            if page.run("return document.activeElement.matches(arguments[0])", what):
                return
        raise AssertionError(f"the tab key does not reach {what}")

    tab_to(".skip")
    page.select("model", "gpt")
    page.find(".skip").send_keys(Keys.ENTER)
    page.settled()
    assert page.run("return document.getElementById('model').value") == "gpt"
    page.select("model", "embedder")
    tab_to("#lines")
    page.press(Keys.CONTROL, Keys.END, Keys.NULL, Keys.ENTER, "a fifth text")
    tab_to("#run")
    page.press(Keys.ENTER)
    assert page.text(".result small") == "cosines of 5 texts"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.run(outline) == "solid"
    tab_to("#tab-answer")
    tab_to(".map g")
    page.press(Keys.ARROW_RIGHT)
    assert page.text(".on-map").startswith("2: ")
    page.run("document.getElementById('tab-answer').focus()")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.text("#verdict").startswith("Equal. ")


CERTIFICATE = "/models/embedder/certificate"
VIEWS = [f"/#model={model}&task={task}" for task, model in TASKS.items()] + [
    "/#tab=tab-inside", "/#tab=tab-copy", CERTIFICATE,
]  # fmt: skip


@pytest.mark.parametrize("path", VIEWS)
def test_the_pages_fit_a_phone(driver: Any, url: str, path: str) -> None:
    page = Playground(driver, url + path, width=360)
    width, of_window = page.run(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert width <= of_window <= 360


@pytest.mark.parametrize("path", VIEWS)
def test_axe_finds_nothing(driver: Any, url: str, path: str) -> None:
    if not AXE.exists():
        pytest.skip(f"there is no {AXE}: `make browser` installs axe-core")
    for scheme, rules in (("light", None), ("dark", ["color-contrast"])):
        page = Playground(driver, url + path, scheme=scheme)
        page.run(AXE.read_text())
        script = "axe.run(arguments[0] ? {runOnly: arguments[0]} : {}).then(arguments[1])"
        for violation in driver.execute_async_script(script, rules)["violations"]:
            raise AssertionError(
                f"{violation['id']}: {violation['nodes'][0]['html']}: {violation['help']}"
            )


def test_a_key_is_asked_for_and_kept_out_of_addresses(driver: Any, closed_url: str) -> None:
    driver.get("about:blank")
    requested(driver)
    page = Playground(driver, closed_url)
    refused = web.get(f"{closed_url}/v1/models").json()["error"]["message"]
    assert page.text("#key-error strong") == refused
    assert page.run("return document.activeElement.id") == "key"
    page.press(KEY, Keys.ENTER)
    assert page.text("#key-error") == ""
    assert page.text(".headline").startswith("Nearest: texts ")
    page.click("#tab-copy")
    for language in ("curl", "httpx", "JavaScript", "OpenAI", "Cohere", "TEI"):
        page.choose("language", language)
        assert KEY not in page.text("#code")
        assert "ADDNORM_API_KEY" in page.text("#code")
    page.click("#certificate")
    assert page.text("#title") == "Certificate of embedder/1"
    assert not [sent for sent in requested(driver) if KEY in sent]
    assert {message.count("status of 401") for message in page.console()} == {1}
