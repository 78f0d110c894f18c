"""Imports: model <- export -> service, service's folders from top to bottom, no cycle."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from addnorm.model.checkpoints.families import FAMILIES
from tests.support.imports import imported

ROOT = Path(__file__).parent.parent
PACKAGES = ("model", "export", "service", "corpus", "cluster", "load")
MAY_IMPORT = {
    "model": {"model"},
    "service": {"service"},
    "export": {"export", "model", "service", "corpus"},
    "corpus": {"corpus", "service"},
    "cluster": {"cluster", "service"},
    "load": {"load", "service"},
}
# Around the package: no part of it imports them, and the first not the second
AROUND = ("benchmarks", "tests")
# Parts of service: each may import itself and those below it.
LAYERS = (
    "command", "server", "dialects", "wire", "asking", "loading", "engine",
    "environment", "options", "settings", "cores", "locks", "errors", "arithmetic",
)  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    ours = () if parts[0] in AROUND else ("addnorm",)
    return ".".join((*ours, *parts)).removesuffix(".__init__")


def sources(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_along_the_arrow_only(package: str) -> None:
    for path in sources(package):
        names = imported(path)
        ours = {name.split(".")[1] for name in names if name.startswith("addnorm.")}
        assert ours <= MAY_IMPORT[package], path
        if package == "export":  # how near vectors are is counted in one place
            used = {name for name in names if name.startswith("addnorm.corpus")}
            assert all(name.startswith("addnorm.corpus.comparison") for name in used), path
        exporters = {"torch", "onnx", "onnx_ir", "onnxscript"} if package == "service" else set()
        assert not {name.partition(".")[0] for name in names} & {*AROUND, *exporters}, path


def test_commands_of_corpus_share_what_stands_above_their_folders() -> None:
    """The files above the folders import none of them, and no command another."""
    folders = {path.parent.name for path in (ROOT / "corpus").glob("*/__init__.py")}
    assert folders == {"embed", "check", "compare"}
    for path in sources("corpus"):
        own = path.relative_to(ROOT / "corpus").parts[0]
        used = {name.split(".")[2] for name in imported(path) if name.startswith("addnorm.corpus.")}
        assert not used & folders - {own}, path


def test_benchmarks_import_no_tests() -> None:
    for path in sources("benchmarks"):
        assert "tests" not in {name.partition(".")[0] for name in imported(path)}, path


def test_imports_within_service_run_downward_only() -> None:
    names = {
        path.stem if path.is_file() else path.name
        for path in (ROOT / "service").glob("[a-z]*")
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert names == set(LAYERS), "a part of service is missing from LAYERS"
    for path in sources("service"):
        own = path.relative_to(ROOT / "service").with_suffix("").parts[0]
        if own == "__init__":
            continue
        used = {
            name.split(".")[2] for name in imported(path) if name.startswith("addnorm.service.")
        }
        upward = [part for part in used & set(LAYERS) if LAYERS.index(part) < LAYERS.index(own)]
        assert not upward, f"{path} imports {upward}, which stand above {own}"


def test_no_dialect_imports_another() -> None:
    """A dialect is a folder or a file. What several share stands beside, or in a folder without
    a protocol. Paths that several have are put together in files beside them."""
    protocols = ROOT / "service" / "dialects"
    of_several = {"shared_paths"}
    dialects = {
        path.relative_to(protocols).parts[0].removesuffix(".py")
        for path in (*protocols.glob("*/__init__.py"), *protocols.glob("[a-z]*.py"))
        if re.search(r"= Protocol\(|return Protocol\(", path.read_text())
    } - of_several
    assert {"cohere", "native", "ollama", "openai", "tei", "vllm"} <= dialects
    for path in protocols.rglob("*.py"):
        own = path.relative_to(protocols).parts[0].removesuffix(".py")
        if own in of_several:
            continue
        used = {
            name.split(".")[3]
            for name in imported(path)
            if name.startswith("addnorm.service.dialects.")
        }
        assert not used & dialects - {own}, path


def test_answers_of_vectors_and_of_rankings_are_made_in_one_place_each() -> None:
    """A header or a field for all rerank answers is one edit."""
    paths = sources("service/dialects", "service/wire")
    for word_of, word in (("ranked", r"\bbest\("), ("pooled", r"\.value\(Pooled\)")):
        names = {path.name for path in paths if re.search(word, path.read_text())}
        assert names == {"json_answers.py"}, word_of


def test_vectors_and_pairs_have_one_road_each() -> None:
    """A dialect fills a `Wish`. Those that tokenize by themselves answer tensors or decisions."""
    names = {
        path.name
        for path in sources("service/dialects")
        if re.search(r"\.texts\.tokenize\(", path.read_text())
    }
    assert names == {"native_infer.py", "systemone.py", "tensors.py"}


def test_code_for_gpus_is_entered_at_two_places_only() -> None:
    """A reader may skip it: where engines are chosen, and where a certificate is made again."""
    paths = {
        path.relative_to(ROOT).as_posix()
        for path in sources(*PACKAGES)
        if path.parent.name != "cuda" and any(".cuda." in name for name in imported(path))
    }
    assert paths == {"service/loading/loader.py", "export/verifying.py"}


def test_no_file_shares_its_name() -> None:
    """A file's name differs from those in other folders of service and in the standard library."""
    names = [path.stem for path in sources("service") if path.stem != "__init__"]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    assert not set(names) & set(sys.stdlib_module_names)


