"""Ray Data: `dataset.map_batches(Addnorm, ...)`. Each of Ray's workers has an engine of its own.

Does not import Ray.
"""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa

from addnorm.corpus.embedder import Embedder, EmbedOptions
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.texts_source import bad_rows
from addnorm.service.engine.fingerprint import METADATA_KEY, to_text


class Addnorm:
    """A callable class for `map_batches`, with `batch_format="pyarrow"`.

    A row's bits depend neither on its batch nor on its worker, if all workers have one fingerprint.
    """

    def __init__(
        self,
        bundle: str,
        text_column: str = "text",
        vector_column: str = "vector",
        worker_threads: int = 1,
        **options: Any,
    ) -> None:
        """bundle: a folder <name>/<version> that every node has. worker_threads: as many as the
        worker's `num_cpus`. options: those of `addnorm embed`, such as precision, dtype, truncate.
        CorpusError if they do not fit."""
        self._text_column, self._vector_column = text_column, vector_column
        self._embedder = Embedder(
            Path(bundle), EmbedOptions(**options), worker_threads=worker_threads
        )
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """Frees it where the process goes on. Ray ends its workers' processes."""
        self._runner.close()
        self._embedder.close()

    @property
    def metadata(self) -> dict[str, str]:
        """For the schema of a file of these vectors: the fingerprint."""
        fingerprint = self._embedder.fingerprint
        return {METADATA_KEY: to_text(fingerprint.parts or {}, fingerprint.bits)}

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The rows with their vectors. CorpusError names a row of the batch that has no text, or
        whose text is rejected."""
        texts = rows.column(self._text_column)
        for problem in bad_rows(texts.combine_chunks(), self._text_column, 0).values():
            raise CorpusError(problem)
        column = self._runner.run(self._embedder.compute_column(texts.to_pylist()))
        return rows.append_column(self._vector_column, column)
