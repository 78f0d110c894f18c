"""Pairs are cut where the library cuts the whole pair, or are refused."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.tokenizing.tokenizer import CannotCut, Tokenizer, num_characters
from tests.support.texts import MAX_TEXT_TOKENS, TEXT_MODEL, library

STRATEGIES = ["longest_first", "only_first", "only_second"]
PARTS = ["a", "the same", "[MASK]", "tokenizes", "x" * 150, " " * 40, "\u200b" * 90, ".", "中"]


@pytest.fixture(scope="module")
def bundle(text_bundles: Path) -> Bundle:
    return bundles.read(text_bundles / TEXT_MODEL / "1")


def with_limit(bundle: Bundle, limit: int) -> Bundle:
    limits = bundle.manifest.limits.model_copy(update={"max_text_tokens": limit})
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))


def of_strategy(bundle: Bundle, strategy: str, folder: Path) -> Bundle:
    """The bundle with a tokenizer.json that cuts by this strategy."""
    found = library()
    found.enable_truncation(8, strategy=strategy)
    found.save(str(folder / "tokenizer.json"))
    return replace(bundle, path=folder)


def drawn(draws: random.Random, most: int) -> str:
    chosen = draws.choices(PARTS, k=3)
    return "".join(draws.choice(chosen) + draws.choice(["", " ", " "])
                   for _ in range(draws.randint(0, most)))  # fmt: skip


@pytest.mark.parametrize("limit", [MAX_TEXT_TOKENS, MAX_TEXT_TOKENS - 1])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_pair_is_cut_like_the_librarys_whole_pair_or_not_at_all(
    bundle: Bundle, tmp_path: Path, strategy: str, limit: int
) -> None:
    mine = Tokenizer(with_limit(of_strategy(bundle, strategy, tmp_path), limit))
    theirs, draws = library(), random.Random(0)
    theirs.enable_truncation(limit, strategy=strategy)
    num_long = num_refused = 0
    for _ in range(1500):
        lengths = draws.sample([2, 8, 90, 90], 2)
        pair = drawn(draws, lengths[0]), drawn(draws, lengths[1])
        try:
            expected = theirs.encode(*pair)
        except Exception:
            with pytest.raises(CannotCut):
                mine.tokens([pair], truncate=True)
            continue
        try:
            (cut,) = mine.tokens([pair], truncate=True)
        except CannotCut:
            assert max(map(len, pair)) > mine.max_characters
            num_refused += 1
            continue
        assert cut.ids == expected.ids, pair
        assert (cut.types or [0] * len(cut)) == expected.type_ids
        num_long += max(map(len, pair)) > mine.max_characters
    assert num_long > 50
    assert num_refused > 50


def test_a_pair_whose_other_text_leaves_no_room_is_named_by_its_index(
    bundle: Bundle, tmp_path: Path
) -> None:
    mine = Tokenizer(of_strategy(bundle, "only_second", tmp_path))
    with pytest.raises(CannotCut) as raised:
        mine.tokens(["a", ("a", "b"), "a " * 20, ("a", "b"), ("a " * 20, "b")], truncate=True)
    assert raised.value.index == 4
    assert raised.value.reason.startswith("is cut in its second text only, and the first leaves")
    assert json.loads((tmp_path / "tokenizer.json").read_text())["truncation"]


def test_texts_and_pairs_keep_their_order(bundle: Bundle, tmp_path: Path) -> None:
    texts = ["a", ("a", "b"), ("b", "c"), "a " * 20, ("a " * 20, "b"), "c"]
    for mine in (Tokenizer(bundle), Tokenizer(of_strategy(bundle, "only_first", tmp_path))):
        for truncate in (True, False):
            alone = [mine.tokens([text], truncate)[0] for text in texts]
            assert mine.tokens(texts, truncate) == alone
            assert [shown.ids for shown in mine.encode(texts, truncate)] == [
                tokens.ids for tokens in alone
            ]


def test_a_limit_below_a_pairs_special_tokens_refuses_pairs_to_be_cut(bundle: Bundle) -> None:
    mine = Tokenizer(with_limit(bundle, 3))
    assert mine.tokens([("a", "b")], truncate=True)[0].ids == [2, 3, 3]
    mine.num_special_of_pair = 4
    with pytest.raises(CannotCut, match="4 special tokens, the limit is 3"):
        mine.tokens([("a", "b")], truncate=True)


def test_characters_of_a_pair_are_those_of_both() -> None:
    assert (num_characters("abc"), num_characters(("ab", "c"))) == (3, 3)
