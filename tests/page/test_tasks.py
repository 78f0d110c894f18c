"""Each task's answer on the playground, beside what the server answers."""

import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support import web

pytest.importorskip("selenium", reason="selenium is not installed: `make browser`")

from tests.support.browser import before_load
from tests.support.pages import Playground

TEXTS = ["pads are dropped.", "padding costs nothing", "the same text, pads are dropped."]

# Places of entities count characters, of which one may be two units of a string in JavaScript.
ENTITIES = """
const real = window.fetch;
const entity = {entity_group: "LOC", score: 0.75, word: "Rome", start: 2, end: 6};
window.fetch = async (address, options) => String(address).endsWith("/v1/tag")
  ? new Response(JSON.stringify({results: [[entity]]})) : real(address, options);
"""
# A model with a lens takes seconds to export. Here token 3 takes all from token 5.
LENS = """
const real = window.fetch;
window.fetch = async (address, options) => {
  const sent = options.body && JSON.parse(options.body);
  if (sent?.attentions) {
    window.asked = sent;
    const ids = sent.input_ids[0];
    const share = (from, to) => from === 2 ? Number(to === 4) : 1 / ids.length;
    const rows = ids.map((_, from) => ids.map((_, to) => share(from, to)));
    return new Response(JSON.stringify({attentions: [[[rows]]]}));
  }
  const answer = await real(address, options);
  if (!String(address).endsWith("/v1/models")) return answer;
  const listed = await answer.json();
  for (const entry of listed.data) entry.outputs.push("hidden_states", "attentions");
  return new Response(JSON.stringify(listed));
};
"""


@pytest.fixture
def opened(driver: Any, url: str) -> Iterator[Any]:
    """Opens the page with a request; nothing may go wrong on it."""

    def opened(model: str, task: str, texts: list[str] = TEXTS, **fields: str) -> Playground:
        fields_sent = {"model": model, "task": task, "lines": "\n".join(texts), **fields}
        return Playground(driver, f"{url}#{urlencode(fields_sent)}")

    yield opened
    page = Playground.__new__(Playground)
    page.driver = driver
    assert page.texts(".error.shown") == []
    assert page.console() == []


def asked(url: str, path: str, **body: Any) -> Any:
    return web.post(url + path, json=body).raise_for_status().json()


