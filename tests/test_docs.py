"""The documents' commands run: every curl line, every make target, every path."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from addnorm.corpus.check import check_command
from addnorm.corpus.check.index_check import MEANINGS
from addnorm.corpus.options import check_parser
from addnorm.export import exporting
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.sources import Source
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.service import command as service
from addnorm.service.engine.fingerprint import Fingerprint
from addnorm.service.engine.manifest import Limits
from benchmarks.documents.__main__ import pages
from benchmarks.registry import EXPERIMENTS, GROUPS, PROOFS
from tests.conftest import inference_of, linked, serving
from tests.support.texts import TEXT_MODEL
from tests.support.waiting import eventually

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES_OF_TEXT = pages(ROOT)


def asked(command: str) -> tuple[str, str]:
    """Path and body of a curl line."""
    words = shlex.split(command)
    path = next(word for word in words if word.startswith("localhost:8000")).removeprefix(
        "localhost:8000"
    )
    return path, words[words.index("-d") + 1]


@pytest.mark.parametrize(("target", "extras"), [("serve", {"export"}), ("test", {"export", "dev"})])
def test_a_make_target_installs_what_it_needs_and_no_more(target: str, extras: set[str]) -> None:
    """From a clean clone, to which an empty folder for the environment comes nearest."""
    command = ["make", "--dry-run", "--always-make", target]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"-e '\.\[(\w+)\]'", planned)) == extras


def test_pads_are_said_to_be_dropped_and_not_to_be_free() -> None:
    """At 94 % padding it is slower: longer sequences cost more attention, which alone has pads."""
    places = (*PAGES_OF_TEXT, ROOT / "pyproject.toml", ROOT / "service/page/playground.html")
    for path in places:
        text = path.read_text().lower()
        assert "padding costs nothing" not in text, path
        assert "never computed" not in text, path


@pytest.mark.parametrize("page", PAGES_OF_TEXT, ids=lambda page: page.name)
def test_named_experiments_marks_and_targets_exist(page: Path) -> None:
    """Every claim has a command, and the command is there."""
    text = page.read_text()
    experiments = set(re.findall(r"python -m benchmarks ([a-z][a-z0-9-]*)", text))
    assert experiments <= {*EXPERIMENTS, *GROUPS}
    marks = set(re.findall(r"pytest -m ([a-z_]+)", text))
    assert marks <= {*PROOFS, "cuda"}
    unreleased = re.split(r"^## \d", text, flags=re.M)[0] if page.name == "CHANGELOG.md" else text
    targets = set(re.findall(r"`make\s([a-z][a-z-]*)[` ]", unreleased))
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets), targets
    modules = set(re.findall(r"python -m ((?:addnorm|benchmarks)\.[\w.]+)", text))
    assert all(map(find_spec, modules)), modules


CLIENTS = (ROOT / "docs" / "clients.md").read_text()
MODELS = (ROOT / "docs" / "models.md").read_text()
PROGRAMS = re.findall(r"```python\n(.+?)```", README + MODELS + CLIENTS, re.DOTALL)


TASKS = (ROOT / "docs" / "tasks.md").read_text()
OF_TASKS = re.findall(r"```python\n(.+?)```", TASKS, re.DOTALL)


GUIDES = ROOT / "docs" / "guides"


def programs_of(guide: str) -> list[str]:
    return re.findall(r"```python\n(.+?)```", (GUIDES / f"{guide}.md").read_text(), re.DOTALL)


OF_TASK_MODELS = ("reranker", "rerank-in-time", "classifiers", "typed-decisions", "leaving-tei")
OF_TEXT_MODELS = ("int8", "moved-vectors")
OF_LATE_MODELS = ("token-vectors", "three-kinds-of-vectors")
RUN = [  # the server of a program, and the program
    *(("text_url", program) for program in PROGRAMS),
    *(("task_url", program) for program in OF_TASKS),
    *(("task_url", *programs_of(guide)) for guide in OF_TASK_MODELS),
    *(("text_url", *programs_of(guide)) for guide in OF_TEXT_MODELS),
    *(("late_url", *programs_of(guide)) for guide in OF_LATE_MODELS),
]


STAND_INS = {  # what programs name -> what the tests' tiny models have
    '"ms-marco-MiniLM-L6-v2"': '"reranker"',
    '"deberta-v3-base-prompt-injection-v2"': '"classifier"',
    '"INJECTION"': '"entailment"',
    '"jev-latest"': '"classifier"',
    '"answerai-colbert-small-v1"': '"colbert"',
    "(text, 700)": "(text, 20)",
}


@pytest.fixture(scope="module")
def late_url(
    multi_vector_bundles: Path, three_kinds_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Models with a vector for each token."""
    folders = [*multi_vector_bundles.iterdir(), *three_kinds_bundles.iterdir()]
    with serving(inference_of(linked(tmp_path_factory.mktemp("served"), folders))) as url:
        yield url


