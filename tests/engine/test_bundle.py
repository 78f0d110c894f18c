"""Missing, truncated, tampered or uncertified bundles are refused in one line at start."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.manifest import Head, tasks_of
from addnorm.service.errors import StartupError
from addnorm.service.loading import folders
from addnorm.service.loading.loader import load
from addnorm.service.settings import Settings
from tests.support.bundles import flip
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def copy(notebook: Path, tmp_path: Path) -> Path:
    shutil.copytree(notebook, tmp_path / "notebook" / "1")
    return tmp_path / "notebook" / "1"


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


BREAK: dict[str, tuple[Callable[[Path], object], str]] = {
    "graph missing": (
        lambda b: (b / "model.onnx").unlink(), "model.onnx is missing; export it again",
    ),
    "graph truncated": (lambda b: os.truncate(b / "model.onnx", 100), "model.onnx has 100 bytes"),
    "graph tampered": (lambda b: flip(b / "model.onnx"), "model.onnx does not match its sha256"),
    "head tampered": (lambda b: flip(b / "logits.onnx"), "logits.onnx does not match its sha256"),
    "manifest missing": (lambda b: (b / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest broken": (lambda b: os.truncate(b / "manifest.json", 100), "manifest.json is broken"),
    "manifest edited": (
        lambda b: edit(b / "manifest.json", lambda m: m.update(pooling="last")),
        "certificate.json belongs to a different manifest.json; certify it",
    ),
    "manifest of a later format": (
        lambda b: edit(b / "manifest.json", lambda m: m.update(format=9)), "format 9",
    ),
    "file outside": (
        lambda b: edit(b / "manifest.json", lambda m: m["precisions"].update(fp32="../x")),
        "precisions.fp32: String should match pattern",
    ),
    "default precision without a graph": (
        lambda b: edit(b / "manifest.json", lambda m: m.update(default_precision="int8")),
        "default precision 'int8', but no such graph",
    ),
    "uncertified": (
        lambda b: (b / "certificate.json").unlink(),
        "certificate.json is missing or broken; certify it with `addnorm verify",
    ),
    "failed certificate": (
        lambda b: edit(b / "certificate.json", lambda c: c.update(passed=False)),
        "records a failed check",
    ),
    "less memory for more tokens": (
        lambda b: edit(
            b / "certificate.json", lambda c: c.update(peak_bytes={"8": 200, "16": 100})
        ),
        "peak_bytes that do not grow with the length",
    ),
    "known-answer test lies": (
        lambda b: edit(
            b / "certificate.json", lambda c: c["known_answer"]["fp32"]["activations"].reverse()
        ),
        "does not give the known answer",
    ),
    "moved": (lambda b: b.rename(b.parent / "2"), "has the name notebook/1: move it"),
}  # fmt: skip


def test_a_path_that_is_no_bundle_is_refused_with_what_one_is(copy: Path) -> None:
    for folder in (copy.parent, copy.parent.parent):
        with pytest.raises(StartupError, match=f"is a folder <name>/<version>, such as {copy}$"):
            bundles.read(folder)
    for missing in (copy.parent / "2", copy / "model.onnx"):
        with pytest.raises(StartupError, match="the folder does not exist"):
            bundles.read(missing)


@pytest.mark.parametrize("case", BREAK)
def test_a_broken_bundle_is_refused_with_what_is_wrong_and_what_to_do(
    copy: Path, case: str
) -> None:
    change, words = BREAK[case]
    change(copy)
    path = folders.find(copy.parent.parent).paths[0]
    with pytest.raises(StartupError) as refused:
        load(bundles.read(path), Settings())
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "environment", [{}, {"ADDNORM_PROVIDER": "cuda"}, {"ADDNORM_PORT": "eighty"}]
)
def test_the_command_ends_with_one_line_and_not_zero(
    copy: Path, environment: dict[str, str]
) -> None:
    if not environment:
        flip(copy / "model.onnx")
    command = [sys.executable, "-m", "addnorm", "serve", "--bundles", str(copy.parent.parent)]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment},
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("addnorm: ")
    assert "Traceback" not in ended.stderr
    if environment:
        (name,) = environment
        assert name in ended.stderr


def test_no_bundle_at_all(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="export one with `addnorm export"):
        folders.find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("logits", "labels", "is_causal", "tasks"),
    [
        (None, None, False, ("embed",)),
        (("first", 1), None, False, ("rerank", "classify", "decide")),
        (("first", 2), ("no", "yes"), False, ("classify",)),
        (("first", 2), ("Entailment", "no"), False, ("classify", "decide")),
        (("every", 2), ("B", "O"), False, ("tag",)),
        (("every", 2), ("start", "end"), False, ("embed",)),  # of spans, which no task reads
        (("every", 9), None, False, ("fill_mask", "sparse")),
        (("every", 9), None, True, ("complete",)),
    ],
)
def test_a_model_is_for_what_its_head_makes(
    logits: Any, labels: Any, is_causal: bool, tasks: tuple[str, ...]
) -> None:
    heads = {} if logits is None else {"logits": Head(pick=logits[0], width=logits[1])}
    assert tasks_of(heads, labels, 9, is_causal) == tasks
