"""One contender over one file of texts: the last line that it prints is its texts per second.

python corpus_job.py TEXTS.parquet WHO MODEL_FOLDER, in an environment of its own. Ray's contenders
have a worker for each core, each on one thread, and write Parquet as the job does.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CORES = len(os.sched_getaffinity(0))
RAY_BATCH = 512


class Encode:
    """sentence-transformers, as its documentation says, as a callable for Ray Data."""

    def __init__(self, checkpoint: str) -> None:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

        self.model = SentenceTransformer(checkpoint, device="cpu")

    def __call__(self, rows: pa.Table) -> pa.Table:
        vectors = self.model.encode(rows.column("text").to_pylist(), show_progress_bar=False)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        return rows.append_column("vector", flat)


def encode(source: str, checkpoint: str, folder: str) -> float:
    contender, rows = Encode(checkpoint), pq.read_table(source)
    contender(rows.slice(0, 32))
    started = time.perf_counter()
    pq.write_table(contender(rows), f"{folder}/out.parquet")
    return time.perf_counter() - started


def addnorm(precision: str) -> Callable[[str, str, str], float]:
    def run(source: str, bundle: str, folder: str) -> float:
        """The command without loading: from the first window to the written file."""
        import asyncio

        from tqdm import tqdm

        from addnorm.corpus import embedding_job
        from addnorm.corpus.columns import EmbedOptions
        from addnorm.corpus.embedder import Embedder
        from addnorm.corpus.embedding_job import Progress
        from addnorm.corpus.parts import Parts
        from addnorm.corpus.texts_source import Source

        embedder = Embedder(Path(bundle), EmbedOptions(precision=precision, truncate=True))
        parts = Parts(Path(folder) / "out.parquet", {"input": {}, "options": {}}, {})
        progress = Progress(tqdm(disable=True))
        started = time.perf_counter()
        with parts.opened():
            job = embedding_job.run(Source(Path(source), ["text"]), embedder, parts, "v", progress)
            asyncio.run(job)
            parts.join(parts.num_rows)
        seconds = time.perf_counter() - started
        embedder.close()
        return seconds

    return run


def ray_data(kind: Any, **options: Any) -> Callable[[str, str, str], float]:
    def run(source: str, model: str, folder: str) -> float:
        """From the first batch, whose workers load, to the written files: see the message."""
        import ray

        ray.init(address="local", num_cpus=CORES + 1, include_dashboard=False, log_to_driver=False)
        rows = ray.data.read_parquet(source).repartition(4 * CORES)  # one row group is one block
        started = time.perf_counter()
        rows.map_batches(
            kind(),
            fn_constructor_args=(model,),
            fn_constructor_kwargs=options,
            batch_format="pyarrow",
            batch_size=RAY_BATCH,
            concurrency=CORES,
            num_cpus=1,
        ).write_parquet(f"{folder}/out")
        return time.perf_counter() - started

    return run


def _addnorm_class() -> Any:
    from addnorm.corpus.ray_data import Addnorm

    return Addnorm


CONTENDERS = {
    "encode": encode,
    "addnorm-fp32": addnorm("fp32"),
    "addnorm-int8": addnorm("int8"),
    "ray-encode": ray_data(lambda: Encode),
    "ray-addnorm": ray_data(_addnorm_class, truncate=True),
}

if __name__ == "__main__":
    source, who, model = sys.argv[1:]
    with TemporaryDirectory() as folder:
        seconds = CONTENDERS[who](source, model, folder)
    print(pq.read_metadata(source).num_rows / seconds, flush=True)
