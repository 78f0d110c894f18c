"""One job: the texts of a source, window by window, to the parts of its result.

While a window is computed, the next one is read and tokenized, and the one before is written.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from tqdm import tqdm

from addnorm.corpus.embedder import Computing, Embedder, join_batches
from addnorm.corpus.parts import Parts
from addnorm.corpus.texts_source import Source
from addnorm.service.engine.batch import Batch

LINE_EVERY_S = 30.0  # a log of ten hours has 1,200 of them
# A window is sorted by length as a whole, and is one part of the result. It ends with the first
# piece that fills one of these. Larger: more memory, and a kill loses more. Smaller: lengths differ
# more within a micro-batch, and each window costs a file.
WINDOW_ROWS = 16_384
WINDOW_BYTES = 64 * 2**20  # rows, tokens and vectors


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


class Window(NamedTuple):
    """Consecutive rows."""

    first_row: int
    rows: pa.Table
    batch: Batch


async def run(
    source: Source,
    embedder: Embedder,
    parts: Parts,
    vector_column: str,
    progress: Progress,
    window_rows: int = WINDOW_ROWS,
) -> None:
    """Writes all rows that are not yet written."""
    windows = _windows(source, embedder, parts.num_rows, window_rows)
    writing: asyncio.Task[None] | None = None
    coming = asyncio.ensure_future(anext(windows, None))
    while window := await coming:
        coming = asyncio.ensure_future(anext(windows, None))
        computing = await embedder.start(window.batch, window.first_row, progress.count)
        if writing:
            await writing
        writing = asyncio.create_task(_write(window.rows, computing, parts, vector_column))
    if writing:
        await writing


async def _write(rows: pa.Table, computing: Computing, parts: Parts, name: str) -> None:
    column = await computing.compute_column()
    await asyncio.to_thread(parts.add, rows.append_column(name, column))


async def _windows(
    source: Source, embedder: Embedder, start: int, max_rows: int
) -> AsyncIterator[Window]:
    """From row `start`, with which a window must begin."""
    coming = source.pieces(start)
    pieces, batches = list[pa.RecordBatch](), list[Batch]()
    first_row = row = start
    num_bytes = 0
    while (piece := await asyncio.to_thread(next, coming, None)) is not None:
        batch = await embedder.tokenize(source.texts(piece), row)
        pieces.append(piece)
        batches.append(batch)
        row += piece.num_rows
        num_bytes += piece.nbytes + embedder.num_bytes(batch)
        if row - first_row >= max_rows or num_bytes >= WINDOW_BYTES:
            yield Window(first_row, pa.Table.from_batches(pieces), join_batches(batches))
            pieces, batches, first_row, num_bytes = [], [], row, 0
    if pieces:
        yield Window(first_row, pa.Table.from_batches(pieces), join_batches(batches))
