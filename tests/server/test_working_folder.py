"""A command that is run in a folder of others, such as a checkpoint, runs no code of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDNORM = Path(sys.executable).with_name("addnorm")
# called as modules of the standard library, as packages that are imported, and as ours
NAMES = (
    "json.py", "difflib.py", "subprocess.py", "numpy.py", "onnx.py", "safetensors/__init__.py",
    "sitecustomize.py", "tokenizers.py", "torch.py", "transformers/__init__.py",
    "addnorm/__init__.py", "addnorm/service/__init__.py",
)  # fmt: skip


@pytest.mark.parametrize("words", ["serve . --kept ../kept", "settings"])
def test_no_code_of_the_working_folder_is_run(words: str, tmp_path: Path) -> None:
    """`serve` of a checkpoint runs the exporter, in a process that it starts."""
    folder, ran = tmp_path / "checkpoint", tmp_path / "ran"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"open({str(ran)!r}, 'a').write({name!r} + ' ')\n")
    # so that an export reads it, and ends soon
    (folder / "config.json").write_text('{"model_type": "bert"}')
    command = [ADDNORM, *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not ran.exists(), ran.read_text()
    assert "Traceback" not in done.stderr
    if words != "settings":
        assert (done.returncode, "there is no model.safetensors in" in done.stderr) == (1, True)


def test_commands_that_are_started_do_not_search_the_working_folder() -> None:
    """That is what is installed, and the examples. Experiments run in their own checkout."""
    folders = ("service", "export", "model", "corpus", "load", "cluster", "examples")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    started = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sources
        for line in re.findall(r'.*"-m".*', path.read_text())
        if '"-P", "-m"' not in line
    ]
    assert started == []


def test_documents_name_no_command_that_searches_the_working_folder() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pages_named = [
        page.name for page in pages if re.search(r"python3? -m addnorm\b", page.read_text())
    ]
    assert pages_named == []


def test_images_do_not_search_the_working_folder() -> None:
    """All stages in which our code runs have the variable; others build on them."""
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    first = [stage for stage in stages if "PYTHONPATH=/app" in stage]
    assert len(first) == 2
    assert all("PYTHONSAFEPATH=1" in stage for stage in first)
