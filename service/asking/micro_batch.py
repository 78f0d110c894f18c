"""Sequences that wait, and those that run together. Knows no queue."""

from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from addnorm.service.asking.ask import Ask
from addnorm.service.engine.batch import AnyRows, Batch
from addnorm.service.engine.target import Target


class Waiting(NamedTuple):
    """One sequence of an ask that no worker thread has taken yet. Sorts by length, then by
    arrival."""

    length: int
    number: int  # of the ask
    sequence_index: int  # in the batch of the ask
    ask: Ask


class MicroBatch(NamedTuple):
    """Sequences of one target that run together. Those of one ask stand together, in the ask's
    order."""

    target: Target
    sequences: list[Waiting]
    taken: float
    on_all_cores: bool = False  # else on its worker's thread alone

    @classmethod
    def of(cls, target: Target, sequences: list[Waiting], taken: float) -> "MicroBatch":
        return cls(target, sorted(sequences, key=attrgetter("number", "sequence_index")), taken)

    @property
    def num_tokens(self) -> int:
        return sum(sequence.length for sequence in self.sequences)

    @property
    def cost_s(self) -> float:
        """Predicted time of one worker thread."""
        return self.num_tokens * self.target.s_per_token

    @property
    def is_bulk(self) -> bool:
        return self.sequences[0].ask.is_bulk

    def run(self) -> tuple[Batch, AnyRows]:
        """What it computes, and its rows. Raises what the session raises."""
        batch, on_all_cores = self.batch(), self.target.run_on_all_cores
        run = on_all_cores if on_all_cores and self.on_all_cores else self.target.run
        rows = run(batch)
        assert rows.num_tokens == batch.num_tokens
        return batch, rows

    def batch(self) -> Batch:
        first = self.sequences[0].ask
        if first is self.sequences[-1].ask and len(self.sequences) == len(first.batch):
            return first.batch
        return Batch.joined([(ask.batch, index) for _, _, index, ask in self.sequences])

    def by_ask(self) -> list[tuple[Ask, list[Waiting]]]:
        """Its asks, and the sequences of each."""
        return [(ask, list(own)) for ask, own in groupby(self.sequences, attrgetter("ask"))]

    def deliver(self, rows: AnyRows) -> None:
        """Gives each ask its rows."""
        start = 0
        for ask, sequences in self.by_ask():
            end = start + sum(sequence.length for sequence in sequences)
            ask.rows.receive([own.sequence_index for own in sequences], rows.span(start, end))
            start = end
