"""How far a job is, on stderr: a bar on a terminal, a line from time to time elsewhere."""

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tqdm import tqdm

from addnorm.service.runtime.batch import Batch

LINE_EVERY_S = 30.0  # a log of ten hours has 1,200 of them


class Progress:
    """Told of each request that is computed. To be closed."""

    def __init__(
        self,
        num_rows: int,
        num_done: int = 0,
        shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """num_done: of the rows, by an earlier process."""
        self.num_tokens = 0
        self._num_rows, self._num_done, self._num_now = num_rows, num_done, 0
        self._shown, self._clock = shown, clock
        self._started = self._last_line = clock()
        is_hidden = None if shown else True  # None: where stderr is no terminal
        self._bar: Any = tqdm(
            total=num_rows, initial=num_done, unit=" rows", disable=is_hidden, file=sys.stderr
        )

    def close(self) -> None:
        self._bar.close()

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self._seconds

    @property
    def _seconds(self) -> float:
        return max(self._clock() - self._started, 1e-9)

    def count(self, batch: Batch) -> None:
        self.num_tokens += batch.num_tokens
        self._num_now += len(batch)
        self._bar.set_postfix_str(f"{self.tokens_per_s:,.0f} tokens/s", refresh=False)
        self._bar.update(len(batch))
        if not self._shown or not self._bar.disable:
            return
        if self._clock() - self._last_line < LINE_EVERY_S:
            return
        self._last_line = self._clock()
        done = self._num_done + self._num_now
        left = timedelta(seconds=round((self._num_rows - done) * self._seconds / self._num_now))
        print(
            f"addnorm embed: {done:,} of {self._num_rows:,} rows, {self.tokens_per_s:,.0f}"
            f" tokens a second, about {left} left",
            file=sys.stderr,
            flush=True,
        )