def test_the_import_name_is_addnorm() -> None:
    """A package called `service` in site-packages would clash with everybody's own."""
    for path in sources(*PACKAGES, *AROUND, "examples"):
        bare = {name.partition(".")[0] for name in imported(path)} & set(PACKAGES)
        assert not bare, f"{path}: import addnorm.{bare.pop()}"


def test_no_test_file_imports_another() -> None:
    """What several of them share lies in tests/support."""
    for path in sources("tests"):
        shared = {name for name in imported(path) if re.match(r"tests\.(.*\.)?test_", name)}
        assert not shared, f"{path} imports {shared}: move what is shared to tests/support"


def test_every_request_over_a_network_says_how_long_it_waits() -> None:
    """httpx's own 5 s are short on a busy machine. An application that is called in this process
    has no network, and is asked through `transport`."""
    clock = {"timeout", "transport"}
    calls = {
        f"{path}:{call.lineno}"
        for path in sources(*AROUND)
        if path != ROOT / "tests" / "support" / "web.py"
        if "httpx." in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        if re.fullmatch(r"httpx\.(\w*Client|[a-z]+)", ast.unparse(call.func))
        if not clock & {str(given.arg) for given in call.keywords}
    }
    assert not calls, "tests take tests/support/web.py"


def test_no_import_cycle() -> None:
    paths = {module_of(path): path for path in sources(*PACKAGES, "benchmarks")}
    modules = {name: imported(path, paths) for name, path in paths.items()}
    needs = {
        name: {other for other in modules if other in uses and other != name}
        for name, uses in modules.items()
    }
    refuse_cycles(needs)


def test_no_import_cycle_among_the_modules_of_the_page() -> None:
    folder = ROOT / "service" / "page"
    imports = {
        path.relative_to(folder).as_posix(): {
            (path.parent / name).resolve().relative_to(folder.resolve()).as_posix()
            for name in re.findall(r'^(?:import|\}) .*?"(\.{1,2}/.+?)";', path.read_text(), re.M)
        }
        for path in folder.rglob("*.js")
    }
    assert {"inside/heat.js", "panel.js"} <= imports["inside/measured.js"]
    refuse_cycles(imports)


def refuse_cycles(needs: dict[str, set[str]]) -> None:
    assert any(needs.values())
    while needs:
        free = [name for name, others in needs.items() if not others & needs.keys()]
        assert free, f"cycle among {sorted(needs)}"
        for name in free:
            del needs[name]


