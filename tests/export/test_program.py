"""A checkpoint is compared with the program of its authors, on texts of one's own too."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from addnorm.export import command, sources
from addnorm.export.certificate.served import CertificationError
from addnorm.export.checking import check
from addnorm.export.reference import program as programs
from addnorm.export.reference.program import Answer, Program, ProgramError, Text
from addnorm.export.wishes import NO_WISHES, UsageError, Wishes
from addnorm.service.engine import bundle as bundles
from addnorm.service.errors import StartupError
from addnorm.service.loading import loader
from addnorm.service.settings import Settings
from tests.support import saved_folders
from tests.support.families import made, save
from tests.support.sentence_transformers import tell
from tests.support.task_models import TASK_MODELS

OWN = "b b b"
CODE = """
from transformers import BertModel

class MineModel(BertModel):
    def forward(self, *given, **named):
        found = super().forward(*given, **named)
        found.last_hidden_state = found.last_hidden_state * {factor}
        return found
"""


class Wrong:
    """A program that answers one text otherwise."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def answer(self, task: str, text: Text) -> Answer:
        ids, value = self._program.answer(task, text)
        return Answer(ids, np.flip(value) if text == OWN else value)


def test_a_text_of_ones_own_shows_what_ours_do_not(text_checkpoint: Path) -> None:
    source = sources.checkpoint(text_checkpoint)
    wrong = replace(source, program=Wrong(source.program))  # type: ignore[arg-type]
    assert [*check(wrong)]
    with pytest.raises(CertificationError, match="embed, samples: embed"):
        [*check(replace(wrong, wishes=Wishes(samples=("a text", OWN))))]


@pytest.mark.parametrize(
    ("name", "samples", "cases"),
    [
        ("reranker", [("a", "b"), "a"], {"rerank, samples", "classify, samples"}),
        ("reranker", ["a", "b"], {"relevance, samples"}),
        ("masked-lm", ["a the", ("a", "b")], {"read, samples", "fill_mask, masks"}),
        ("tagger", [("a", "b"), [3, 4]], {"tag, samples", "tag joined by max, texts"}),
    ],
)
def test_texts_of_ones_own_are_compared_for_each_task(
    tmp_path: Path, name: str, samples: Sequence[Any], cases: set[str]
) -> None:
    folder = TASK_MODELS[name](tmp_path / name)
    source = sources.checkpoint(folder, Wishes(samples=tuple(samples)))
    compared = [*check(source)]
    assert cases <= {line.rpartition(": ")[2] for line in compared}
    assert source.compared_with()["samples"] == len(samples)


@pytest.mark.filterwarnings("ignore")  # of transformers, while it saves
@pytest.mark.parametrize("family", ["DistilBert", "DebertaV2"])
def test_types_that_a_model_ignores_are_not_compared(tmp_path: Path, family: str) -> None:
    folder = tmp_path / "typed"
    saved_folders.plain(f"{family}ForSequenceClassification", {})(folder)
    assert [*check(sources.checkpoint(folder))]


def test_a_program_that_fails_on_token_ids_is_named(tmp_path: Path) -> None:
    folder = save(made("BertForQuestionAnswering", num_labels=3), tmp_path)  # it unpacks two
    words = r"QuestionAnswering .* fails on a sequence of \d+ tokens: ValueE.* --reference none"
    with pytest.raises(ProgramError, match=words):
        sources.checkpoint(folder, Wishes(labels=()))


def test_a_file_of_texts_is_part_of_the_certificate(text_checkpoint: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "out"
    file.write_text("a text\nthe same\ttext\n\n")
    texts = ["--texts", str(file)]
    command.export([str(text_checkpoint), *texts, "--out", str(out), "--name", "own"])
    certificate = bundles.read(out / "own" / "1").certificate
    assert certificate
    assert certificate["compared_with"]["samples"] == 2
    assert any("samples" in check["case"] for check in certificate["checks"])
    again = [str(out / "own" / "1"), "--checkpoint", str(text_checkpoint)]
    with pytest.raises(SystemExit, match="was compared on 2 samples, and now on 0"):
        command.verify(again)
    command.verify([*again, *texts])
    file.write_text("\n")
    with pytest.raises(SystemExit, match="the file is empty; it needs one text per line"):
        command.verify([*again, *texts])


def test_a_server_may_refuse_what_was_compared_with_our_own_reading(
    text_checkpoint: Path, tmp_path: Path
) -> None:
    options = ["--reference", "none", "--name", "own", "--out", str(tmp_path)]
    command.export([str(text_checkpoint), *options])
    bundle = bundles.read(tmp_path / "own" / "1")
    assert bundle.compared_with == {"kind": "own reading", "name": "Addnorm's own reading"}
    loader.load(bundle, Settings())
    with pytest.raises(StartupError, match="own/1 was compared with Addnorm's own reading, but"):
        loader.load(bundle, Settings(require_reference=True))
    command.verify([str(bundle.path), "--checkpoint", str(text_checkpoint)])
    assert bundles.read(bundle.path).compared_with == bundle.compared_with


def test_without_its_class_an_export_says_what_to_install(
    text_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UsageError, match="pip install sentence-transformers"):
        sources.checkpoint(text_checkpoint)


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A folder with a class of its own."""
    folder = save(made("BertModel"), tmp_path / "own")
    return tell(folder, architectures=["MineModel"], auto_map={"AutoModel": "mine.MineModel"})


def test_code_of_a_folder_is_not_run_unless_it_is_trusted(own_code: Path) -> None:
    (own_code / "mine.py").write_text("raise SystemError('it ran')")
    with pytest.raises(UsageError, match=r"names MineModel, which .* --trust-remote-code runs it"):
        sources.checkpoint(own_code)
    with pytest.raises(ProgramError):
        programs.load(own_code, None, NO_WISHES)


def test_trusted_code_is_what_the_model_must_equal(
    own_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers copies it to a folder that it reads of the environment once."""
    copies = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(copies, str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    other = shutil.copytree(own_code, tmp_path / "other")
    for folder, factor in ((own_code, 1), (other, 1.1)):
        (folder / "mine.py").write_text(CODE.format(factor=factor))
    command.export([str(own_code), "--check", "--trust-remote-code"])
    with pytest.raises(SystemExit, match="differs from the reference: for "):
        command.export([str(other), "--check", "--trust-remote-code"])


def test_a_program_that_answers_at_random_is_refused() -> None:
    """Its own cache must not hand out the first answer twice."""
    model = made("BertModel").eval()
    model.embeddings.register_forward_hook(lambda _, __, rows: rows + 0.1 * torch.randn_like(rows))
    words = "gives two different answers to the same sequence"
    with pytest.raises(ProgramError, match=words) as refused:
        Program(model).rows([1, 2, 3], [0, 0, 0])
    assert "--reference" not in str(refused.value)  # of a graph as its authors wrote it