def cosine(one: list[float], other: list[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.hypot(*one) / math.hypot(*other)


def shown(page: Playground, of: str = "#answer") -> list[float]:
    """Numbers beside bars, of shares in percent or not."""
    values = page.texts(f"{of} .bars li > b")
    return [float(text.removesuffix(" %")) / (100 if "%" in text else 1) for text in values]


def near(expected: list[float]) -> Any:
    return pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_similarity(opened: Any, url: str) -> None:
    page = opened("embedder", "embed", query="the text", prompt="document", **{"query-prompt": ""})
    texts = asked(url, "/v1/embeddings", model="embedder", input=TEXTS, prompt_name="document")
    query = asked(url, "/v1/embeddings", model="embedder", input=["the text"])
    vectors = [entry["embedding"] for entry in texts["data"]]
    rows = [[cosine(vector, other) for other in vectors] for vector in vectors]
    cells = [float(text) for text in page.texts(".similar td")]
    assert cells == pytest.approx([value for row in rows for value in row], abs=0.006)
    nearest = max((rows[a][b], a, b) for a in range(3) for b in range(a + 1, 3))
    of_query, of_pairs = page.texts(".headline")
    assert of_pairs.startswith(f"Nearest: texts {nearest[1] + 1} and {nearest[2] + 1}")
    assert of_query.startswith("Nearest to the query: text ")
    by_query = sorted(
        (cosine(query["data"][0]["embedding"], vector) for vector in vectors), reverse=True
    )
    assert shown(page) == near(by_query)
    assert len(page.all(".map circle")) == 3
    assert len(page.all(".map .query")) == 1
    page.run("document.querySelectorAll('.map g')[2].focus()")
    assert page.text(".on-map") == f"3: {TEXTS[2]}"


def test_many_texts_are_compared_in_a_picture(opened: Any) -> None:
    page = opened("embedder", "embed", [f"{'a ' * (at % 30)}b" for at in range(60)])
    assert page.all("canvas.similar")
    assert page.texts(".similar td") == []
    assert len(page.all(".map circle")) == 60
    assert shown(page)[0] == near(1)  # equal texts


def test_rerank(opened: Any, url: str) -> None:
    page = opened("reranker", "rerank", query="the text")
    answer = asked(url, "/v1/rerank", model="reranker", query="the text", documents=TEXTS)
    results = answer["results"]
    assert shown(page) == near([entry["relevance_score"] for entry in results])
    assert page.texts(".bars .said") == [TEXTS[entry["index"]] for entry in results]
    assert page.text(".headline").startswith(f"Best: text {results[0]['index'] + 1}, ")


def test_classify(opened: Any, url: str) -> None:
    page = opened("classifier", "classify")
    results = asked(url, "/v1/classify", model="classifier", texts=TEXTS)["results"]
    assert page.texts(".bars .name") == [entry["label"] for label in results for entry in label]
    assert shown(page) == near([one["score"] for found in results for one in found])
    assert page.text(".headline").startswith(f"Text 1: {results[0][0]['label']}")


def test_entities(opened: Any, driver: Any) -> None:
    with before_load(driver, ENTITIES):
        page = opened("tagger", "tag", ["\U0001f3db Rome is old."])
    assert page.text(".tagged mark") == "Rome LOC 0.7500"
    assert page.text(".tagged").endswith(" is old.")
    assert page.text(".headline") == "1 entity: 1 LOC."


def test_fill_masks(opened: Any, url: str) -> None:
    texts = ["pads are [MASK].", "[MASK] costs [MASK]"]
    page = opened("masked-lm", "fill_mask", texts)
    results = asked(url, "/v1/fill-mask", model="masked-lm", texts=texts, top_k=5)["results"]
    words = [candidate for masks in results for candidates in masks for candidate in candidates]
    assert len(words) == 15
    assert page.texts(".bars .name") == [word["token_str"] for word in words]
    assert shown(page) == near([word["score"] for word in words])


def test_weighted_words(opened: Any, url: str) -> None:
    page = opened("masked-lm", "sparse", TEXTS[:1])
    (vector,) = asked(
        url, "/v1/infer", model="masked-lm", texts=TEXTS[:1], outputs=["sparse"],
        sparse={"top_k": 12},
    )["sparse"]  # fmt: skip
    tokens = asked(url, "/v1/tokenize", model="masked-lm", input_ids=[vector["indices"]])
    token_ids = asked(url, "/v1/tokenize", model="masked-lm", texts=TEXTS[:1])["input_ids"][0]
    entries = sorted(
        zip(vector["values"], tokens["tokens"][0], vector["indices"], strict=True), reverse=True
    )
    assert shown(page) == near([weight for weight, _, _ in entries])
    expected = [word if index in token_ids else f"{word} added" for _, word, index in entries]
    assert page.texts(".bars .name") == expected
    assert any(word.endswith(" added") for word in expected)


def test_log_probabilities(opened: Any, url: str) -> None:
    texts = ["the same text", "again and again"]
    page = opened("gpt", "complete", texts)
    answer = asked(
        url, "/v1/completions", model="gpt", prompt=texts, echo=True, logprobs=1, max_tokens=1,
        temperature=0,
    )  # fmt: skip
    logprobs = [choice["logprobs"] for choice in answer["choices"]]
    assert page.texts(".lp") == [token for entry in logprobs for token in entry["tokens"][:-1]]
    titles = page.run("return [...document.querySelectorAll('.lp')].map((one) => one.title)")
    logs = [log for entry in logprobs for log in entry["token_logprobs"][:-1]]
    for title, log in zip(titles, logs, strict=True):
        assert title.startswith("the first" if log is None else "-")
        if log is not None:
            assert float(title.partition(";")[0]) == near(log)
    total = sum(log for log in logprobs[0]["token_logprobs"][1:-1])
    headline = page.text(".headline").removeprefix("Text 1: ").partition(" ")[0]
    assert float(headline) == near(total)
    shades = "return [...document.querySelectorAll('.lp')].map(one => one.style.cssText)"
    assert len(set(page.run(shades))) > 2
    page.run("document.querySelector('details').open = true")
    page.until(lambda: len(page.all("details td")) == 2 * (len(logprobs[0]["tokens"]) - 1))


def test_token_matches(opened: Any, url: str) -> None:
    page = opened("colbert", "multi_vector", query="the same, pads are text")

    def vectors(kind: str, texts: list[str]) -> list[list[list[float]]]:
        return asked(  # type: ignore[no-any-return]
            url, "/v1/infer", model="colbert", texts=texts, outputs=["token_vectors"],
            input_type=kind, normalize=True, truncate=True,
        )["token_vectors"]  # fmt: skip

    (query,) = vectors("query", ["the same, pads are text"])
    scores = {}
    for text, document in zip(TEXTS, vectors("document", TEXTS), strict=True):
        scores[text] = [max(cosine(token, other) for other in document) for token in query]
    best = sorted(TEXTS, key=lambda text: -sum(scores[text]))
    assert page.texts("h4 .said") == best
    assert shown(page) == near([value for text in best for value in scores[text]])
    names = page.texts(".of-text:first-child .match b") or page.texts(".match b")[: len(query)]
    # the prompt, as much of the query as the model takes, the special token at the end
    assert names[: len(query)] == ["[CLS]", "the", "text", "the", "same", "[SEP]"]
    matched = {name.partition(" → ")[2] for name in page.texts(".match")}
    assert not matched & {".", ",", "none"}  # the authors leave them out
    assert not [name for name in matched if name.startswith("token ")]


def test_attention(opened: Any, driver: Any) -> None:
    with before_load(driver, LENS):
        page = opened("embedder", "attention", ["pads are dropped"])
    assert page.texts(".arcs text") == ["[CLS]", "pads", "are", "drop", "##ped", "[SEP]"]
    page.run("document.querySelectorAll('.arcs text')[2].focus()")
    assert page.text(".of-text .headline") == "are takes most from ##ped, 100.0 %."
    assert len(page.all(".arcs .chosen path")) == 1
    assert shown(page)[0] == 1
    page.select("lens-head", "2")
    page.until(lambda: page.run("return asked.attentions") == {"layers": [0], "heads": [2]})
    assert "layer 0, head 2" in page.text("#answer h3")
