"""A job beside its engine alone: the same sequences, sorted, run directly on all workers."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tqdm import tqdm

from addnorm.corpus import embedding_job
from addnorm.corpus.columns import EmbedOptions
from addnorm.corpus.embedder import Embedder
from addnorm.corpus.embedding_job import Progress
from addnorm.corpus.parts import Parts
from addnorm.corpus.texts_source import Source
from addnorm.load.bench.offline import sorted_batches
from addnorm.service.runtime.batch import Batch

MIN_RATIO = 0.95


class Rates(NamedTuple):
    """Tokens per second of each round."""

    job: list[float]
    alone: list[float]

    @property
    def ratio(self) -> float:
        """Median over rounds. Each round's two runs follow each other."""
        return median(job / alone for job, alone in zip(self.job, self.alone, strict=True))


def measured(source: Source, bundle: Path, precision: str, folder: Path, rounds: int) -> Rates:
    """The job reads, tokenizes, sorts, computes, pools and writes; the engine alone computes."""
    embedder = Embedder(bundle, EmbedOptions(precision=precision, truncate=True), cache_bytes=0)
    try:
        with asyncio.Runner() as runner:
            batches = runner.run(_batches(source, embedder))
            rates = Rates([], [])
            for number in range(rounds):
                for what in ("alone", "job") if number % 2 else ("job", "alone"):
                    if what == "alone":
                        rates.alone.append(_alone(embedder, batches))
                    else:
                        rates.job.append(_job(source, embedder, folder, runner))
            return rates
    finally:
        embedder.close()


async def _batches(source: Source, embedder: Embedder) -> list[Batch]:
    """Micro-batches of all texts."""
    sequences = []
    for piece in source.pieces():
        batch = await embedder.tokenized(source.texts(piece), 0)
        sequences += [batch.sequence(index).tokens for index in range(len(batch))]
    return sorted_batches(sequences, embedder.token_budget)


def _alone(embedder: Embedder, batches: list[Batch]) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(embedder.num_workers) as workers:
        for _ in workers.map(embedder.engine.run, batches):
            pass
    return sum(batch.num_tokens for batch in batches) / (time.perf_counter() - started)


def _job(source: Source, embedder: Embedder, folder: Path, runner: asyncio.Runner) -> float:
    out = folder / "speed.parquet"
    out.unlink(missing_ok=True)
    parts = Parts(out, {"input": {}, "options": {}}, {})
    started = time.perf_counter()
    with parts.opened():
        progress = Progress(tqdm(disable=True))
        runner.run(embedding_job.run(source, embedder, parts, "vector", progress))
        parts.join(parts.num_rows)
    return progress.num_tokens / (time.perf_counter() - started)
