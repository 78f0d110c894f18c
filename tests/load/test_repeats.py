"""Traffic with repeats: drawn as stated, and checked in full."""

from collections import Counter

import numpy as np
import orjson
import pytest

from addnorm.load import command
from addnorm.load.client import Answers
from addnorm.load.run import Reference
from addnorm.load.servers import CacheCounts, sum_metrics
from addnorm.load.stream import (
    PROFILES,
    Stream,
    TooFewSequences,
    distinct,
    unique,
    zipf,
    zipf_ranks,
)
from addnorm.service.engine.batch import Floats, Ints
from addnorm.service.engine.manifest import Limits

LIMITS = Limits(max_positions=512, vocab_size=1000)
SMALL = PROFILES["small"]


def sequences(stream: Stream) -> list[bytes]:
    return [sequence.tobytes() for request in stream.requests for sequence in request.sequences]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.5])
def test_draws_follow_zipfs_law(exponent: float) -> None:
    """Each of the first ranks, and all of the others together, within five deviations."""
    num, num_distinct = 200_000, 1000
    ranks = zipf_ranks(exponent, num_distinct, num, np.random.default_rng(0))
    law = np.arange(1, num_distinct + 1) ** -exponent
    law /= law.sum()
    seen = np.bincount(ranks, minlength=num_distinct) / num
    expected, got = ([*shares[:20], shares[20:].sum()] for shares in (law, seen))
    for share, actual_share in zip(expected, got, strict=True):
        assert abs(actual_share - share) < 5 * np.sqrt(share * (1 - share) / num)


def test_a_stream_with_repeats_is_drawn_from_so_many_distinct_sequences() -> None:
    """The commonest in proportion to the law; the profile's sizes and lengths; an end."""
    stream = zipf(SMALL, LIMITS, 2000, 1.0, 100)
    drawn = Counter(sequences(stream))
    assert len(drawn) == 100
    assert drawn.most_common(1)[0][1] / drawn.total() == pytest.approx(1 / 5.187, rel=0.1)
    assert {len(request.sequences) for request in stream.requests} == {1, 2, 3, 4}
    lengths = [len(sequence) // 8 for sequence in drawn]
    assert max(lengths) <= 128
    assert 24 < np.mean(lengths) < 36
    assert list(stream.indices()) == list(range(2000))


def test_a_stream_without_repeats_has_none() -> None:
    """Not even of a model with so few tokens that draws often agree."""
    for limits in (LIMITS, Limits(max_positions=5, vocab_size=6)):
        stream = unique(SMALL, limits, 1000)
        after = unique(SMALL, limits, 1000, seed=1, sent=stream.requests)
        assert max(Counter(sequences(stream) + sequences(after)).values()) == 1
    parts = stream.parts(300)
    assert [len(part.requests) for part in parts] == [300, 300, 300, 100]
    assert [s for part in parts for s in sequences(part)] == sequences(stream)


def test_more_distinct_sequences_than_there_are_is_an_error() -> None:
    limits = Limits(max_positions=2, vocab_size=3)
    tiny = PROFILES["tiny"]
    assert len(distinct(tiny, limits, 12, np.random.default_rng(0))) == 12
    with pytest.raises(TooFewSequences, match=r"found 12 distinct .* 13 are needed"):
        distinct(tiny, limits, 13, np.random.default_rng(0))


def compute(_: str, sequence: Ints) -> Floats:
    return np.array([sequence.sum(), len(sequence)], np.float32)


def answered(stream: Stream, wrong: dict[int, bytes]) -> Answers:
    """Every request once. wrong: the sequence whose vector is one off, by request."""
    answers = Answers()
    for index, request in enumerate(stream.requests):
        off = [float(wrong.get(index) == sequence.tobytes()) for sequence in request.sequences]
        rows = [
            compute("pooled", sequence) + np.float32(one)
            for sequence, one in zip(request.sequences, off, strict=True)
        ]
        body = orjson.dumps({"pooled": np.stack(rows)}, option=orjson.OPT_SERIALIZE_NUMPY)
        answers.add(index, 200, body, 0.1)
    return answers


def test_the_answers_to_a_sequence_must_agree_even_if_it_was_not_computed_alone() -> None:
    stream = zipf(SMALL, LIMITS, 300, 1.0, 50)
    reference = Reference(compute, most_alone=10)
    reference.learn(stream.requests)
    assert reference.coverage(stream.requests) == (len(set(sequences(stream))), 10)
    right, errors = reference.verdicts(stream, answered(stream, {}))
    assert all(right)
    assert not errors
    (commonest, _), *_ = Counter(sequences(stream)).most_common(1)
    last = max(
        index
        for index, request in enumerate(stream.requests)
        if commonest in {sequence.tobytes() for sequence in request.sequences}
    )
    for answers in (reference, Reference(compute, most_alone=1)):
        answers.learn(stream.requests)
        assert answers.verdicts(stream, answered(stream, {last: commonest}))[1] == {"wrong": 1}


def test_what_is_computed_alone_is_a_seeded_draw() -> None:
    stream = unique(SMALL, LIMITS, 100)
    drawn = []
    for _ in range(2):
        seen: list[bytes] = []

        def noted(output: str, sequence: Ints, seen: list[bytes] = seen) -> Floats:
            seen.append(sequence.tobytes())
            return compute(output, sequence)

        Reference(noted, most_alone=20).learn(stream.requests)
        drawn.append(seen)
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 20
    assert set(drawn[0]) != set(sequences(stream)[:20])


METRICS = """# TYPE addnorm_cache_hits_total counter
addnorm_cache_hits_total{model="a"} 30.0
addnorm_cache_hits_total{model="b"} 3.0
# TYPE addnorm_cache_misses_total counter
addnorm_cache_misses_total{model="a"} 5.0
# TYPE addnorm_cache_bytes gauge
addnorm_cache_bytes{model="a"} 4096.0
"""


def test_cache_counts_are_read_from_the_metrics() -> None:
    """The counts are those of all models: zeros if nothing was looked up, None for another
    server."""
    counts = CacheCounts.of_metrics(sum_metrics(METRICS))
    assert counts == CacheCounts(33, 5, 0)
    assert counts.since(CacheCounts(30, 1, 0)) == CacheCounts(3, 4, 0)
    assert CacheCounts.of_metrics(sum_metrics("addnorm_worker_threads 2.0\n")) == CacheCounts()
    assert CacheCounts.of_metrics(sum_metrics("tei_request_count 2.0\n")) is None


@pytest.mark.parametrize(
    ("counts", "warning"),
    [
        (None, "metrics could not be read"),
        (CacheCounts(90, 10, 3), "93 of them were not computed again"),
        (CacheCounts(0, 10, 0), None),
    ],
)
def test_a_load_that_repeats_its_requests_says_if_it_measured_a_cache(
    counts: CacheCounts | None, warning: str | None
) -> None:
    said = command.warning(counts, "The profile")
    assert (said is None) == (warning is None)
    assert said is None or str(warning) in said
    assert said is None or said.startswith("The profile repeats")
