"""Candidates of mask tokens equal those of transformers' pipeline."""

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders

from addnorm.service.asking.tasks.fill_mask import (
    Candidate,
    MaskedText,
    likeliest,
    mask_positions,
    target_ids,
)
from addnorm.service.asking.tasks.pieces import Pieces
from addnorm.service.errors import InvalidInput
from tests.support.pipelines import FAMILIES, answer, logits, model, pipeline, tokenizer

TEXTS = ("Maria moved to {} in March.", "{} {} wasn't published, {}.")
TARGETS = ["a", "in", ".", "s"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def theirs(family: str) -> Any:
    return pipeline("fill-mask", model(family, "ForMaskedLM"), family)


def targets_of(family: str, targets: Sequence[str]) -> list[int]:
    return target_ids(targets, Pieces.from_tokenizer(tokenizer(family).backend_tokenizer))


def candidates(
    theirs: Any, family: str, text: str, targets: list[int] | None
) -> list[list[Candidate]]:
    tokenizer_, rows = tokenizer(family), logits(theirs.model, family, text)
    ids, pieces = (
        np.array(tokenizer_.backend_tokenizer.encode(text).ids),
        Pieces.from_tokenizer(tokenizer_.backend_tokenizer),
    )
    positions = mask_positions(ids, pieces, "inputs")
    masked = MaskedText(ids, positions, pieces)
    return [masked.fill(at, *likeliest(rows[at], 7, targets)) for at in positions]


@pytest.mark.parametrize("targets", [None, TARGETS])
@pytest.mark.parametrize("text", TEXTS)
def test_candidates_equal_the_pipelines(
    theirs: Any, family: str, text: str, targets: list[str] | None
) -> None:
    text = text.replace("{}", tokenizer(family).mask_token)
    ids = targets_of(family, targets) if targets else None
    ours = candidates(theirs, family, text, ids)
    options = {"top_k": 7, **({"targets": targets} if targets else {})}
    expected = answer(theirs, text, **options)
    expected = [expected] if len(ours) == 1 else expected
    assert [[asdict(entry) for entry in entries] for entries in ours] == [
        [entry | {"score": pytest.approx(entry["score"], abs=1e-4)} for entry in entries]
        for entries in expected
    ]


def filled(pieces: Pieces, ids: list[int], at: int, tokens: Sequence[int]) -> list[Candidate]:
    row = np.array(ids)
    scores = np.zeros(len(tokens), np.float32)
    return MaskedText(row, mask_positions(row, pieces, "inputs"), pieces).fill(
        at, np.array(tokens), scores
    )


def test_a_sequence_is_what_the_library_makes_of_all_its_tokens(family: str) -> None:
    """Also where it begins with special tokens or the mask, and where tokens are parts of
    characters, special, or unknown to the tokenizer."""
    library = tokenizer(family).backend_tokenizer
    pieces, draws = Pieces.from_tokenizer(library), random.Random(0)
    assert pieces.mask
    special, vocab_size = sorted(pieces.special_ids), library.get_vocab_size()
    for _ in range(300):
        ids = [draws.randrange(vocab_size + 2) for _ in range(draws.randint(1, 9))]
        ids = [draws.choice(special) for _ in range(draws.choice((0, 0, 2)))] + ids
        ids[draws.randrange(len(ids))] = pieces.mask[0]
        at = ids.index(pieces.mask[0])
        plain = ids.count(pieces.mask[0]) == 1
        tokens = [*special, *(draws.randrange(vocab_size + 2) for _ in range(5))]
        for one, token in zip(filled(pieces, ids, at, tokens), tokens, strict=True):
            whole = [*ids[:at], token, *ids[at + 1 :]]
            assert one.sequence == library.decode(whole, skip_special_tokens=plain)
            assert one.token_str == library.decode([token], skip_special_tokens=False)


def test_of_a_decoder_that_looks_at_neighbours_whole_texts_are_decoded() -> None:
    library = Tokenizer.from_str(tokenizer("Bert").backend_tokenizer.to_str())
    library.decoder = decoders.Sequence([decoders.WordPiece(), decoders.Strip("m", 1, 0)])
    pieces = Pieces.from_tokenizer(library)
    ids = library.encode("Maria moved to [MASK] in March.").ids
    at = ids.index(library.token_to_id("[MASK]"))
    (one,) = filled(pieces, ids, at, [ids[1]])
    expected = [*ids[:at], ids[1], *ids[at + 1 :]]
    assert one.sequence == library.decode(expected, skip_special_tokens=True)
    assert one.sequence.startswith("aria")


def test_a_candidate_costs_no_decoding_of_its_text(family: str) -> None:
    """Hundreds of masks, of a hundred candidates each, would take minutes."""
    library, decoded = tokenizer(family).backend_tokenizer, list[int]()
    pieces = Pieces.from_tokenizer(library)

    def counted(rows: Sequence[list[int]], plain: bool) -> list[str]:
        decoded.extend(map(len, rows))
        return library.decode_batch(rows, skip_special_tokens=plain)

    assert pieces.mask
    ids = [pieces.mask[0], *range(20, 120)]
    top = filled(pieces._replace(texts=counted), ids, 0, range(20, 90))
    assert len({one.sequence for one in top}) > 1
    assert sum(decoded) == len(top)


def test_top_k_may_exceed_the_vocabulary_and_ties_go_by_id() -> None:
    logits = np.float32([0, 1, 1] * 20)
    ids, scores = likeliest(logits, 99)
    assert ids.tolist() == [*np.flatnonzero(logits), *np.flatnonzero(logits == 0)]
    assert scores.sum() == pytest.approx(1)


def test_a_target_is_one_token_in_the_vocabulary_or_after_tokenizing() -> None:
    assert targets_of("Bert", ["IN", "in", "##s"]) == targets_of("Bert", ["in", "##s"])


@pytest.mark.parametrize(
    ("target", "tokens"), [("in a", r"2: \['in', 'a'\]"), (" ", r"0: \[\]"), ("中", r"1: \['\[UNK")]
)
def test_other_targets_are_rejected(target: str, tokens: str) -> None:
    with pytest.raises(InvalidInput, match=f"targets has '{target}', .* but {tokens}"):
        targets_of("Bert", ["in", target])


def test_a_text_needs_a_mask() -> None:
    with pytest.raises(InvalidInput, match=r"inputs has no mask token: put \[MASK\]"):
        mask_positions(
            np.array([1, 2]), Pieces.from_tokenizer(tokenizer("Bert").backend_tokenizer), "inputs"
        )
