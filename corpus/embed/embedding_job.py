"""One job: the texts of a source, window by window, to the parts of its result.

While a window is computed, the next one is read and tokenized, and the one before is written.
"""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from addnorm.corpus.embed.parts import Parts
from addnorm.corpus.embedder import Computing, Embedder, RowVectors, join_batches
from addnorm.corpus.stored_vectors import (
    NO_TEXT,
    ROW_TYPE,
    Digests,
    StoredVectors,
    digest_column,
    digests_of,
    row_digests,
)
from addnorm.corpus.texts_source import PIECE_ROWS, Source
from addnorm.service.engine.batch import Batch, Ints

LINE_EVERY_S = 30.0  # a log of ten hours has 1,200 of them
# A window is sorted by length as a whole, and is one part of the result. It ends with the first
# piece that fills one of these. Larger: more memory, and a kill loses more. Smaller: lengths differ
# more within a micro-batch, and each window costs a file.
WINDOW_ROWS = 16_384
WINDOW_BYTES = 64 * 2**20  # rows, tokens and vectors
# Vectors of an unfinished window are saved. Larger: a kill loses more. Smaller: more files.
SAVE_EVERY_S = 15.0
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
        return self.num_tokens / self.seconds

    @property
    def seconds(self) -> float:
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
        remaining = timedelta(seconds=round((self._num_rows - done) * self.seconds / self._num_now))
        print(
            f"addnorm embed: {done:,} of {self._num_rows:,} rows, {self.tokens_per_s:,.0f}"
            f" tokens a second, about {remaining} left",
            file=sys.stderr,
            flush=True,
        )


class Window(NamedTuple):
    """Consecutive rows."""

    first_row: int  # its place in OUT
    rows: pa.Table
    digests: Digests  # [n] of their texts
    earlier_rows: Ints  # [n] the row of the earlier job that has the vector, or -1
    computed: Ints  # places in the window of the rows that are computed
    batch: Batch  # of these


def first_reading(source: Source, embedder: Embedder) -> Iterator[Digests]:
    """The digests of the texts that have a place in OUT, piece by piece. CorpusError ends it if
    there are rows that cannot be embedded, and these are to be refused."""
    with asyncio.Runner() as runner:
        for rows, texts in source.read_texts():
            source.bad_rows |= runner.run(embedder.rejected(texts, rows))
            yield digests_of(
                None if row in source.bad_rows else text
                for row, text in zip(rows.tolist(), texts, strict=True)
                if not source.is_skipped(row)
            )
    source.refuse_bad_rows()


