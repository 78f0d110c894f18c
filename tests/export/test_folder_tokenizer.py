"""Tokenizers of folders, from every kind of files, against the libraries that made the files."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece
from transformers import AutoTokenizer

from addnorm.export import sources
from addnorm.export.words import folder_tokenizer, sentencepieces
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.model.checkpoints import CheckpointError
from addnorm.service.engine.tokenizer import growth_problem
from tests.support.sentence_transformers import tell, write_settings
from tests.support.texts import WORDS, checkpoint, ids_of

CORPUS = ["pads are dropped", "padding costs nothing", "tokens of the same text", "naïve, a b c."]
TEXTS = ["the same  text", " padding tokens.", "", "naïve pads"]
Ids = list[list[int]]


def served(folder: Path, texts: list[str] = TEXTS, as_written: bool = False) -> Ids:
    """Token ids by the tokenizer.json that is written."""
    content = folder_tokenizer.load(folder, {}, as_written).backend_tokenizer.to_str()
    return [encoding.ids for encoding in Tokenizer.from_str(content).encode_batch(texts)]


def vocabulary(folder: Path) -> Ids:
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    write_settings(folder, model_type="bert")
    return ids_of([text.replace("ï", "i") for text in TEXTS])


def byte_pairs(folder: Path) -> ByteLevelBPETokenizer:
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    tokenizer.train_from_iterator(
        CORPUS, vocab_size=300, special_tokens=special, show_progress=False
    )
    tokenizer.save_model(str(folder))
    return tokenizer


def merges_with_ends(folder: Path) -> Ids:
    write_settings(folder, model_type="roberta")
    return [[0, *encoding.ids, 2] for encoding in byte_pairs(folder).encode_batch(TEXTS)]


def merges(folder: Path) -> Ids:
    write_settings(folder, model_type="gpt2")
    return [encoding.ids for encoding in byte_pairs(folder).encode_batch(TEXTS)]


def merges_after_a_beginning(folder: Path) -> Ids:
    write_settings(folder, model_type="opt")
    added = {"add_bos_token": True, "bos_token": "</s>", "unk_token": "</s>"}
    write_settings(
        folder, folder_tokenizer.CONFIG, tokenizer_class="GPT2Tokenizer", eos_token="</s>", **added
    )
    return [[2, *encoding.ids] for encoding in byte_pairs(folder).encode_batch(TEXTS)]


def sentence_pieces(folder: Path) -> Ids:
    """Ids are one higher than the library's, and the unknown piece has another place."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, vocab_size=32, minloglevel=2
    )
    (folder / "sentencepiece.bpe.model").write_bytes(written.getvalue())
    write_settings(folder, model_type="xlm-roberta")
    pieces = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return [[0, *(id + 1 if id else 3 for id in ids), 2] for ids in pieces.encode(TEXTS)]


@pytest.mark.parametrize(
    "write", [vocabulary, merges_with_ends, merges, merges_after_a_beginning, sentence_pieces]
)
def test_a_vocabulary_without_tokenizer_json_is_converted(
    tmp_path: Path, write: Callable[[Path], Ids]
) -> None:
    expected = write(tmp_path)
    assert served(tmp_path) == expected


def deberta(folder: Path, **fields: bool) -> sentencepiece.SentencePieceProcessor:
    """Its file alone, with a vocabulary of many scripts."""
    written, lines = io.BytesIO(), [*CORPUS, *sentencepieces.PIECES, *sentencepieces.texts()]
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, vocab_size=150, minloglevel=2,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, **names,
    )  # fmt: skip
    (folder / sentencepieces.FILE).write_bytes(written.getvalue())
    write_settings(folder, model_type="deberta-v2")
    write_settings(folder, folder_tokenizer.CONFIG, **fields)
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


@pytest.mark.parametrize("lowers", [False, True])
def test_debertas_file_alone_gives_sentencepieces_ids(tmp_path: Path, lowers: bool) -> None:
    """If it is read as it is written: transformers has NFC in the place of its normalization."""
    original = deberta(tmp_path, do_lower_case=lowers)
    texts = [
        "ﬁne ① Ａ５",
        "a\u200bb\tc\n",
        "  two  spaces ",
        "ﾃｷｽﾄ 🙂 q",
        "",
        *sentencepieces.texts(),
    ]
    meant = [[1, *original.encode(text.lower() if lowers else text), 2] for text in texts]
    assert served(tmp_path, texts, as_written=True) == meant
    expected_ids = AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"]
    assert served(tmp_path, texts) == expected_ids != meant


