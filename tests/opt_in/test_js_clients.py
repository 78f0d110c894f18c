"""Unmodified npm packages under node and in a page of another origin, against tiny models."""

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.findings import BUILD
from tests.conftest import inference_of, linked, serving
from tests.support.task_models import DEFAULTS

PACKAGES = BUILD / "js-clients"
PROGRAM = PACKAGES / "program"  # beside the packages, where node looks for them
KEY = "js-0123456789abcdef"
KEYS = f"js infer {KEY}"
AS_MODULES = ("--bundle", "--splitting", "--format=esm", "--keep-names", "--log-level=error")
NOT_FOR_PAGES = ("node:*", "@huggingface/transformers")  # of what does not run in one
CALL = """
const [url, key, names, done] = arguments;
const call = () => globalThis.outcomes
  ? outcomes(url, key, names).then(done, (error) => done(String(error)))
  : setTimeout(call, 20);
call();"""
LONGEST_S = 120
pytestmark = pytest.mark.js_clients
Outcomes = dict[str, str | None]  # of each call: nothing, or what went wrong
Ask = Callable[..., Outcomes]


@pytest.fixture(scope="module")
def program() -> Path:
    shutil.copytree(peers.JAVASCRIPT, PROGRAM, dirs_exist_ok=True)
    return PROGRAM


@pytest.fixture(scope="module")
def origin(program: Path) -> Iterator[str]:
    """Where a page with the bundled program is."""
    bundler, page = PACKAGES / "node_modules/.bin/esbuild", PACKAGES / "page"
    external = [f"--external:{name}" for name in NOT_FOR_PAGES]
    command = [bundler, program / "main.js", *AS_MODULES, *external, f"--outdir={page}"]
    subprocess.run(command, check=True)
    (page / "index.html").write_text("<script type='module' src='main.js'></script>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(page)))
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """The requests for the page are not shown."""


@pytest.fixture(scope="module")
def in_page(origin: str) -> Iterator[Ask]:
    """What comes of calls from a page of Chromium."""
    chromium = pytest.importorskip("tests.support.browser")
    with chromium.browser() as driver:
        driver.set_script_timeout(LONGEST_S)
        driver.get(f"{origin}/index.html")
        yield lambda url, *names: driver.execute_async_script(CALL, url, KEY, names)


@pytest.fixture(scope="module")
def url(task_bundles: Path, origin: str) -> Iterator[str]:
    """A server that asks for a key, and lets the page in."""
    settings = {"api_keys": KEYS, "cors_origins": origin}
    with serving(inference_of(task_bundles, default_models=DEFAULTS, **settings)) as url:
        yield url


def under_node(url: str, *names: str) -> Outcomes:
    command = ["node", str(PROGRAM / "main.js"), url, KEY, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONGEST_S)
    last = done.stdout.splitlines()[-1]  # after what the packages say
    return json.loads(last)  # type: ignore[no-any-return]


def must_work(found: Outcomes) -> None:
    print(*found, sep="\n")
    assert found
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_every_package_works_under_node(url: str) -> None:
    must_work(under_node(url))


def test_every_package_works_in_a_page_of_another_origin(url: str, in_page: Ask) -> None:
    must_work(in_page(url))


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("fillMask", "masked-lm"),
        ("tokenClassification", "tagger"),
        ("zeroShotClassification", "classifier"),
        ("sentenceSimilarity", "embedder"),
    ],
)
def test_an_example_of_a_readme_runs_at_the_root(
    task_bundles: Path, tmp_path: Path, program: Path, task: str, model: str
) -> None:
    """The server has this model alone."""
    root = linked(tmp_path, [task_bundles / model])
    with serving(inference_of(root, api_keys=KEYS)) as url:
        must_work(under_node(url, f"@huggingface/inference {task}, root"))


def test_without_the_setting_the_page_is_kept_out_and_the_log_names_it(
    task_bundles: Path, origin: str, in_page: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    name = "openai embeddings"
    with serving(inference_of(task_bundles, api_keys=KEYS)) as url:
        assert "Connection error" in str(in_page(url, name)[name])
    assert f"set ADDNORM_CORS_ORIGINS={origin}" in caplog.text
