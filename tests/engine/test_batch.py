"""Batches of sequences with and without token types, and the checks that draw them."""

from pathlib import Path

import numpy as np

from addnorm.service.asking.fair_queue import MicroBatch
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.model import Model
from addnorm.service.engine.target import Target
from tests.support.scheduling import Queue, batch, echo, submit
from tests.support.texts import TEXT_MODEL


def typed() -> Batch:
    return Batch.of([np.array([5, 6]), np.array([7])], [np.array([0, 1]), np.array([1])])


def test_a_micro_batch_joins_sequences_with_and_without_types() -> None:
    queue, target = Queue(100), Target(echo, 100)
    for own in (batch([1, 2, 3]), typed(), batch([4])):
        submit(queue, target, own)
    micro = queue.take(0)
    assert isinstance(micro, MicroBatch)
    joined = micro.batch()
    assert joined.tokens.tolist() == [1, 2, 3, 5, 6, 7, 4]
    assert joined.types is not None
    assert joined.types.tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert joined.offsets.tolist() == [0, 3, 5, 6, 7]


def test_without_types_none_are_made() -> None:
    joined = Batch.joined([(batch([1, 2], [3]), 1), (batch([4]), 0)])
    assert joined.types is None
    assert joined.grid().token_type_ids is None
    assert list(joined.grid().by_name()) == ["input_ids", "attention_mask"]


def test_one_sequence_and_the_grid_keep_their_types() -> None:
    alone = typed().sequence(0)
    assert (alone.tokens.tolist(), alone.offsets.tolist()) == ([5, 6], [0, 2])
    assert alone.types is not None
    assert alone.types.tolist() == [0, 1]
    assert [cells.tolist() for cells in typed().grid().by_name().values()] == [
        [[5, 6], [7, 0]],
        [[1, 1], [1, 0]],
        [[0, 1], [1, 0]],
    ]


def test_seeded_sequences_have_types_that_do_not_follow_from_the_ids() -> None:
    limits = Limits(max_positions=100, vocab_size=100, type_vocab_size=2)
    drawn = selfcheck.sequences(limits, [100, 1])
    assert drawn.types is not None
    assert {(token >= 50, kind) for token, kind in zip(drawn.tokens, drawn.types, strict=True)} == {
        (False, 0), (False, 1), (True, 0), (True, 1),
    }  # fmt: skip
    assert drawn.types[[0, 99]].tolist() == [0, 1]
    plain = selfcheck.sequences(limits.model_copy(update={"type_vocab_size": 1}), [100, 1])
    assert plain.types is None
    assert plain.tokens.tolist() == drawn.tokens.tolist()


def test_the_known_answer_needs_its_types(text_bundles: Path) -> None:
    bundle = bundles.read(text_bundles / TEXT_MODEL / "1")
    assert bundle.certificate
    answer = bundle.certificate["known_answer"]["fp32"]
    assert set(answer["token_type_ids"]) == {0, 1}
    engine = Model(bundle).engine(None)
    whole = selfcheck.known_answer_batch(answer)
    assert selfcheck.gives_known_answer(answer, engine.run(whole), "fp32")
    without = Batch(whole.tokens, whole.offsets)
    assert not selfcheck.gives_known_answer(answer, engine.run(without), "fp32")