def test_service_imports_without_torch_onnx_model_and_export() -> None:
    modules = [module_of(path) for path in sources("service")]
    blocked = ("torch", "onnx", "onnxscript", "addnorm.model", "addnorm.export")
    program = f"""
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in {blocked}):
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
for module in {modules}:
    importlib.import_module(module)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_functions_stay_short() -> None:
    """Statements count: the public functions of a library say much before them."""
    for path in sources(*PACKAGES, "benchmarks"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1:] or node.body if ast.get_docstring(node) else node.body
                assert node.end_lineno is not None
                assert node.end_lineno - first[0].lineno < 60, f"{path}:{node.lineno} {node.name}"


def test_no_familys_name_stands_outside_the_checkpoint_reader() -> None:
    """A family is a table: nothing else may depend on which one it is."""
    names = FAMILIES.keys() - {"new"}  # as one calls itself
    # clients name fields after ColBERT, and are called Ollama, llama.cpp and LlamaIndex
    long = "|".join(
        rf"(?<!col)(?<!o){re.escape(name)}(?!\.cpp|.?index)" for name in names if len(name) > 3
    )
    short = "|".join(rf"\b{name}\b" for name in names if len(name) <= 3)
    named = re.compile(f"{long}|{short}", re.IGNORECASE)
    reader = ROOT / "model" / "checkpoints"
    lines = {
        f"{path}:{number}: {line.strip()}"
        for path in sources("model", "export", "service")
        if reader not in path.parents
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if named.search(line)
    }
    assert not lines


def test_the_way_to_the_pipeline_needs_no_web_framework() -> None:
    """What other protocols than HTTP would need: texts and tasks, the request path, encoded
    answers."""
    program = """
import sys
for blocked in ("starlette", "fastapi", "uvicorn", "httptools"):
    sys.modules[blocked] = None
import addnorm.service.asking.answer
import addnorm.service.wire.codec.decoding
import addnorm.service.wire.codec.payload
import addnorm.service.wire.codec.safetensors_body
import addnorm.service.wire.texts.sequences
import addnorm.service.wire.texts.text_tasks
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_no_docstring_begins_in_the_middle_of_a_sentence() -> None:
    """A docstring says first what a thing is or does: the name above it is no part of it."""
    words = r"(Of|By|With|In|As|Those)\s"
    places = {
        f"{path}: {text[:60]}"
        for path in sources(*PACKAGES, *AROUND, "examples")
        if re.search(rf'"""\s*{words}', source := path.read_text())
        for text in docstrings(ast.parse(source))
        if re.match(words, text)
    }
    assert not places


def docstrings(tree: ast.Module) -> Iterator[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield ast.get_docstring(node) or ""


def test_tests_are_named_in_the_fields_words() -> None:
    """Worker threads, load shedding and known-answer tests had words of our own. Lines are lines of
    text: the word beside says of which."""
    jargon = {"lane", "lanes", "door", "doors", "canary", "canaries"}
    texts = {"log", "empty", "curl", "certificate"}
    for path in sources("tests"):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            words = name.split("_")
            assert not jargon & set(words), f"{path}: {name}"
            for place in (place for place, word in enumerate(words) if word == "lines"):
                beside = {*words[place - 1 : place + 2]}
                assert beside & texts, f"{path}: {name}: lines of what?"


def test_what_returns_nothing_is_named_by_a_verb() -> None:
    """`count_request(...)` acts. `answered(...)`, a participle, is for what returns a value."""
    functions = {
        f"{path}:{node.lineno} {node.name}"
        for path in sources(*PACKAGES)
        if re.search(r"def \w+ed(_|\()", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.returns and ast.unparse(node.returns) == "None"
        if re.match(r"_*(?!feed_|embed)[a-z]+ed(_|$)", node.name)
        if node.name != "_weighted_mean"  # into `out`, as its neighbours
    }
    assert not functions


def test_a_request_that_is_turned_down_is_rejected() -> None:
    """Bundles, weights and files are refused, requests are rejected."""
    folders = ("server", "dialects", "wire", "asking")
    for path in sources(*(f"service/{folder}" for folder in folders)):
        names = re.findall(r"\w*[Rr]efus\w*", path.read_text())
        assert not names, f"{path}: {names}"
