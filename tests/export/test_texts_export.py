"""Texts at export: their limit, why there are none, and a certificate that checks the cut."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from addnorm.export import command
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.files import describe
from addnorm.service.engine.tokenizer import Tokenizer
from addnorm.service.errors import StartupError
from tests.support.sentence_transformers import tell
from tests.support.texts import MAX_POSITIONS, MAX_TEXT_TOKENS, TEXT_MODEL


@pytest.fixture
def folder(text_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint of one's own."""
    return Path(shutil.copytree(text_checkpoint, tmp_path / "mine"))


def limit_of(folder: Path) -> tuple[int, str]:
    from addnorm.export.words import texts

    words = texts.read(folder, MAX_POSITIONS)
    return words.max_text_tokens, words.limited_by


def test_the_authors_limit_is_found_where_sentence_transformers_looks(folder: Path) -> None:
    assert limit_of(folder) == (MAX_TEXT_TOKENS, "sentence_bert_config.json")
    tell(folder, "tokenizer_config.json", model_max_length=14)
    assert limit_of(folder) == (MAX_TEXT_TOKENS, "sentence_bert_config.json")
    tell(folder, "sentence_bert_config.json", processor_kwargs={"model_max_length": 9})
    assert limit_of(folder) == (9, "sentence_bert_config.json")
    (folder / "sentence_bert_config.json").unlink()
    assert limit_of(folder) == (14, "tokenizer_config.json")
    tell(folder, "tokenizer_config.json", model_max_length=10**30)
    assert limit_of(folder) == (MAX_POSITIONS, "tokenizer_config.json")
    (folder / "tokenizer_config.json").unlink()
    assert limit_of(folder) == (MAX_POSITIONS, "the model's positions")
    tell(folder, "tokenizer_config.json", max_len=7)  # as old releases wrote it
    assert limit_of(folder) == (7, "tokenizer_config.json")
    tell(folder, "tokenizer_config.json", model_max_length=8)
    assert limit_of(folder) == (8, "tokenizer_config.json")


WITHOUT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda at: (at / "tokenizer.json").unlink(), "there is no tokenizer.json in "),
    "cut on the left": (lambda at: tell(at, "tokenizer_config.json", truncation_side="left"),
                        "tokenizer_config.json truncates them on the left"),
    "no room": (lambda at: tell(at, "sentence_bert_config.json", max_seq_length=2),
                "sentence_bert_config.json truncates them to 2 tokens, of which 2 are"),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT)
def test_an_export_says_why_a_model_takes_no_texts(
    folder: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    break_it, words = WITHOUT[case]
    break_it(folder)
    options = ["--reference", "none"] if case == "no tokenizer" else []
    command.export([str(folder), "--check", *options])
    assert f"texts: no, because {words}" in capsys.readouterr().out


def test_max_length_bounds_ids_where_a_model_takes_no_texts(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    options = ["--max-length", "9", "--reference", "none"]
    command.export([str(folder), "--out", str(tmp_path / "out"), *options])
    bundle = bundles.read(tmp_path / "out" / "mine" / "1")
    assert bundle.manifest.limits.max_positions == 9
    assert bundles.TOKENIZER not in bundle.manifest.files


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer_config.json", "{"),
        ("modules.json", "{"),
    ],
)
def test_a_broken_file_ends_the_export_with_its_name(
    folder: Path, tmp_path: Path, file: str, content: str
) -> None:
    (folder / file).write_text(content)
    with pytest.raises(SystemExit, match=re.escape(f"{folder / file}")):
        command.export([str(folder), "--out", str(tmp_path / "out")])


def test_max_length_sets_another_limit_which_verify_knows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.export([str(folder), "--out", str(tmp_path / "out"), "--max-length", "7"])
    shown = capsys.readouterr().out
    assert "texts: yes, up to 7 tokens (--max-length)" in shown
    assert "texts cut to 7" in shown
    assert "an empty text" in shown
    path = tmp_path / "out" / "mine" / "1"
    bundle = bundles.read(path)
    limits, origin = bundle.manifest.limits, bundle.manifest.source
    assert (limits.max_text_tokens, limits.max_positions, origin["max_length"]) == (7, 7, 7)
    assert list(map(len, Tokenizer(bundle).encode(["a " * 40, ""], truncate=True))) == [7, 2]
    command.verify([str(path), "--checkpoint", str(folder)])
    tell(
        path, "manifest.json", limits={**bundle.manifest.limits.model_dump(), "max_text_tokens": 8}
    )
    with pytest.raises(
        SystemExit, match="mine/1 takes texts of 8 tokens, but its authors truncate them to 7"
    ):
        command.verify([str(path), "--checkpoint", str(folder)])


@pytest.mark.parametrize("what", ["another word order", "no special tokens", "capitals"])
def test_a_bundle_whose_tokenizer_is_not_the_folders_is_not_certified(
    text_bundles: Path,
    text_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    path = tmp_path / TEXT_MODEL / "1"
    shutil.copytree(text_bundles / TEXT_MODEL / "1", path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    if what == "another word order":
        words = tokenizer["model"]["vocab"]
        words["in"], words["."] = words.pop("a"), words["."]
    elif what == "capitals":
        tokenizer["normalizer"]["lowercase"] = False
    else:
        tokenizer["post_processor"] = None
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    files = json.loads((path / "manifest.json").read_text())["files"]
    changed = {**files, "tokenizer.json": describe(path / "tokenizer.json").model_dump()}
    tell(path, "manifest.json", files=changed)
    with pytest.raises(SystemExit, match=r"tokenizer\.json: unlike the folder's"):
        command.verify([str(path), "--checkpoint", str(text_checkpoint)])
    shown = capsys.readouterr().out
    assert (
        re.search(
            r"(texts|pairs) +texts with other token (ids|types), such as .*"
            r": from place \d+ on \[.*\], by its authors \[.* FAILED",
            shown,
        )
        or "refused: texts" in shown
    )


def test_a_manifest_without_a_limit_of_texts_has_that_of_positions(
    text_bundles: Path, tmp_path: Path
) -> None:
    path = tmp_path / TEXT_MODEL / "1"
    shutil.copytree(text_bundles / TEXT_MODEL / "1", path)
    limits = json.loads((path / "manifest.json").read_text())["limits"]
    without = {name: limits[name] for name in limits if name != "max_text_tokens"}
    tell(path, "manifest.json", limits=without)
    bundle = bundles.read_uncertified(path)
    assert (
        bundle.manifest.limits.max_text_tokens == Tokenizer(bundle).max_text_tokens == MAX_POSITIONS
    )
    tell(path, "manifest.json", limits={**limits, "max_text_tokens": 17})
    with pytest.raises(StartupError, match="it must be 3 to 16"):
        Tokenizer(bundles.read_uncertified(path))
