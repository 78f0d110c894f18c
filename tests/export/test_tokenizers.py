"""Token ids of folders, by the class of transformers that the author's program has, or by the file
as it is written: compared on many texts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from addnorm.export import checking, command, sources
from addnorm.export.certificate.served import CertificationError
from addnorm.export.checking import check, served_by_torch
from addnorm.export.opening import checkpoint_of
from addnorm.export.reference.program import Program
from addnorm.export.sources import Source
from addnorm.export.wishes import NO_WISHES, UsageError, Wishes
from addnorm.export.words import sample_texts
from addnorm.model.checkpoints import CheckpointError
from addnorm.service.engine.tokenizer import Tokenizer as Served
from tests.support.families import made, save
from tests.support.sentence_transformers import tell, write_settings
from tests.support.texts import WORDS, checkpoint, tokenizer

TEXTS = [
    "pads are dropped,the same",
    "the   TEXT",
    "ﬁne ①",
    "a_b-c",
    "Padding",
    "[MASK]",
    "á b",
    "",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
NAMED = dict(
    zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True)
)
CORPUS = ["pads are dropped", "padding costs nothing", "tokens of the same text", "2023-11 a_b"] * 9


def of_words() -> Tokenizer:
    """Its normalizer and splitter are its own."""
    tokenizer_ = tokenizer()
    tokenizer_.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[,_-]"), "isolated")]
    tokenizer_.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return tokenizer_


def of_bytes() -> Tokenizer:
    """Its normalizer and digits are its own."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFKC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    bpe.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return bpe


def of_bytes_where_needed() -> Tokenizer:
    """Sentencepiece's BPE: what no piece has is written in bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=SPECIAL, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = [*model["vocab"], *(f"<0x{byte:02X}>" for byte in range(256))]
    bpe = Tokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(pieces)},
            [tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    bpe.add_special_tokens(SPECIAL)
    return bpe


def of_pieces() -> Tokenizer:
    """A Unigram with scores of float32, which the library reads one step off."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    pieces = [(piece, -3.8684301376342773 - i / 64) for i, piece in enumerate(trained.get_vocab())]
    unigram = Tokenizer(models.Unigram([(name, 0.0) for name in SPECIAL] + pieces[5:], 3))
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.add_special_tokens(SPECIAL)
    unigram.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    return unigram


# a file's tokenizer, the class beside it, the class of a model, whether the class changes it
KINDS: dict[str, tuple[Callable[[], Tokenizer], str | None, str, bool]] = {
    "words": (of_words, "BertTokenizer", "BertModel", True),
    "words, by the model": (of_words, None, "BertModel", True),
    "words, plain": (of_words, "PreTrainedTokenizerFast", "BertModel", False),
    "bytes": (of_bytes, "RobertaTokenizer", "RobertaModel", True),
    "pieces": (of_pieces, "XLMRobertaTokenizer", "XLMRobertaModel", True),
    "pieces, plain": (of_pieces, "PreTrainedTokenizerFast", "XLMRobertaModel", False),
    "bytes where needed": (of_bytes_where_needed, "PreTrainedTokenizerFast", "GPT2Model", False),
}


