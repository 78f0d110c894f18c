"""Names in documents, comments and docstrings exist: files, headings, tests, functions, classes,
settings and metrics."""

import re
from functools import cache
from pathlib import Path

import pytest

from addnorm.service.settings import Settings
from benchmarks.documents.__main__ import pages

ROOT = Path(__file__).parent.parent
HOUSE = "addnorm benchmarks cluster corpus deploy docs examples export load model service tests"
PAGES = [page for page in pages(ROOT) if page.name != "CHANGELOG.md"]  # which is history
of_pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def own_text(page: Path) -> str:
    """Without what it says of the files of other projects."""
    return page.read_text().partition("## Sources: text-embeddings-inference")[0]


@cache
def headings(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def files() -> list[str]:
    """Paths of the repository, without what is made."""
    below = (path for folder in HOUSE.split() for path in (ROOT / folder).rglob("*"))
    paths = [path for path in (*ROOT.glob("*"), *ROOT.glob(".ci/*"), *below) if path.is_file()]
    return [f"/{path.relative_to(ROOT)}" for path in paths if "__pycache__" not in path.parts]


def is_a_file(name: str) -> bool:
    """The path of a file of ours ends so."""
    return any(path.endswith(f"/{name}") for path in files())


@cache
def source_of(name: str) -> str:
    """The text of all files whose path ends so."""
    return "\n".join((ROOT / path[1:]).read_text() for path in files() if path.endswith(f"/{name}"))


@of_pages
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        place, _, heading = link.partition("#")
        if "://" in place:
            continue
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


@of_pages
def test_every_heading_that_is_quoted_exists(page: Path) -> None:
    for name, heading in re.findall(r"`([\w/-]+\.md)` \"([^\"]+)\"", own_text(page)):
        assert re.search(rf"^#+ {re.escape(heading)}$", (ROOT / name).read_text(), re.M), heading


@of_pages
def test_every_file_that_is_named_exists(page: Path) -> None:
    """A program by the end of its path, any other file of ours by its whole path."""
    for name in re.findall(r"`([\w./-]+)`", own_text(page)):
        is_ours = name.split("/")[0] in HOUSE.split() and "/" in name
        if is_ours and not name.startswith("addnorm/"):
            assert (ROOT / name).exists(), name
        elif re.search(r"\w\.(py|js)$", name):
            assert is_a_file(name), name


@of_pages
def test_every_name_that_is_said_to_be_in_a_file_is_there(page: Path) -> None:
    text = " ".join(own_text(page).split())
    named = re.findall(r"`([\w.]+)` (?:in|of) `([\w./-]+\.(?:py|js))`", text)
    turned = re.findall(r"`([\w./-]+\.(?:py|js))` \(`([\w.]+)`", text)
    for name, file in [*named, *((name, file) for file, name in turned)]:
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", source_of(file)), f"{name} in {file}"


@of_pages
def test_every_test_that_is_named_exists(page: Path) -> None:
    functions = "\n".join((ROOT / path[1:]).read_text() for path in files() if "/test_" in path)
    for name in set(re.findall(r"`(test_\w+)`", own_text(page))):
        assert f"def {name}(" in functions, name


@of_pages
def test_every_setting_and_metric_that_is_named_exists(page: Path) -> None:
    text = own_text(page)
    settings = {f"ADDNORM_{name.upper()}" for name in Settings.model_fields}
    of_deploy = source_of("docker-compose.yml") + source_of("haproxy.cfg")
    for name in set(re.findall(r"ADDNORM_[A-Z0-9_]+", text)):
        assert any(setting.startswith(name) for setting in settings) or name in of_deploy, name
    reference = (ROOT / "docs" / "reference.md").read_text()
    metrics = set(re.findall(r"^- `(addnorm_\w+)`", reference, re.M))
    for name in set(re.findall(r"`(addnorm_\w+)`", text)):
        assert name in metrics, name


PROSE_AND_STRINGS = re.compile(
    r"""(\"{3}.*?\"{3})|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(#[^\n]*)""", re.S
)
# files and names of other projects, by the comment that has them
OF_OTHERS = {
    "corpus/ray_data.py": {"map_batches"},  # Ray
    "examples/search/lancedb_search.py": {"create_index"},
    "service/asking/tasks/token_bytes.py": {"encoder.py"},  # GPT-2
    "service/engine/outputs/pooled.py": {"quantize_embeddings"},  # sentence-transformers
    "service/server/auth.py": {"http.CrossOriginProtection"},  # Go
    "service/server/process.py": {"nohup"},
    "tests/support/instrumented.py": {"FastAPIInstrumentor"},  # OpenTelemetry
    "benchmarks/report.py": {"report.md"},  # which it writes
}


@cache
def code_and_prose() -> tuple[dict[str, set[str]], dict[str, str]]:
    """The words of each file's code by its path, and the comments and docstrings of Python."""
    words, prose = dict[str, set[str]](), dict[str, str]()
    for path in files():
        if not path.endswith((".py", ".js", ".json", ".toml", ".yaml", ".yml")):
            continue
        text = (ROOT / path[1:]).read_text()
        if path.endswith(".py"):
            pieces = [match[1] or match[3] or "" for match in PROSE_AND_STRINGS.finditer(text)]
            prose[path[1:]] = "\n".join(pieces)
            text = PROSE_AND_STRINGS.sub(lambda match: match[2] or "", text)
        words[path[1:]] = set(re.findall(r"\w+", text))
    return words, prose


def test_every_file_that_a_comment_or_docstring_names_exists() -> None:
    folders = "|".join(HOUSE.split())
    for path, text in code_and_prose()[1].items():
        names = re.findall(rf"(?<![\w./:-])(?:{folders})/[\w./-]*\w", text)
        names += re.findall(r"(?<![\w./:-])[\w-]+\.(?:py|js|md)\b", text)
        for name in set(names) - OF_OTHERS.get(path, set()):
            assert (ROOT / name).exists() or is_a_file(name), f"{path} names {name}"


def test_every_name_in_a_comment_or_docstring_is_in_the_code() -> None:
    """A name between backticks is a word of some file's code; with a class before a
    point, of a file that has this class. A setting is one of ours."""
    words, prose = code_and_prose()
    all_words = set[str]().union(*words.values())
    settings = {f"ADDNORM_{name.upper()}" for name in Settings.model_fields}
    for path, text in prose.items():
        names = set(re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text))
        for name in names - OF_OTHERS.get(path, set()):
            parts = set(name.split("."))
            if name.startswith("ADDNORM_"):
                exists = any(setting.startswith(name) for setting in settings)
            elif re.match(r"[A-Z]\w*\.", name):
                exists = any(parts <= words_of_file for words_of_file in words.values())
            else:
                exists = parts <= all_words or ("." in name and is_a_file(name))
            assert exists, f"{path} names {name}"