RUNNER = """
import json, sys
for program in json.load(sys.stdin):
    print(program)
    exec(program, {"__name__": "__main__"})
"""


@pytest.mark.parametrize("url", ["text_url", "task_url", "late_url"])
def test_the_programs_of_readme_models_clients_tasks_and_guides_run(
    request: pytest.FixtureRequest, url: str
) -> None:
    """They run one after another in one process: their packages take seconds to import. Those whose
    packages are not there do not: kserve brings hundreds of megabytes along."""
    programs, address = [], request.getfixturevalue(url).removeprefix("http://")
    for program in (program for server, program in RUN if server == url):
        for word, stand_in in STAND_INS.items():
            program = program.replace(word, stand_in)
        if all(map(find_spec, re.findall(r"^from (\w+)", program, re.MULTILINE))):
            programs.append(program.replace("localhost:8000", address))
    command = [sys.executable, "-c", RUNNER]
    subprocess.run(command, input=json.dumps(programs), text=True, check=True)


@pytest.mark.parametrize("guide", ["reranker", "classifiers", *OF_LATE_MODELS])
def test_a_guide_asks_for_models_by_the_names_that_its_own_command_gives(guide: str) -> None:
    page = (GUIDES / f"{guide}.md").read_text()
    (command,) = re.findall(r"^\S*addnorm serve (.+)$", page, re.MULTILINE)
    served = {word.rpartition("/")[2] for word in command.split() if "/" in word}
    models = set(re.findall(r'"?model"? ?[=:] ?"(.+?)"', *programs_of(guide)))
    assert models
    assert models <= served


def test_each_guide_has_a_program_that_a_test_runs_and_says_what_is_not_done() -> None:
    tried = {*OF_TASK_MODELS, *OF_LATE_MODELS, *OF_TEXT_MODELS}
    tried |= {"own-transformer", "own-program", "agents"}
    tried |= {"extraction"}  # tests/dialects/test_extraction.py runs it
    assert {page.stem for page in GUIDES.iterdir()} == tried
    for page in GUIDES.iterdir():
        assert "**Not done here**" in page.read_text() or "**When not**" in page.read_text()
        assert len(page.read_text().split()) <= 330


def test_the_program_for_agents_starts_the_server_that_it_asks(
    text_bundles: Path, tmp_path: Path
) -> None:
    (program,) = programs_of("agents")
    for word, stand_in in {
        '"addnorm"': f'"{sys.executable}", "-m", "addnorm"',
        'f"sentence-transformers/{MODEL}"': f'"--bundles", "{text_bundles}"',
        '"all-MiniLM-L6-v2"': f'"{TEXT_MODEL}"',
        '"3600"': '"1"',
    }.items():
        assert word in program
        program = program.replace(word, stand_in)
    home = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=home, stdout=subprocess.PIPE, check=True)
    assert ran.stdout.decode().strip() in program
    # goes with the server
    assert eventually(lambda: not any(path.is_socket() for path in tmp_path.rglob("*")))