def folder_of(
    folder: Path, file: Tokenizer, kind: str | None, model: str = "BertModel", **settings: Any
) -> Path:
    """A model with a row for each of the file's ids."""
    size = 1 + max(file.get_vocab().values())
    more = {"pad_token_id": 1} if "oberta" in model else {}
    save(made(model, vocab_size=size, **more), folder)
    file.save(str(folder / "tokenizer.json"))
    named = NAMED if "<pad>" in file.get_vocab() else {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    named = {**named, **({"tokenizer_class": kind} if kind else {}), **settings}
    write_settings(folder, "tokenizer_config.json", **named)
    return folder


def ids_of(source: Source, texts: Sequence[str] = TEXTS) -> list[list[int]]:
    """The server's."""
    with served_by_torch(source) as path:
        served = Served(path.model.bundle)
        assert [own.ids for own in served.encode(texts, True, left=True)] == [
            own.ids for own in served.encode(texts, True)
        ]
        return [own.ids for own in served.encode(texts, truncate=False)]


@pytest.mark.parametrize("name", KINDS)
def test_texts_are_read_by_the_class_or_by_the_file(tmp_path: Path, name: str) -> None:
    file, kind, model, changes = KINDS[name]
    folder = folder_of(tmp_path, file(), kind, model)
    source = sources.checkpoint(folder)
    (said,) = (line for line in checking.findings(source) if line.startswith("tokenizer: "))
    assert ("unlike the folder's file as it is written in " in said) == changes
    assert any("token ids" in line for line in check(source))
    by_class = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    assert ids_of(source) == by_class
    written = sources.checkpoint(folder, Wishes(tokenizer_as_written=True))
    assert [*check(written)]
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.no_padding()
    plain.no_truncation()
    by_file = [encoding.ids for encoding in plain.encode_batch(TEXTS)]
    assert ids_of(written) == by_file
    assert (by_file != by_class) == changes


@pytest.mark.parametrize("as_written", [False, True])
def test_texts_are_lowered_where_sentence_transformers_does(
    tmp_path: Path, as_written: bool
) -> None:
    cased = tokenizer()
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    folder = checkpoint(tmp_path)
    cased.save(str(folder / "tokenizer.json"))
    write_settings(
        folder, "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=False
    )
    write_settings(folder, "sentence_bert_config.json", do_lower_case=True, max_seq_length=12)
    source = sources.checkpoint(folder, Wishes(tokenizer_as_written=as_written))
    assert [*check(source)]
    assert ids_of(source, ["The SAME"]) == [[2, WORDS.index("the"), WORDS.index("same"), 3]]


def test_old_names_of_settings_win_as_in_sentence_transformers(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    write_settings(folder, "tokenizer_config.json", tokenizer_class="BertTokenizer")
    both = {"tokenizer_args": {"do_lower_case": False}, "processor_kwargs": {"do_lower_case": True}}
    write_settings(folder, "sentence_bert_config.json", **both)
    source = sources.checkpoint(folder)
    assert [*check(source)]
    assert ids_of(source, ["THE same"]) == [[2, WORDS.index("[UNK]"), WORDS.index("same"), 3]]


def test_special_tokens_in_texts_are_split_where_the_folder_says_so(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, of_bytes(), "RobertaTokenizer", "RobertaModel", split_special_tokens=True
    )
    source = sources.checkpoint(folder)
    assert [*check(source)]
    (ids,) = ids_of(source, ["a<mask>b"])
    assert [ids] == AutoTokenizer.from_pretrained(folder)(["a<mask>b"])["input_ids"]
    assert SPECIAL.index("<mask>") not in ids


def test_tokens_without_a_row_in_the_model_are_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    folder = checkpoint(tmp_path)
    more = tokenizer()
    more.add_tokens(["newword"])
    more.save(str(folder / "tokenizer.json"))
    words = rf"ids up to {len(WORDS)}, the model has embeddings of ids below {len(WORDS)} "
    with pytest.raises(CheckpointError, match=words):
        sources.checkpoint(folder)


def test_a_tagger_of_one_label_is_refused_unless_its_logits_are_asked_for(tmp_path: Path) -> None:
    save(made("BertForTokenClassification", num_labels=1, vocab_size=len(WORDS)), tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    write_settings(tmp_path, "tokenizer_config.json", pad_token="[PAD]", unk_token="[UNK]")
    with pytest.raises(UsageError, match=r"only one label, 'LABEL_0': .* --labels none"):
        sources.checkpoint(tmp_path)
    assert [*check(sources.checkpoint(tmp_path, Wishes(labels=())))]


@pytest.mark.parametrize("pad", [1, 2])
def test_a_classifier_whose_tokenizer_appends_its_pad_is_refused(tmp_path: Path, pad: int) -> None:
    file = of_bytes()
    file.post_processor = processors.TemplateProcessing("$A </s>", "$A $B </s>", [("</s>", 2)])
    folder = folder_of(tmp_path, file, "GPT2Tokenizer", "GPT2ForSequenceClassification")
    tell(folder, pad_token_id=pad)
    if pad == SPECIAL.index("</s>"):
        with pytest.raises(CheckpointError, match=r"puts pad_token_id 2 of config\.json around"):
            sources.checkpoint(folder)
        return
    assert [*check(sources.checkpoint(folder))]


def test_a_pad_that_begins_texts_is_refused_where_positions_are_counted_from_it(
    tmp_path: Path,
) -> None:
    folder = folder_of(tmp_path, of_bytes(), "RobertaTokenizer", "RobertaModel")
    tell(folder, pad_token_id=SPECIAL.index("<s>"))
    with pytest.raises(CheckpointError, match=r"pad_token_id 0 .* gives it no position"):
        sources.checkpoint(folder)


class Wrong:
    """A program whose tokenizer reads one text otherwise."""

    def __init__(self, program: Program, text: str) -> None:
        self._program, self._text = program, text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        program_ids = self._program.token_ids(texts)
        return [
            [*ids, 0] if one == self._text else ids
            for one, ids in zip(texts, program_ids, strict=True)
        ]


def test_one_text_of_many_that_the_program_reads_otherwise_is_named(text_checkpoint: Path) -> None:
    source = sources.checkpoint(text_checkpoint)
    sample = sample_texts.texts(tokenizer())
    assert len(sample) == len(set(sample)) > 1000
    assert sample == sample_texts.texts(tokenizer())
    wrong = replace(source, program=Wrong(source.program, "2023-11"))  # type: ignore[arg-type]
    words = r"token ids: texts with other token ids: 1 of 1,\d+ texts, such as '2023-11'"
    with pytest.raises(CertificationError, match=words):
        [*check(wrong)]


def test_the_file_as_it_is_written_is_what_the_manifest_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "mine")
    of_words().save(str(folder / "tokenizer.json"))
    command.export([str(folder), "--check", "--tokenizer-as-written"])
    assert "tokenizer: the folder's file as it is written" in capsys.readouterr().out
    by_class = sources.checkpoint(folder)
    written = sources.checkpoint(folder, Wishes(tokenizer_as_written=True))
    assert written.origin == {**by_class.origin, "tokenizer": "as written"}
    for source in (by_class, written):
        origin = json.loads(json.dumps(source.origin))
        model, wishes = checkpoint_of(origin, NO_WISHES, str(folder))
        with model.packed(wishes) as again:
            pass
        assert ids_of(again) == ids_of(source)
