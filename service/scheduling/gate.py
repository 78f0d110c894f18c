"""The gate: what the requests of each API key hold, and the one place that rejects a request for
the sake of others. Knows no tensors and no HTTP."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

from addnorm.service.errors import (
    BodiesFull,
    ResponsesFull,
    ServiceError,
    TooManyAtOnce,
    TooManyConnections,
)

# "requests": that are answered now. "calls": those of them that came over gRPC. "bodies": bytes of
# bodies and of what is read of them. "responses": bytes of answers, and of the rows that they are
# made of.
Account = Literal["requests", "calls", "bodies", "responses"]


class Rule(NamedTuple):
    """How API keys share an account.

    ratio: a key may hold this many times what it leaves free. Larger: one key leaves less to
    others. Smaller: it cannot use what nobody else wants.
    small_ratio: a request is small, and granted whatever its key holds, if it leaves this many
    times its own size free. Larger: more requests are rejected beside large ones of their own key.
    Smaller: one key's small requests leave less to other keys.
    """

    ratio: int
    small_ratio: float = math.inf

    def grants(self, limit: float, total: float, of_key: float, own: float, more: float) -> bool:
        """Whether a request that holds `own` may hold so much more. One that is alone may: other
        limits bound a single request.

        total: what all requests hold; of_key: what those of its key do.
        """
        if total == own:
            return True
        left = limit - total - more
        is_small = self.small_ratio * (own + more) <= left
        return is_small or of_key + more <= self.ratio * left


BYTES = Rule(ratio=8, small_ratio=64)


class Holdings:
    """What one request holds, and the name of its API key."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.amounts: dict[Account, int] = {}


def rejection(kind: type[ServiceError], why: str, wait_s: float = 1.0) -> ServiceError:
    """What a request is told that must come again, after wait_s."""
    return kind(f"{why}; retry in {max(1, math.ceil(wait_s))} s", retry_after_s=wait_s)


class Gate:
    """The ledger of all accounts. On the event loop only."""

    def __init__(self, limits: Mapping[Account, int]) -> None:
        self.limits = limits
        self.total: Counter[Account] = Counter()
        self._by_key: defaultdict[Account, Counter[str]] = defaultdict(Counter)

    @contextmanager
    def admit(self, holdings: Holdings, max_requests: int = 0) -> Iterator[None]:
        """For `with`: a request is answered. Whatever becomes of it, all that it holds is given
        back at the end. TooManyAtOnce if its key has max_requests already; 0: any number."""
        now = self._by_key["requests"][holdings.key]
        if max_requests and now >= max_requests:
            why = f"the API key {holdings.key!r} has {now} requests under way, its limit is"
            raise rejection(TooManyAtOnce, f"{why} {max_requests}")
        self.keep(holdings, "requests", 1)
        try:
            yield
        finally:
            for account in holdings.amounts:
                self.keep(holdings, account, 0)

    def hold(self, holdings: Holdings, account: Account, amount: int) -> None:
        """From now on the request holds so much. BodiesFull, ResponsesFull or TooManyConnections if
        that is more than before and its key has no space for it."""
        own, total, limit = (
            holdings.amounts.get(account, 0),
            self.total[account],
            self.limits[account],
        )
        more, of_key = amount - own, self._by_key[account][holdings.key]
        if more > 0 and not BYTES.grants(limit, total, of_key, own, more):
            if account == "calls":
                why = f"{total} calls over gRPC are under way, the limit is {limit}, of which each"
                raise rejection(TooManyConnections, f"{why} API key leaves some to others")
            raise rejection(
                BodiesFull if account == "bodies" else ResponsesFull,
                f"overloaded: {account} in progress hold {total:,} bytes, this request needs"
                f" {more:,} more, the limit is {limit:,}, of which a caller leaves"
                f" 1/{BYTES.ratio + 1} to others",
            )
        self.keep(holdings, account, amount)

    def keep(self, holdings: Holdings, account: Account, amount: int) -> None:
        """The same whatever the limit: it is held already."""
        more, by_key = amount - holdings.amounts.get(account, 0), self._by_key[account]
        holdings.amounts[account] = amount
        self.total[account] += more
        by_key[holdings.key] += more
        if not by_key[holdings.key]:
            del by_key[holdings.key]
