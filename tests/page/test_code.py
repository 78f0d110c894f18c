"""The programs of *Copy as* are run as they are, for each task and language. Node makes them."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import web

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node")
MODULE = Path(__file__).parents[2] / "service/page/share/code.js"
# the module as standard input has its requests
RUN = """
import { programs } from "./code.mjs";
let sent = "";
for await (const part of process.stdin) sent += part;
const made = JSON.parse(sent).map((asked) => programs({ ...asked, cuts: new Map(asked.cuts) }));
console.log(JSON.stringify(made));
"""
ODD = [
    "1,000 euros, or 2,5",
    'it\'s "quoted", \\ and $HOME, `pwd`',
    "[1,2],{}",
    "Größe,日本,😀\u2028,\u00a0",
    "tab\t, and {braces} ${x}",
    "null,true",
]
MODELS = {
    "embed": "embedder", "rerank": "reranker", "classify": "classifier", "tag": "tagger",
    "fill_mask": "masked-lm", "sparse": "masked-lm", "complete": "gpt", "multi_vector": "colbert",
    "tensors": "gpt",
}  # fmt: skip
LANGUAGES = {"curl", "httpx", "JavaScript"}  # of every task
CLIENTS = {
    "embed": {"OpenAI", "Cohere", "TEI"}, "rerank": {"Cohere", "TEI"}, "classify": {"TEI"},
    "sparse": {"TEI"}, "complete": {"OpenAI"},
}  # fmt: skip
PACKAGES = ("OpenAI", "Cohere")

Made = list[dict[str, dict[str, str]]]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("code")
    (folder / "run.mjs").write_text(RUN)
    shutil.copy(MODULE, folder / "code.mjs")

    def make(*asked: dict[str, Any]) -> Made:
        command = [str(NODE), str(folder / "run.mjs")]
        sent = json.dumps(asked)
        ended = subprocess.run(command, input=sent, capture_output=True, text=True, check=True)
        return json.loads(ended.stdout)  # type: ignore[no-any-return]

    return make


def request(task: str, url: str, model: str, **more: Any) -> dict[str, Any]:
    """What the page knows of a request."""
    entry = {
        "id": model, "inputs": ["texts"], "limits": {"vocab_size": 23}, "normalize": True,
    }  # fmt: skip
    texts = [f"{text} [MASK]" if task == "fill_mask" else text for text in ODD]
    settings = {"task": task, "url": url, "entry": entry, "texts": texts, "query": "the, $text"}
    return {**settings, "cuts": [], "hasKey": False, "precision": "fp32", **more}


@pytest.fixture(scope="module")
def made(make: Any, url: str) -> dict[str, dict[str, dict[str, str]]]:
    """Task -> language -> code and note, for a server of all tasks."""
    requests = [request(task, url, model) for task, model in MODELS.items()]
    return dict(zip(MODELS, make(*requests), strict=True))


def test_each_task_has_the_clients_that_know_it(made: dict[str, Any]) -> None:
    assert {task: set(found) for task, found in made.items()} == {
        task: LANGUAGES | CLIENTS.get(task, set()) for task in MODELS
    }


def test_every_python_program_runs(made: dict[str, Any]) -> None:
    """All in one process, as imports take seconds. Each prints something."""
    programs = {
        f"{task}, {language}": program["code"]
        for task, found in made.items()
        for language, program in found.items()
        if language in ("httpx", *PACKAGES)
    }
    run = f"""
import contextlib, io
for name, program in {programs!r}.items():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(program, {{}})
    print(name, bool(said.getvalue()))
"""
    command = [sys.executable, "-W", "ignore", "-c", run]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:-1] == [f"{name} True" for name in programs]


def test_every_line_for_a_shell_runs(made: dict[str, Any]) -> None:
    for task, snippet in made.items():
        for language in {"curl", "TEI"} & set(snippet):
            code = snippet[language]["code"]
            ended = subprocess.run(["bash", "-c", code], capture_output=True, check=True, text=True)
            assert ended.stdout, (task, language)
            assert not re.search(r'"error', ended.stdout), (task, language, ended.stdout[:300])


def test_every_module_of_javascript_runs(made: dict[str, Any], tmp_path: Path) -> None:
    for task, found in made.items():
        (tmp_path / f"{task}.mjs").write_text(found["JavaScript"]["code"])
    imports = "".join(f'await import("./{task}.mjs"); console.log("ran {task}");' for task in made)
    (tmp_path / "all.mjs").write_text(imports)
    command = [str(NODE), str(tmp_path / "all.mjs")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.findall("^ran (.+)", ended.stdout, re.MULTILINE) == list(MODELS)


def test_texts_are_sent_as_texts(made: dict[str, Any], url: str) -> None:
    """The same ones in a shell, in Python and in JavaScript, whatever is in them."""
    words = shlex.split(made["classify"]["curl"]["code"])
    body = {"model": "classifier", "texts": ODD, "precision": "fp32"}
    assert json.loads(words[words.index("-d") + 1]) == body
    assert f"{url}/v1/classify" in words
    (of_httpx,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(made["classify"]["httpx"]["code"]))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "body"
    )
    assert of_httpx == body
    script = made["classify"]["JavaScript"]["code"]
    assert json.loads(script.partition("const body = ")[2].partition(";\nconst sent")[0]) == body


def test_prompts_precision_and_cuts_are_sent(make: Any) -> None:
    more = {"prompt": "document", "queryPrompt": "query", "precision": "int8", "cuts": [[0, {}]]}
    (found,) = make(request("embed", "http://h:1/p", "one,two's", **more))
    texts, query = re.findall(r"-d '(.*?)'(?:\n|$)", found["curl"]["code"].replace(r"'\''", "\0"))
    expected = {"model": "one,two\0s", "precision": "int8", "truncate": True}
    sent = json.loads(query.replace("\0", "\\u0000"))
    assert sent == {**expected, "input": ["the, $text"], "prompt_name": "query"}
    assert '"prompt_name":"document"' in texts
    (call, _) = (
        node
        for node in ast.walk(ast.parse(found["OpenAI"]["code"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".create")
    )
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    assert given["input"] == ODD
    assert given["extra_body"] == {
        "prompt_name": "document", "precision": "int8", "truncate": True,
    }  # fmt: skip


def test_ids_are_sent_to_routes_that_take_them(make: Any, url: str) -> None:
    ids = [[2, 4, 3], [2, 5, 6, 3]]
    (found,) = make(request("embed", url, "embedder", ids=ids, query=""))
    assert set(found) == LANGUAGES | {"OpenAI"}
    assert "special tokens" in found["OpenAI"]["note"]
    words = shlex.split(found["curl"]["code"])
    body = json.loads(words[words.index("-d") + 1])
    assert body["input"] == ids
    answer = web.post(f"{url}/v1/embeddings", json=body).raise_for_status().json()
    assert len(answer["data"]) == 2


def test_a_key_is_read_from_the_environment(make: Any, url: str) -> None:
    requests = [request(task, url, model, hasKey=True) for task, model in MODELS.items()]
    for found in make(*requests):
        for language, program in found.items():
            assert "ADDNORM_API_KEY" in program["code"], language
