"""How long the outputs of a request will take to make and to write: predicted from what such work took before."""

import math
from collections.abc import Hashable

from addnorm.service.inference.request import InferenceRequest

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

    def predicted_s(self, request: InferenceRequest, num_bytes: int) -> float:
        """num_bytes: of the answer, estimated."""
        made_s = self.making(request).s_per_unit * num_head_rows(request)
        return made_s + self.writing(request).s_per_unit * num_bytes

    def making(self, request: InferenceRequest) -> Rate:
        """For each row of a head. The likeliest tokens are sorted, which takes longer the more of them are wanted."""
        return self._rate(request.model.bundle.ref, (request.top_k or 0).bit_length())

    def writing(self, request: InferenceRequest) -> Rate:
        """For each byte of the answer."""
        return self._rate(request.binary, request.coding)

    def hope(self, request: InferenceRequest, now: float) -> None:
        """A request was refused for what it was predicted to take."""
        self.making(request).hope(now)
        self.writing(request).hope(now)

    def _rate(self, *kind: Hashable) -> Rate:
        return self._rates.setdefault(kind, Rate())


def num_head_rows(request: InferenceRequest) -> int:
    """Rows that a head runs on."""
    if "logits" not in request.wanted:
        return 0
    return request.batch.num_tokens if request.positions == "all" else len(request.batch)
