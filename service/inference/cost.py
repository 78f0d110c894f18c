"""How long the outputs of a query will take to make and to write: predicted from what such work took before."""

import math
from collections.abc import Hashable

from addnorm.service.inference.request import Query

WINDOW_S = 2.0  # of work: what took place before counts less
HOPE_S = 10.0  # refusals let predictions fade at this pace: else one bad measurement could refuse for ever


class Rate:
    """Seconds per unit of one kind of work, over about the last WINDOW_S of it. 0 until measured."""

    def __init__(self) -> None:
        self._seconds = self._units = 0.0
        self._hoped = math.inf  # when a prediction was last let fade

    @property
    def s_per_unit(self) -> float:
        return self._seconds / self._units if self._units else 0.0

    def add(self, units: float, seconds: float, is_done: bool) -> None:
        """Work that was given up tells only that so many units take longer than this."""
        if is_done or seconds > units * self.s_per_unit:
            kept = math.exp(-seconds / WINDOW_S)
            self._seconds = kept * self._seconds + seconds
            self._units = kept * self._units + units

    def hope(self, now: float) -> None:
        """A request was refused for what it was predicted to take."""
        self._seconds *= math.exp(-min(1.0, max(0.0, now - self._hoped) / HOPE_S))
        self._hoped = now


class Cost:
    """Of all queries of one server. A kind of work that was never measured counts as instant."""

    def __init__(self) -> None:
        self._rates: dict[Hashable, Rate] = {}

    def predicted_s(self, query: Query, num_bytes: int) -> float:
        """num_bytes: of the answer, estimated."""
        made_s = self.making(query).s_per_unit * num_head_rows(query)
        return made_s + self.writing(query).s_per_unit * num_bytes

    def making(self, query: Query) -> Rate:
        """For each row of a head. The likeliest tokens are sorted, which takes longer the more of them are wanted."""
        return self._rate(query.model.bundle.ref, (query.top_k or 0).bit_length())

    def writing(self, query: Query) -> Rate:
        """For each byte of the answer."""
        return self._rate(query.binary, query.coding)

    def hope(self, query: Query, now: float) -> None:
        """A request was refused for what it was predicted to take."""
        self.making(query).hope(now)
        self.writing(query).hope(now)

    def _rate(self, *kind: Hashable) -> Rate:
        return self._rates.setdefault(kind, Rate())


def num_head_rows(query: Query) -> int:
    """Rows that a head runs on."""
    if "logits" not in query.wanted:
        return 0
    return query.batch.num_tokens if query.positions == "all" else len(query.batch)