@dataclass(frozen=True)
class Job:
    """earlier: the job whose vectors are taken over. type_: of a vector."""

    source: Source
    embedder: Embedder
    parts: Parts
    vector_column: str
    earlier: StoredVectors
    type_: pa.DataType
    window_rows: int = WINDOW_ROWS
    save_every_s: float = SAVE_EVERY_S
    _unsaved: list[RowVectors] = field(default_factory=list)

    async def run(self, progress: Progress) -> None:
        """Writes all rows that are not yet written."""
        windows = self._windows(self.parts.num_rows)
        writing: asyncio.Task[None] | None = None
        coming = asyncio.ensure_future(anext(windows, None))
        while window := await coming:
            coming = asyncio.ensure_future(anext(windows, None))
            rows = window.first_row + window.computed

            async def done(
                indices: Ints, batch: Batch, column: pa.Array, rows: Ints = rows
            ) -> None:
                progress.count(batch)
                self._unsaved.append(RowVectors(rows[indices], column))
                if self.parts.unsaved_s >= self.save_every_s:
                    unsaved = RowVectors.joined(self._unsaved)
                    self._unsaved.clear()
                    await asyncio.to_thread(self.parts.save, unsaved)

            numbers = self.source.numbers(rows)
            computing = await self.embedder.start(window.batch, numbers, done)
            if writing:
                await writing
            writing = asyncio.create_task(self._write(window, computing))
        if writing:
            await writing

    async def _write(self, window: Window, computing: Computing) -> None:
        places, end = np.arange(len(window.digests)), window.first_row + len(window.digests)
        vectors = list[RowVectors]()
        if len(window.computed):
            vectors.append(RowVectors(window.computed, await computing.compute_column()))
        if (saved := self._saved(window.first_row, end)) is not None:
            vectors.append(RowVectors(saved.rows - window.first_row, saved.column))
        if len(is_earlier := places[window.earlier_rows >= 0]):
            taken = await asyncio.to_thread(self.earlier.take, window.earlier_rows[is_earlier])
            vectors.append(RowVectors(is_earlier, taken))
        if len(without_text := places[window.digests == NO_TEXT]):
            vectors.append(RowVectors(without_text, pa.nulls(len(without_text), self.type_)))
        column = RowVectors.joined(vectors).column
        digests = await asyncio.to_thread(row_digests, window.digests, column)
        rows = window.rows.append_column(self.vector_column, column)
        rows = rows.append_column(digest_column(self.vector_column), digests)
        await asyncio.to_thread(self.parts.add, rows)
        self._unsaved[:] = [part for part in self._unsaved if part.rows.max() >= end]

    def _saved(self, start: int, end: int) -> RowVectors | None:
        """The vectors that an earlier process saved of these rows."""
        if (saved := self.parts.saved) is None:
            return None
        first, last = np.searchsorted(saved.rows, (start, end)).tolist()
        column = saved.column.slice(first, last - first).cast(self.type_)
        return RowVectors(saved.rows[first:last], column) if last > first else None

    async def _windows(self, start: int) -> AsyncIterator[Window]:
        """From row `start`, with which a window must begin. Where it ends depends on the rows
        alone: a job after another one writes the same parts."""
        coming, row = self.source.pieces(start), start
        pieces, earlier_rows, batches = list[pa.RecordBatch](), list[Ints](), list[Batch]()
        digests, computed, first_row, num_bytes = list[Digests](), list[Ints](), start, 0

        def window() -> Window:
            return Window(
                first_row,
                pa.Table.from_batches(pieces),
                np.concatenate(digests),
                np.concatenate(earlier_rows),
                np.concatenate(computed) - first_row,
                join_batches(batches),
            )

        while (piece := await asyncio.to_thread(next, coming, None)) is not None:
            texts = self.source.texts(piece, row)
            digests.append(await asyncio.to_thread(digests_of, texts))
            is_known = digests[-1] == NO_TEXT
            if saved := self._saved(row, row + len(texts)):
                is_known[saved.rows - row] = True
            earlier_rows.append(np.where(is_known, -1, self.earlier.find(digests[-1])))
            pieces.append(piece)
            new = np.flatnonzero(~is_known & (earlier_rows[-1] < 0))
            computed.append(row + new)
            if len(new):
                numbers = self.source.numbers(row + new)
                new_texts = [text for index in new if (text := texts[index]) is not None]
                batches.append(await self.embedder.tokenize(new_texts, numbers))
            row += piece.num_rows
            num_bytes += piece.nbytes + len(texts) * ROW_TYPE.byte_width
            num_bytes += self.embedder.num_bytes(self.source.num_bytes(piece))
            if row - first_row >= self.window_rows or num_bytes >= WINDOW_BYTES:
                yield window()
                pieces, digests, earlier_rows, batches, computed = [], [], [], [], []
                first_row, num_bytes = row, 0
        if pieces:
            yield window()


async def speed(source: Source, embedder: Embedder, rows: Ints) -> tuple[float, float]:
    """Tokens of a row and rows a second, of these rows: about, by a seeded sample that is computed.
    NaN for no rows."""
    drawn = np.random.default_rng(0).permutation(rows)[:SAMPLE_ROWS]
    in_order = np.sort(drawn)
    texts = dict(zip(in_order.tolist(), source.some_texts(in_order), strict=True))
    num_rows = num_tokens = 0
    began = time.monotonic()
    while num_rows < len(drawn) and time.monotonic() - began < SAMPLE_S:
        sample = drawn[num_rows : num_rows + PIECE_ROWS]
        sample_texts = [text for row in sample.tolist() if (text := texts[row]) is not None]
        batch = await embedder.tokenize(sample_texts, source.numbers(sample))
        await (await embedder.start(batch, sample)).compute_column()
        num_rows, num_tokens = num_rows + len(sample), num_tokens + batch.num_tokens
    if not num_rows:
        return math.nan, math.nan
    return num_tokens / num_rows, num_rows / max(time.monotonic() - began, 1e-9)
