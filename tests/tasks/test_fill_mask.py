"""Candidates of mask tokens equal those of transformers' pipeline."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from addnorm.service.errors import InvalidInput
from addnorm.service.tasks.fill_mask import (
    Candidate,
    filled,
    likeliest,
    mask_positions,
    target_ids,
)
from addnorm.service.tasks.pieces import Pieces
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
    return target_ids(targets, Pieces.of(tokenizer(family).backend_tokenizer))


def candidates(
    theirs: Any, family: str, text: str, targets: list[int] | None
) -> list[list[Candidate]]:
    own, rows = tokenizer(family), logits(theirs.model, family, text)
    ids = own.backend_tokenizer.encode(text).ids
    positions = mask_positions(ids, Pieces.of(own.backend_tokenizer), "inputs")
    return [
        filled(
            ids,
            position,
            *likeliest(rows[position], 7, targets),
            Pieces.of(own.backend_tokenizer),
            len(positions) == 1,
        )
        for position in positions
    ]


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
    assert [[asdict(one) for one in own] for own in ours] == [
        [one | {"score": pytest.approx(one["score"], abs=1e-4)} for one in own] for own in expected
    ]


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
def test_other_targets_are_refused(target: str, tokens: str) -> None:
    with pytest.raises(InvalidInput, match=f"targets has '{target}', .* but {tokens}"):
        targets_of("Bert", ["in", target])


def test_a_text_needs_a_mask() -> None:
    with pytest.raises(InvalidInput, match=r"inputs has no mask token: put \[MASK\]"):
        mask_positions([1, 2], Pieces.of(tokenizer("Bert").backend_tokenizer), "inputs")
