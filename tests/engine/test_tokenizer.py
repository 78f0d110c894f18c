"""Texts and pairs are cut where the library cuts the whole text or pair, or are refused."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, Regex
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, PreTokenizer, Sequence, Split

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.tokenizer import (
    MAX_CUT_CHARACTERS,
    CannotCut,
    Tokenizer,
    num_characters,
    reads_from_left,
)
from tests.support.texts import MAX_TEXT_TOKENS, TEXT_MODEL, library

STRATEGIES = ["longest_first", "only_first", "only_second"]
PARTS = [
    "a", "the same", "[MASK]", "[SEP]", "tokenizes", "x" * 150, " " * 40, "\u200b" * 90, "e\u0301",
    ".", "中", "unheard",
]  # fmt: skip


@pytest.fixture(scope="module")
def bundle(text_bundles: Path) -> Bundle:
    return bundles.read(text_bundles / TEXT_MODEL / "1")


def with_limit(bundle: Bundle, limit: int) -> Bundle:
    limits = bundle.manifest.limits.model_copy(update={"max_text_tokens": limit})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))


def of_strategy(bundle: Bundle, strategy: str, folder: Path) -> Bundle:
    """The bundle with a tokenizer.json that cuts by this strategy."""
    tokenizer = library()
    tokenizer.enable_truncation(8, strategy=strategy)
    tokenizer.save(str(folder / "tokenizer.json"))
    return replace(bundle, path=folder)


def drawn(draws: random.Random, most: int) -> str:
    chosen = draws.choices(PARTS, k=3)
    return "".join(draws.choice(chosen) + draws.choice(["", " ", " "])
                   for _ in range(draws.randint(0, most)))  # fmt: skip


@pytest.mark.parametrize("limit", [MAX_TEXT_TOKENS, MAX_TEXT_TOKENS - 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_texts_and_pairs_are_cut_like_the_librarys_whole_ones_or_not_at_all(
    bundle: Bundle, tmp_path: Path, strategy: str, limit: int
) -> None:
    mine = Tokenizer(with_limit(of_strategy(bundle, strategy, tmp_path), limit))
    mine.max_cut_characters = mine.max_whole_characters = mine.max_characters
    reference, uncut, draws = library(), library(), random.Random(0)
    reference.enable_truncation(limit, strategy=strategy)
    of_one_text = library(limit)
    num_long = num_refused = 0
    for _ in range(1500):
        lengths = draws.sample([2, 8, 90, 90], 2)
        pair = [drawn(draws, length) for length in lengths[: draws.choice((1, 2, 2))]]
        text = pair[0] if len(pair) == 1 else (pair[0], pair[1])
        try:
            expected = (reference if len(pair) == 2 else of_one_text).encode(*pair)
        except Exception:
            with pytest.raises(CannotCut):
                mine.encode([text], truncate=True)
            continue
        told = list[int]()
        try:
            (cut,) = mine.encode([text], truncate=True, cut=told)
        except CannotCut:
            assert max(map(len, pair)) > mine.max_characters
            num_refused += 1
            continue
        assert cut.ids == expected.ids, pair
        is_longer = len(uncut.encode(*pair)) > limit
        assert told == ([num_characters(text)] if is_longer else []), pair
        assert cut.type_ids == expected.type_ids
        num_long += max(map(len, pair)) > mine.max_characters
    assert num_long > 50
    assert num_refused > 50


def test_a_pair_whose_other_text_leaves_no_room_is_named_by_its_index(
    bundle: Bundle, tmp_path: Path
) -> None:
    mine = Tokenizer(of_strategy(bundle, "only_second", tmp_path))
    with pytest.raises(CannotCut) as raised:
        mine.encode(["a", ("a", "b"), "a " * 20, ("a", "b"), ("a " * 20, "b")], truncate=True)
    assert raised.value.index == 4
    assert raised.value.reason.startswith(
        "is truncated in its second text only, and the first text leaves"
    )
    assert json.loads((tmp_path / "tokenizer.json").read_text())["truncation"]


def test_texts_and_pairs_keep_their_order(bundle: Bundle, tmp_path: Path) -> None:
    texts = ["a", ("a", "b"), ("b", "c"), "a " * 20, ("a " * 20, "b"), "c"]
    for mine in (Tokenizer(bundle), Tokenizer(of_strategy(bundle, "only_first", tmp_path))):
        for truncate in (True, False):
            alone = [mine.encode([text], truncate)[0] for text in texts]
            expected = [[entry.ids, entry.type_ids] for entry in alone]
            assert [one.T.tolist() for one in mine.tokens(texts, truncate)] == expected
            encodings = mine.encode(texts, truncate)
            assert [[encoding.ids, encoding.type_ids] for encoding in encodings] == expected


def test_a_limit_below_a_pairs_special_tokens_refuses_pairs_to_be_cut(bundle: Bundle) -> None:
    mine = Tokenizer(with_limit(bundle, 3))
    assert mine.encode([("a", "b")], truncate=True)[0].ids == [2, 3, 3]
    mine.num_special_of_pair = 4
    with pytest.raises(CannotCut, match="4 special tokens, the limit is 3"):
        mine.encode([("a", "b")], truncate=True)


def test_characters_of_a_pair_are_those_of_both() -> None:
    assert (num_characters("abc"), num_characters(("ab", "c"))) == (3, 3)


def bpe() -> tokenizers.Tokenizer:
    """A tokenizer of bytes, as GPT-2's, with tokens of many blanks and of many letters, of two
    digits and of a blank at a line's beginning."""
    vocab = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    merges = [("Ċ", "Ġ"), ("7", "7"), ("8", "8")]
    vocab |= {"".join(pair): len(vocab) + at for at, pair in enumerate(merges)}
    for letter in ("Ġ", "x"):
        for size in (1, 2, 4, 8):
            merges.append((letter * size, letter * size))
            vocab[letter * 2 * size] = len(vocab)
    tokenizer = tokenizers.Tokenizer(BPE(vocab, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return tokenizer


def unigram() -> tokenizers.Tokenizer:
    pieces = ["<unk>", "▁", "▁" * 8, "x" * 16, "x", *"abcdefghijklmnopqrstuvwyz", "▁the"]
    tokenizer = tokenizers.Tokenizer(
        Unigram([(piece, -float(at)) for at, piece in enumerate(pieces)], 0)
    )
    tokenizer.pre_tokenizer = Metaspace()
    return tokenizer


LLAMA = (  # how Llama 3 splits texts, and others by few more
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FROM_THE_END = r"\d{1,3}(?=(\d{3})+\b)"  # groups the digits of a number
LOCAL = {
    LLAMA, r"\p{N}", r"\s+", " {2,}", r"[\r\n]", r"[0-9][0-9][0-9]", "<a>|<b>", r"[\p{L}]+",
    "[一-龥]+", r"\(", r"[\]a]+b*",
}  # fmt: skip
NOT_LOCAL = {
    FROM_THE_END, LLAMA.replace(r"\p{N}{1,3}", FROM_THE_END), r"\d+(?!\d)",
    '"[^"]*"', "a.*b", "a+b",
    r"\w+\b", r"\s+$", "a$", r"\d{1,900}", "(a|b)+", r"a\1", r"\S*x", "(?i)a", "[", "a{2}+b",
    r"[[a]b]+c", r"(?=a)", r"\d{3}(?=\d*\b)",
}  # fmt: skip


@pytest.mark.parametrize("expression", sorted(LOCAL | NOT_LOCAL))
def test_expressions_that_look_ahead_are_told_from_those_that_do_not(expression: str) -> None:
    for kind in ("Split", "Replace"):
        part = {"type": kind, "pattern": {"Regex": expression}}
        inner = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, part]}
        assert reads_from_left(part) == reads_from_left(inner) == (expression in LOCAL)
    assert reads_from_left({"type": "Split", "pattern": {"String": expression}})
    assert not reads_from_left({"type": "of a later version"})


def splitting(expression: str, replaces: bool = False) -> Callable[[], tokenizers.Tokenizer]:
    def make() -> tokenizers.Tokenizer:
        tokenizer = bpe()
        before = list[PreTokenizer]()
        if replaces:
            tokenizer.normalizer = Replace(Regex(expression), "x")
        else:
            before = [Split(Regex(expression), "isolated")]
        tokenizer.pre_tokenizer = Sequence([*before, ByteLevel(False, use_regex=replaces)])
        return tokenizer

    return make


def absorbing() -> tokenizers.Tokenizer:
    """An added token takes the blanks before it, which are words otherwise."""
    tokenizer = unigram()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


DIFFICULT = {
    "digits from the end": splitting(FROM_THE_END),
    "digits from the end, among others": splitting(
        LLAMA.replace(r"\p{N}{1,3}", FROM_THE_END + "|\\d+")
    ),
    "blanks up to a line's end": splitting(LLAMA),
    "quotes are replaced": splitting('"[^"]*"', replaces=True),
    "blanks before an added token": absorbing,
}
PIECES = (
    ["1", "12", "7" * 91, "8" * 200, "7" * 401], [" ", "\n", " " * 70, " " * 99, " " * 400],
    ["x", '"', "<mask>", "x" * 77],
)  # fmt: skip


@pytest.mark.parametrize("kind", DIFFICULT)
def test_what_follows_a_cut_changes_no_token_before_it(
    bundle: Bundle, tmp_path: Path, kind: str
) -> None:
    """Wherever the cut falls: in a number, in blanks, in quotes."""
    reference, draws = DIFFICULT[kind](), random.Random(0)
    reference.save(str(tmp_path / "tokenizer.json"))
    limits = bundle.manifest.limits.model_copy(
        update={"vocab_size": 400, "max_positions": 64, "max_text_tokens": 40}
    )
    manifest = bundle.manifest.model_copy(update={"limits": limits})
    mine = Tokenizer(replace(bundle, path=tmp_path, manifest=manifest))
    reference.enable_truncation(40)
    texts = [
        "".join(draws.choice(draws.choice(PIECES)) for _ in range(draws.randint(2, 20)))
        for _ in range(300)
    ]
    # the last token that is kept stands before blanks that lead over the edge
    texts += ["1" * num + "\n" + " " * 400 + "\nx" for num in range(30, 45)]
    assert sum(len(text) > 8 * 40 for text in texts) > 200
    for text, cut in zip(texts, mine.encode(texts, truncate=True), strict=True):
        assert cut.ids == reference.encode(text).ids, text


def test_a_long_text_whose_split_depends_on_its_end_is_refused(
    bundle: Bundle, tmp_path: Path
) -> None:
    splitting(FROM_THE_END)().save(str(tmp_path / "tokenizer.json"))
    limits = bundle.manifest.limits.model_copy(update={"vocab_size": 400})
    manifest = bundle.manifest.model_copy(update={"limits": limits})
    mine = Tokenizer(replace(bundle, path=tmp_path, manifest=manifest))
    with pytest.raises(CannotCut, match=r"has 131073 characters: how this .* depends on its end"):
        mine.encode(["1" * (MAX_CUT_CHARACTERS + 1)], truncate=True)


LONG_TEXTS = {
    "blanks": "Page 1\n" + " " * 20_000 + "the end" + " the same text" * 10,
    "one word": "x" * 9_000,
    "a word, and more": "the same " + "x" * 40_000 + " text",
    "base 64": "a: " + "iVBORw0KGgo+/A" * 2_860,
    "dots": "Contents " + "." * 20_000 + " 12",
    "what is dropped": "a" + "\u200b" * 30_000 + "b",
    "lines": "a" + "\n \t" * 10_000 + "b",
    "a long word first, then texts": "y" * 20_000 + " the same text" * 2_000,
}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_texts_of_few_tokens_are_cut_as_the_library_cuts_the_whole(
    bundle: Bundle, tmp_path: Path, name: str, kind: str, left: bool
) -> None:
    """Runs of blanks and words of thousands of letters, as crawlers and extractors make them."""
    tokenizer = {"wordpiece": library, "bpe": bpe, "unigram": unigram}[kind]()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    limits = bundle.manifest.limits.model_copy(update={"vocab_size": 400})
    manifest = bundle.manifest.model_copy(update={"limits": limits})
    mine = Tokenizer(replace(bundle, path=tmp_path, manifest=manifest))
    tokenizer.enable_truncation(MAX_TEXT_TOKENS, direction="left" if left else "right")
    text = LONG_TEXTS[name]
    if left and len(text) > mine.max_whole_characters:
        with pytest.raises(
            CannotCut,
            match="a text of more than 32768 characters cannot be",
        ):
            mine.encode([text], truncate=True, left=True)
        return
    (cut,) = mine.encode([text], truncate=True, left=left)
    assert cut.ids == tokenizer.encode(text).ids


def test_a_text_of_few_tokens_is_read_no_further_than_its_limit(bundle: Bundle) -> None:
    mine, blanks = Tokenizer(bundle), " " * MAX_CUT_CHARACTERS
    assert len(mine.encode([blanks], truncate=True)[0]) == 2
    with pytest.raises(CannotCut, match="its first 131072 have too few tokens to truncate"):
        mine.encode([blanks + " "], truncate=True)


def test_a_pair_is_cut_where_both_of_its_texts_have_few_tokens(bundle: Bundle) -> None:
    reference = library()
    reference.enable_truncation(MAX_TEXT_TOKENS)
    for pair in (("a" + " " * 20_000 + "b", "x" * 9_000), ("a b", "c" + " " * 90_000 + "a")):
        (cut,) = Tokenizer(bundle).encode([pair], truncate=True)
        assert cut.ids == reference.encode(*pair).ids
