"""What is installed: one import name, all of its code, and no code of anybody else's."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from packaging.requirements import Requirement

from addnorm.__main__ import COMMANDS, main
from addnorm.service import VERSION, to_install

pytest.importorskip("setuptools")
from tests.support.imports import imported

ROOT = Path(__file__).parent.parent
FOLDERS = ("addnorm", "service", "model", "export", "corpus", "cluster", "load")
FILES = ("pyproject.toml", "README.md", "LICENSE")
TEXTS = {".md", ".py", ".yaml", ".yml", ".txt", ".sh", ""}
BUILD = "import sys; from setuptools import build_meta as b; b.build_{}(sys.argv[1])"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, links included: a build leaves files behind."""
    copied = tmp_path_factory.mktemp("sources")
    for name in FOLDERS:
        copytree(ROOT / name, copied / name, symlinks=True, ignore=ignore_patterns("__pycache__"))
    for name in FILES:
        copy(ROOT / name, copied)
    return copied


@pytest.fixture(scope="module")
def unpacked(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    out = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-c", BUILD.format("sdist"), out]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")
    return out / archive.name.removesuffix(".tar.gz")


def modules(root: Path) -> set[str]:
    """Paths of every module of the import name."""
    names = {f"addnorm/{path.name}" for path in (root / "addnorm").glob("*.py")}
    for name in FOLDERS[1:]:
        names |= {f"addnorm/{path.relative_to(root)}" for path in (root / name).rglob("*.py")}
    return names


def opened(root: Path) -> set[str]:
    """Files that are no modules, which the server opens."""
    places = (
        "page/*.*", "page/*/*", "engine/cuda/pooling/*", "dialects/kserve/over_grpc/*.binpb",
    )  # fmt: skip
    paths = [path for place in places for path in (root / "service").glob(place)]
    return {f"addnorm/{path.relative_to(root)}" for path in paths}


def test_the_source_distribution_holds_files_in_place_of_the_links(unpacked: Path) -> None:
    packed = {str(path.relative_to(unpacked)) for path in (unpacked / "addnorm").rglob("*.py")}
    assert packed == modules(ROOT)
    assert not any(path.is_symlink() for path in unpacked.rglob("*"))


def test_the_wheel_holds_addnorm_alone(unpacked: Path, tmp_path: Path) -> None:
    """Built from the source distribution, as package indexes' users do where no wheel fits."""
    command = [sys.executable, "-c", BUILD.format("wheel"), tmp_path]
    subprocess.run(command, cwd=unpacked, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    installed = {name for name in names if ".dist-info/" not in name}
    assert installed == modules(ROOT) | opened(ROOT) | {"addnorm/py.typed"}
    assert version(wheel) == VERSION
    folders = {"addnorm", f"addnorm-{version(wheel)}.dist-info"}
    assert {name.partition("/")[0] for name in names} == folders


def version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; import addnorm.__main__ as a; a.main()"


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("torch", "export x", "export"),
        ("onnx", "verify x", "export"),
        ("tqdm", "load run x", "load"),
        ("pyarrow", "check x --model x", "corpus"),
    ],
)
def test_a_missing_package_is_named_in_one_line(package: str, words: str, extra: str) -> None:
    command, *arguments = words.split()
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, command, *arguments],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == COMMANDS[command].cannot_run
    assert ended.stderr == (
        f"addnorm {command}: the package {package} is not installed; {to_install(extra)}\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"Example: addnorm {command} " in capsys.readouterr().out


def test_nothing_says_to_install_what_no_index_has() -> None:
    """The name is not registered: it would bring nothing, or what somebody else wrote."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name != "CHANGELOG.md"]
    texts = {file: file.read_text() for file in files if file.suffix in TEXTS and file.is_file()}
    if not texts:
        pytest.skip("this is no checkout of git")
    pattern = re.compile(r"pip install[^\n`]* '?addnorm(?![-/\w])")
    assert not [file for file, text in texts.items() if pattern.search(text)]


def test_the_lock_has_what_serving_and_exporting_need() -> None:
    """PyTorch is left out: its builds for CPUs and for CUDA differ."""
    command = [sys.executable, "deploy/requirements.py", "export", "grpc", "signing", "trace"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(
        line.removesuffix(" \\").split("==") for line in text.splitlines() if "==" in line
    )
    assert "//" not in text
    assert "torch" not in locked
    for needed in map(Requirement, listed.splitlines()):
        if needed.name != "torch":
            name = needed.name.lower().replace("_", "-")
            assert needed.specifier.contains(locked[name]), needed


def test_what_the_readmes_first_command_runs_is_installed_by_it() -> None:
    """Each is named there: what another package brings along may be gone with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = re.findall(r"install -e '\.\[export\]'(.*)", (ROOT / "Makefile").read_text())
    of_export = project["optional-dependencies"]["export"]
    named = [*project["dependencies"], *of_export, *line.split("'")]
    installed = {Requirement(each).name for each in named if each.strip()}
    for program in (ROOT / "examples/minilm.py", ROOT / "examples/serving.py"):
        packages = {name.partition(".")[0] for name in imported(program)}
        assert packages <= {*installed, *sys.stdlib_module_names, "serving", "addnorm"}