def test_a_file_that_cannot_be_converted_is_refused_with_a_text(tmp_path: Path) -> None:
    deberta(tmp_path, split_by_punct=True)
    with pytest.raises(NoTexts, match=r"spm\.model cannot be converted: '.*' becomes \["):
        folder_tokenizer.load(tmp_path, {}, as_written=True)
    folder_tokenizer.load(tmp_path, {})


def test_settings_beside_tokenizer_json_win_as_in_transformers(tmp_path: Path) -> None:
    merges_with_ends(tmp_path)
    folder_tokenizer.load(tmp_path, {}).save_pretrained(tmp_path)
    alone, after_a_space = served(tmp_path, ["padding", " padding"])
    assert alone != after_a_space
    tell(tmp_path, folder_tokenizer.CONFIG, add_prefix_space=True)
    assert served(tmp_path, ["padding"]) == [after_a_space]


def test_a_folder_without_its_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    """transformers makes one up then."""
    write_settings(tmp_path, model_type="roberta")
    with pytest.raises(NoTexts, match=r"there is no tokenizer\.json in .*, and no vocabulary"):
        folder_tokenizer.load(tmp_path, {})
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))  # another family's
    with pytest.raises(NoTexts, match=r"and no vocab\.json and no merges\.txt"):
        folder_tokenizer.load(tmp_path, {})


def test_code_of_the_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    write_settings(tmp_path, model_type="mine", auto_map={"AutoConfig": "mine.Config"})
    write_settings(
        tmp_path, folder_tokenizer.CONFIG, auto_map={"AutoTokenizer": ["mine.Tokenizer", None]}
    )
    with pytest.raises(NoTexts, match="contains custom code"):
        folder_tokenizer.load(tmp_path, {})


@pytest.mark.parametrize("where", ["normalizer", "decoder"])
def test_a_tokenizer_that_makes_texts_very_much_longer_is_refused(
    where: str, tmp_path: Path
) -> None:
    vocabulary(tmp_path)
    tokenizer = folder_tokenizer.load(tmp_path, {}).backend_tokenizer
    replace = getattr(tokenizers, f"{where}s").Replace("a", "a" * 10)
    together = getattr(tokenizers, f"{where}s").Sequence
    for number, is_refused in ((3, False), (8, True)):
        setattr(tokenizer, where, together([together([replace] * number)]))
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        problem = growth_problem(Tokenizer.from_file(str(tmp_path / "tokenizer.json")))
        assert (problem is not None) == is_refused
    write_settings(tmp_path, folder_tokenizer.CONFIG, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(CheckpointError, match=r"may turn one character into 1e\+08"):
        folder_tokenizer.load(tmp_path, {})


def test_a_tokenizer_whose_ids_are_drawn_each_time_is_refused(tmp_path: Path) -> None:
    Tokenizer(BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.3)).save(
        str(tmp_path / "tokenizer.json")
    )
    write_settings(tmp_path, folder_tokenizer.CONFIG, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(CheckpointError, match=r"dropout 0\.3, .* set model\.dropout to null"):
        folder_tokenizer.load(tmp_path, {})


@pytest.mark.parametrize(
    "model",
    [WordPiece({"a": 0, "b": 1}), WordLevel({"a": 0, "b": 1}), Unigram([("a", -1.0)])],
    ids=["wordpiece", "wordlevel", "unigram"],
)
def test_another_models_tokenizer_that_cannot_read_texts_is_refused(
    tmp_path: Path, model: Any
) -> None:
    """Such as one without a token for what it does not know."""
    folder = checkpoint(tmp_path)
    Tokenizer(model).save(str(folder / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"cannot read every text: .*another model"):
        sources.checkpoint(folder)


def test_a_tokenizer_of_very_many_added_tokens_is_refused(tmp_path: Path) -> None:
    vocabulary(tmp_path)
    made = folder_tokenizer.load(tmp_path, {}).backend_tokenizer
    made.add_tokens([f"more {index}" for index in range(30_001)])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"added tokens, the limit is 30000"):
        folder_tokenizer.load(tmp_path, {})
