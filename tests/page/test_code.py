"""The programs of *Copy as*, read back as their languages read them. Node runs the module."""

import ast
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node")
MODULE = Path(__file__).parents[2] / "service/page/code.js"
# the module as standard input has its requests: a list of [language, request]
RUN = """
import { LANGUAGES } from "./code.mjs";
let sent = "";
for await (const part of process.stdin) sent += part;
const made = JSON.parse(sent).map(([language, request]) => LANGUAGES[language](request));
console.log(JSON.stringify(made));
"""
TEXTS = [
    "1,000 euros, or 2,5",
    "a,b",
    'it\'s "quoted", \\ and $HOME, `pwd`',
    "[1,2],{}",
    "Größe,日本,😀\u2028,\u00a0",
    "tab\t,\nand\r\nlines",
    "null,true",
]
URL = "http://host:8000/a,b'c&d"
BODY: dict[str, Any] = {
    "model": "one,two's",
    "input_ids": [[101, 7592, 102], [101, 102]],
    "texts": [[text, "x,y"] for text in TEXTS],
    "outputs": ["logits", "pooled"],
    "logits": {"top_k": 5},
    "precision": "int8",
}
REQUEST = {
    "url": URL, "body": BODY, "sequences": BODY["input_ids"], "texts": TEXTS, "embeds": True,
    "takesTexts": True, "hasKey": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Language, or "ids" of openai -> code and note."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "run.mjs").write_text(RUN)
    shutil.copy(MODULE, folder / "code.mjs")
    asked = {name: [name, REQUEST] for name in ("curl", "httpx", "openai", "tritonclient")}
    asked["ids"] = ["openai", {**REQUEST, "texts": None}]
    asked["ids of ids"] = ["openai", {**REQUEST, "texts": None, "takesTexts": False}]
    command = [str(NODE), str(folder / "run.mjs")]
    sent = json.dumps(list(asked.values()))
    ended = subprocess.run(command, input=sent, capture_output=True, text=True, check=True)
    return dict(zip(asked, json.loads(ended.stdout), strict=True))


def keywords(code: str) -> dict[str, Any]:
    """All arguments by name of all calls, but objects of a library."""
    found = {}
    for node in ast.walk(ast.parse(code)):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg and not any(isinstance(n, ast.Call) for n in ast.walk(keyword.value)):
                found[keyword.arg] = ast.literal_eval(keyword.value)
    return found


def test_curl_sends_what_the_page_sends(made: dict[str, dict[str, str]]) -> None:
    words = shlex.split(made["curl"]["code"])
    assert json.loads(words[words.index("-d") + 1]) == BODY
    assert f"{URL}/v1/infer" in words


def test_httpx_sends_what_the_page_sends(made: dict[str, dict[str, str]]) -> None:
    (body,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(made["httpx"]["code"]))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "body"
    )
    assert body == BODY


@pytest.mark.parametrize(("name", "expected"), [("openai", TEXTS), ("ids", BODY["input_ids"])])
def test_openai_sends_the_texts_or_ids_as_they_are(
    made: dict[str, dict[str, str]], name: str, expected: Any
) -> None:
    sent = keywords(made[name]["code"])
    assert sent["input"] == expected
    assert sent["base_url"] == f"{URL}/v1"
    assert sent["model"] == BODY["model"]
    assert sent["extra_body"] == {"precision": "int8"}


def test_the_note_says_which_ids_the_route_takes(made: dict[str, dict[str, str]]) -> None:
    words = "begin and end with the model's special tokens"
    said = {name: words in made[name]["note"] for name in ("openai", "ids", "ids of ids")}
    assert said == {"openai": False, "ids": True, "ids of ids": False}


def test_tritonclient_sends_the_ids_padded(made: dict[str, dict[str, str]]) -> None:
    code = made["tritonclient"]["code"]
    sent = [
        ast.literal_eval(node.args[0])
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "np.array"
    ]
    assert sent == [[[101, 7592, 102], [101, 102, 0]], [[1, 1, 1], [1, 1, 0]]]
    assert keywords(code)["parameters"] == {"precision": "int8"}
    assert repr(URL.removeprefix("http://")) in ast.unparse(ast.parse(code))
