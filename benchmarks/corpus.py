"""`addnorm embed`: a job beside its engine alone."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from addnorm.corpus.embed.embedding_job import Job, Progress
from addnorm.corpus.embed.parts import Parts
from addnorm.corpus.embedder import Embedder, EmbedOptions
from addnorm.corpus.storage import Location
from addnorm.corpus.stored_vectors import StoredVectors
from addnorm.corpus.texts_source import Source
from addnorm.load.run import Figures
from addnorm.service.engine.batch import Batch
from benchmarks import comparison
from benchmarks.bench.ceilings import sorted_batches
from benchmarks.comparison import Goal
from benchmarks.contender import FP32, INT8
from benchmarks.data import texts
from benchmarks.findings import Findings, Options, newest
from benchmarks.rounds import Side
from benchmarks.tables import Row

# Of 1,000, the beginning and the end of a job are a sixth of its time; of 6,000 a tenth, or 1 s to
# tokenize the first window and 1 s to write the last. In int8 the workers also spend 6 % of their
# time on pooling and checks, and the event loop a twentieth of a core.
NUM_ROWS = 6000
JOB, ALONE = "job", "alone"
SPEED_ROWS = [Row("addnorm embed", "tokens_per_s", precision, ALONE) for precision in (FP32, INT8)]
GOALS = [Goal(precision, JOB, ALONE, "tokens_per_s", 0.95) for precision in (FP32, INT8)]


def speed(options: Options) -> Findings:
    """The job reads, tokenizes, sorts, computes, pools and writes; the engine alone computes."""
    bundle = newest("all-minilm-l6-v2").path
    with TemporaryDirectory() as place, ExitStack() as stack:
        folder, runner = Path(place), stack.enter_context(asyncio.Runner())
        rows = texts.write(folder / "texts.parquet", NUM_ROWS, bundle)
        source = Source(Location.parse(rows), ["text"])
        sides = list[Side]()
        for precision in filter(options.wants, (FP32, INT8)):
            embed_options = EmbedOptions(precision=precision, truncate=True)
            embedder = Embedder(bundle, embed_options, cache_bytes=0)
            stack.callback(embedder.close)
            batches = runner.run(_batches(source, embedder))
            sides += [
                Side(precision, ALONE, _alone(embedder, batches)),
                Side(precision, JOB, _job(source, embedder, folder, runner)),
            ]
        figures = comparison.measure(sides, options)
    titles = {ALONE: "the engine alone", JOB: "the job"}
    return comparison.compare(figures, SPEED_ROWS, titles, GOALS)


async def _batches(source: Source, embedder: Embedder) -> list[Batch]:
    """Micro-batches of all texts."""
    sequences = []
    for texts_of_piece in source.checked_texts():
        batch = await embedder.tokenize(texts_of_piece, np.arange(len(texts_of_piece)))
        sequences += [batch.sequence(index).tokens for index in range(len(batch))]
    return sorted_batches(sequences, embedder.token_budget)


def _alone(embedder: Embedder, batches: list[Batch]) -> Callable[[float], Figures]:
    def measure(_: float) -> Figures:
        started = time.perf_counter()
        with ThreadPoolExecutor(embedder.num_workers) as workers:
            deque(workers.map(embedder.engine.run, batches), maxlen=0)
        num_tokens = sum(batch.num_tokens for batch in batches)
        return {"tokens_per_s": num_tokens / (time.perf_counter() - started)}

    return measure


def _job(
    source: Source, embedder: Embedder, folder: Path, runner: asyncio.Runner
) -> Callable[[float], Figures]:
    def measure(_: float) -> Figures:
        out = folder / "speed.parquet"
        out.unlink(missing_ok=True)
        parts = Parts(Location.parse(out), {"input": {}, "options": {}}, {})
        started = time.perf_counter()
        with parts.open():
            progress = Progress(NUM_ROWS, is_shown=False)
            type_ = runner.run(embedder.column_type())
            job = Job(source, embedder, parts, "vector", StoredVectors.none(), type_)
            runner.run(job.run(progress))
            parts.join(parts.num_rows)
        return {"tokens_per_s": progress.num_tokens / (time.perf_counter() - started)}

    return measure
