"""One job: the texts of a source, window by window, to the parts of its result.

While a window is computed, the next one is read and tokenized, and the one before is written.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pyarrow as pa

from addnorm.corpus.embedder import Computing, Embedder, join_batches
from addnorm.corpus.parts import Parts
from addnorm.corpus.progress import Progress
from addnorm.corpus.texts_source import Source
from addnorm.service.runtime.batch import Batch

# A window is sorted by length as a whole, and is one part of the result. It ends with the first
# piece that fills one of these. Larger: more memory, and a kill loses more. Smaller: lengths differ
# more within a micro-batch, and each window costs a file.
WINDOW_ROWS = 16_384
WINDOW_BYTES = 64 * 2**20  # rows, tokens and vectors


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
    pieces = source.pieces(start)
    pending, row = _Pending(start, max_rows), start
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        batch = await embedder.tokenize(source.texts(piece), row)
        pending.add(piece, batch, embedder.num_bytes(batch))
        row += piece.num_rows
        if pending.is_full:
            yield pending.window()
            pending = _Pending(row, max_rows)
    if pending.pieces:
        yield pending.window()


class _Pending:
    """A window that grows."""

    def __init__(self, first_row: int, max_rows: int) -> None:
        self.first_row, self._max_rows = first_row, max_rows
        self.pieces = list[pa.RecordBatch]()
        self._batches = list[Batch]()
        self._num_rows = self._num_bytes = 0

    def add(self, piece: pa.RecordBatch, batch: Batch, num_bytes: int) -> None:
        self.pieces.append(piece)
        self._batches.append(batch)
        self._num_rows += piece.num_rows
        self._num_bytes += piece.nbytes + num_bytes

    @property
    def is_full(self) -> bool:
        return self._num_rows >= self._max_rows or self._num_bytes >= WINDOW_BYTES

    def window(self) -> Window:
        rows = pa.Table.from_batches(self.pieces)
        return Window(self.first_row, rows, join_batches(self._batches))
