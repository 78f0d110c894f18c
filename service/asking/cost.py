"""Predicts how long the outputs of a request take to compute and to encode, from what earlier
requests took."""

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.turns import worked_s

# WINDOW_S: measurements count over about this much work. Larger: predictions follow a change later.
#   Smaller: they follow noise.
# FADE_S: while requests are rejected, predictions shrink by a factor e in this time, because only
#   work that runs corrects them. Larger: one bad measurement rejects for longer. Smaller: more work
#   is started that comes late.
WINDOW_S = 2.0
FADE_S = 10.0


class Rate:
    """Seconds per unit of one kind of work, averaged over about the last WINDOW_S of it. 0 until
    measured."""

    def __init__(self) -> None:
        self._seconds = self._units = 0.0
        self._faded = math.inf  # when `fade` was last called

    @property
    def s_per_unit(self) -> float:
        return self._seconds / self._units if self._units else 0.0

    def add(self, units: float, seconds: float, is_done: bool) -> None:
        """So many units took so long. Work that was stopped early shows only that they take longer
        than this."""
        if is_done or seconds > units * self.s_per_unit:
            decay = math.exp(-seconds / WINDOW_S)
            self._seconds = decay * self._seconds + seconds
            self._units = decay * self._units + units

    def fade(self, now: float) -> None:
        """A request was rejected for its prediction: the rate may be wrong."""
        self._seconds *= math.exp(-min(1.0, max(0.0, now - self._faded) / FADE_S))
        self._faded = now


@contextmanager
def measure(rate: Rate, units: float, clock: Callable[[], float] = worked_s) -> Iterator[None]:
    """For `with`: the work on so many units takes as long as it works, by the clock. What others
    take meanwhile does not count."""
    began, is_done = clock(), False
    try:
        yield
        is_done = True
    finally:
        if units:
            rate.add(units, clock() - began, is_done)


class Cost:
    """Rates of several kinds of work. Work of a kind that was never measured counts as instant."""

    def __init__(self) -> None:
        self._rates: dict[Hashable, Rate] = {}

    def predicted_s(self, ask: Ask) -> float:
        made_s = self.making(ask).s_per_unit * num_head_rows(ask)
        return made_s + self.writing(ask).s_per_unit * ask.num_bytes

    def making(self, ask: Ask) -> Rate:
        """Per row that a head runs on."""
        pairs = zip(ask.outputs, ask.sizes, strict=True)
        return self._rate(
            ask.model.bundle.ref, *(output.cost for output, size in pairs if size.head)
        )

    def writing(self, ask: Ask) -> Rate:
        """Per byte of the response, as estimated. Models and routes have rates of their own, since
        writing includes a task's results; and so have outputs whose estimates are high."""
        estimates = (output.name for output in ask.outputs if output.is_estimated)
        kind = ask.model.name, ask.route, ask.answer_bytes is None
        return self._rate(*kind, ask.binary, ask.coding, *estimates)

    def fade(self, ask: Ask, now: float) -> None:
        """A request was rejected for its prediction: the rates may be wrong."""
        self.making(ask).fade(now)
        self.writing(ask).fade(now)

    def _rate(self, *kind: Hashable) -> Rate:
        return self._rates.setdefault(kind, Rate())


def num_head_rows(ask: Ask) -> int:
    """The number of rows that heads run on."""
    return sum(size.num_rows for size in ask.sizes if size.head)
