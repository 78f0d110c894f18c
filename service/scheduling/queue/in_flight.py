"""Merging: a sequence that several jobs of one backlog wait for is computed once. Knows no queue.

Each job queues the sequence for itself. So no job waits longer because another asked first, and no
job is lost when another is cancelled. The first of them whose turn comes has it computed, for all.
"""

from addnorm.service.scheduling.job import Identity, Results, Waiting


class InFlight:
    """The sequences of one backlog that wait or run, by identity.

    Of equal ones that wait, the first to come is counted in the queue's tokens, and the others are
    not. A sequence without an identity is always counted.
    """

    def __init__(self) -> None:
        self._waiting: dict[Identity, dict[Waiting, None]] = {}  # those that wait, in order
        self._running: dict[Identity, list[Waiting]] = {}  # those that joined one that runs

    def num_new_tokens(self, results: Results) -> int:
        """Tokens of sequences that neither wait nor run yet."""
        if results.identities is None:
            return sum(results.lengths)
        return sum(
            length
            for identity, length in zip(results.identities, results.lengths, strict=True)
            if identity not in self._waiting and identity not in self._running
        )

    def join(self, sequences: list[Waiting]) -> list[Waiting]:
        """Lets those of one job share the rows of equal ones that run. -> the others."""
        if sequences[0].identity is None:
            return sequences
        alone = list[Waiting]()
        for sequence in sequences:
            self._running.get(sequence.identity, alone).append(sequence)
        return alone

    def add(self, sequences: list[Waiting]) -> int:
        """Sequences of one job wait from now on. Returns their tokens that are counted."""
        if sequences[0].identity is not None:
            for sequence in sequences:
                self._waiting.setdefault(sequence.identity, {})[sequence] = None
        return sum(own.length for own in sequences if self.is_counted(own))

    def is_counted(self, sequence: Waiting) -> bool:
        """Whether the tokens of a waiting sequence are counted: only the first of equal ones is."""
        equal = self._waiting.get(sequence.identity) if sequence.identity is not None else None
        return equal is None or next(iter(equal)) is sequence

    def leave(self, sequence: Waiting) -> Waiting | None:
        """Nobody waits for it any more. -> the one that is counted in its place, if there is."""
        equal = self._waiting.get(sequence.identity) if sequence.identity is not None else None
        if equal is None:
            return None
        was_counted = self.is_counted(sequence)
        del equal[sequence]
        if not equal:
            del self._waiting[sequence.identity]
            return None
        return next(iter(equal)) if was_counted else None

    def take(self, sequence: Waiting) -> list[Waiting]:
        """It is computed next. -> all that waited for it, itself included."""
        if sequence.identity is None:
            return [sequence]
        equal = list(self._waiting.pop(sequence.identity))
        self._running[sequence.identity] = [other for other in equal if other is not sequence]
        return equal

    def end(self, sequence: Waiting) -> list[Waiting]:
        """Its run has ended. -> those that joined it."""
        return self._running.pop(sequence.identity, []) if sequence.identity is not None else []
