"""One job: the texts of a source, window by window, to the parts of its result.

While a window is computed, the next one is read and tokenized, and the one before is written.
"""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from addnorm.corpus.embedder import Computing, Embedder, join_batches
from addnorm.corpus.parts import Parts
from addnorm.corpus.stored_vectors import (
    ROW_TYPE,
    Digests,
    StoredVectors,
    digest_column,
    digests_of,
    row_digests,
)
from addnorm.corpus.texts_source import PIECE_ROWS, Source
from addnorm.service.engine.batch import Batch, Ints
from addnorm.service.engine.tokenizer import Text

LINE_EVERY_S = 30.0  # a log of ten hours has 1,200 of them
# A window is sorted by length as a whole, and is one part of the result. It ends with the first
# piece that fills one of these. Larger: more memory, and a kill loses more. Smaller: lengths differ
# more within a micro-batch, and each window costs a file.
WINDOW_ROWS = 16_384
WINDOW_BYTES = 64 * 2**20  # rows, tokens and vectors


SAMPLE_ROWS, SAMPLE_S = 2048, 10.0  # computed at most to estimate a job


class Progress:
    """Told of each request that is computed. To be closed."""

    def __init__(
        self,
        num_rows: int,
        num_done: int = 0,
        is_shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """num_done: of the rows, by an earlier process."""
        self.num_tokens = 0
        self._num_rows, self._num_done, self._num_now = num_rows, num_done, 0
        self._is_shown, self._clock = is_shown, clock
        self._started = self._last_line = clock()
        is_hidden = None if is_shown else True  # None: where stderr is no terminal
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
        if not self._is_shown or not self._bar.disable:
            return
        if self._clock() - self._last_line < LINE_EVERY_S:
            return
        self._last_line = self._clock()
        done = self._num_done + self._num_now
        remaining = timedelta(
            seconds=round((self._num_rows - done) * self._seconds / self._num_now)
        )
        print(
            f"addnorm embed: {done:,} of {self._num_rows:,} rows, {self.tokens_per_s:,.0f}"
            f" tokens a second, about {remaining} left",
            file=sys.stderr,
            flush=True,
        )


class Window(NamedTuple):
    """Consecutive rows."""

    rows: pa.Table
    digests: Digests  # [n] of their texts
    earlier_rows: Ints  # [n] the row of the earlier job that has the vector, or -1
    numbers: Ints  # of the rows that are computed
    batch: Batch  # of these


async def run(
    source: Source,
    embedder: Embedder,
    parts: Parts,
    vector_column: str,
    progress: Progress,
    earlier: StoredVectors,
    window_rows: int = WINDOW_ROWS,
) -> None:
    """Writes all rows that are not yet written."""
    windows = _windows(source, embedder, parts.num_rows, earlier, window_rows)
    writing: asyncio.Task[None] | None = None
    coming = asyncio.ensure_future(anext(windows, None))
    while window := await coming:
        coming = asyncio.ensure_future(anext(windows, None))
        computing = await embedder.start(window.batch, window.numbers, progress.count)
        if writing:
            await writing
        writing = asyncio.create_task(_write(window, computing, parts, vector_column, earlier))
    if writing:
        await writing


async def _write(
    window: Window, computing: Computing, parts: Parts, name: str, earlier: StoredVectors
) -> None:
    is_known = window.earlier_rows >= 0
    columns = [await computing.compute_column()] if len(window.numbers) else []
    if is_known.any():
        columns.append(await asyncio.to_thread(earlier.take, window.earlier_rows[is_known]))
    places = np.argsort(np.argsort(is_known, kind="stable"), kind="stable")
    column = pa.concat_arrays(columns).take(pa.array(places)) if len(columns) > 1 else columns[0]
    digests = await asyncio.to_thread(row_digests, window.digests, column)
    rows = window.rows.append_column(name, column).append_column(digest_column(name), digests)
    await asyncio.to_thread(parts.add, rows)


async def _windows(
    source: Source,
    embedder: Embedder,
    start: int,
    earlier: StoredVectors,
    max_rows: int,
) -> AsyncIterator[Window]:
    """From row `start`, with which a window must begin. Where it ends depends on the rows alone: a
    job after another one writes the same parts."""
    coming, row = source.pieces(start), start
    pieces, earlier_rows, batches = list[pa.RecordBatch](), list[Ints](), list[Batch]()
    digests, first_row, num_bytes = list[Digests](), start, 0

    def window() -> Window:
        joined = np.concatenate(earlier_rows)
        numbers = first_row + np.flatnonzero(joined < 0)
        rows = pa.Table.from_batches(pieces)
        return Window(rows, np.concatenate(digests), joined, numbers, join_batches(batches))

    while (piece := await asyncio.to_thread(next, coming, None)) is not None:
        texts = source.texts(piece)
        digests.append(await asyncio.to_thread(digests_of, texts))
        earlier_rows.append(earlier.find(digests[-1]))
        pieces.append(piece)
        new = np.flatnonzero(earlier_rows[-1] < 0)
        if len(new):
            batches.append(await embedder.tokenize([texts[index] for index in new], row + new))
        row += piece.num_rows
        num_bytes += piece.nbytes + len(texts) * ROW_TYPE.byte_width
        num_bytes += embedder.num_bytes(source.num_bytes(piece))
        if row - first_row >= max_rows or num_bytes >= WINDOW_BYTES:
            yield window()
            pieces, digests, earlier_rows, batches, first_row, num_bytes = [], [], [], [], row, 0
    if pieces:
        yield window()


async def speed(source: Source, embedder: Embedder, rows: Ints) -> tuple[float, float]:
    """Tokens of a row and rows a second, of these rows: about, by a seeded sample that is computed.
    NaN for no rows."""
    drawn = np.random.default_rng(0).permutation(rows)[:SAMPLE_ROWS]
    texts, start = dict[int, Text](), 0
    for piece in source.pieces():
        here = drawn[(drawn >= start) & (drawn < start + piece.num_rows)]
        texts_here = source.texts(piece.take(pa.array(here - start)))
        texts.update(zip(here.tolist(), texts_here, strict=True))
        start += piece.num_rows
    num_rows = num_tokens = 0
    began = time.monotonic()
    while num_rows < len(drawn) and time.monotonic() - began < SAMPLE_S:
        sample = drawn[num_rows : num_rows + PIECE_ROWS]
        batch = await embedder.tokenize([texts[row] for row in sample.tolist()], sample)
        await (await embedder.start(batch, sample)).compute_column()
        num_rows, num_tokens = num_rows + len(sample), num_tokens + batch.num_tokens
    if not num_rows:
        return math.nan, math.nan
    return num_tokens / num_rows, num_rows / max(time.monotonic() - began, 1e-9)