def test_systemds_unit_has_options_that_there_are() -> None:
    unit = (ROOT / "deploy" / "addnorm.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+/addnorm serve (.+)$", unit, re.MULTILINE)
    options = service.serve_parser().parse_args(shlex.split(command))
    assert options.models
    assert options.idle_exit_s
    assert "SocketMode=0600" in (ROOT / "deploy" / "addnorm.socket").read_text()


def test_the_programs_of_the_pages_on_own_models_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in order, in one namespace, up to what an export does with a source."""
    page, namespace = (ROOT / "docs" / "own-models.md").read_text(), dict[str, Any]()
    sources = list[Source]()
    monkeypatch.setattr(exporting, "export", lambda source, *_: sources.append(source))
    for program in re.findall(r"```python\n(.+?)```", page, re.DOTALL):
        exec(program, namespace)
    (guide,) = programs_of("own-transformer")
    exec(guide, dict[str, Any]())
    recognized, own, of_guide = sources
    assert not isinstance(of_guide.texts, NoTexts)
    assert own.facts["labels"] == recognized.facts["labels"] == ("no", "yes")
    for source in (recognized, of_guide):
        (original,) = source.originals
        limits = Limits(max_positions=32, vocab_size=source.model.config.vocab_size)
        refuse_unlike(source.model, original, limits)


def test_the_programs_of_the_page_on_vector_indexes_run(
    text_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in order, in one namespace; those for databases where their packages are installed.
    Then the file that they wrote is checked."""
    monkeypatch.chdir(tmp_path)
    page, namespace = (ROOT / "docs" / "vector-indexes.md").read_text(), dict[str, Any]()
    for program in re.findall(r"```python\n(.+?)```", page, re.DOTALL):
        packages = re.findall(r"^(?:from|import) (\w+)", program, re.MULTILINE)
        if all(map(find_spec, packages)):
            exec(program.replace("localhost:8000", text_url.removeprefix("http://")), namespace)
    with pytest.raises(SystemExit) as ended:
        check_command.check(["vectors.parquet", "--model", text_url, "--json", "report.json"])
    figures = json.loads(Path("report.json").read_text())
    assert (ended.value.code, figures["fingerprint"]["equal"]) == (0, True)


def test_the_page_on_vector_indexes_has_every_option_verdict_and_part() -> None:
    page = (ROOT / "docs" / "vector-indexes.md").read_text()
    options = {*re.findall(r"(?<!\S)--[\w-]+", check_parser().format_help())}
    assert not [name for name in options - {"--help"} if name not in page]
    assert re.findall(r"^\| `([a-z -]+)` \| .+ \| .+ \|$", page, re.MULTILINE) == list(MEANINGS)
    parts = re.findall(r"`(\w+)`", page.partition("| part |")[2].partition("\n\n")[0])
    assert parts == [field.name for field in fields(Fingerprint) if field.name != "bits"]


ANSWERED = [
    (client, command)
    for client, page in (("text_client", CLIENTS), ("task_client", TASKS))
    for command in re.findall(r"^curl .+$", page, re.MULTILINE)
]


@pytest.mark.parametrize(("client", "command"), ANSWERED)
def test_the_curl_lines_of_the_pages_on_clients_and_tasks_run(
    request: pytest.FixtureRequest, client: str, command: str
) -> None:
    path, body = asked(command)
    headers = {"content-type": "application/json"}
    answer = request.getfixturevalue(client).post(path, content=body, headers=headers)
    assert answer.status_code == 200, answer.text


REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def test_deployment_files_name_metrics_that_exist() -> None:
    metrics = set(re.findall(r"`(addnorm_\w+)`", REFERENCE))
    metrics |= {f"{name}_{suffix}" for name in metrics for suffix in ("bucket", "sum", "count")}
    for path in (ROOT / "deploy").rglob("*.*"):
        used = set(re.findall(r"\baddnorm_\w+", path.read_text()))
        assert used <= metrics, f"{path}: {used - metrics}"
