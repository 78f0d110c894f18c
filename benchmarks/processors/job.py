"""`addnorm embed` on a processor, with the two-layer model that embeds texts."""

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet

from benchmarks.processors.emulated import Python
from benchmarks.processors.models import EMBEDDER, PRECISIONS
from benchmarks.processors.questions import TEXTS


def ask(bundles: Path, python: Python, out: Path, name: str = EMBEDDER) -> None:
    """Writes the vectors of TEXTS that a job makes in each precision."""
    folder = out / f"{name} by addnorm embed"
    folder.mkdir()
    for precision in PRECISIONS:
        _embed(bundles / name / "1", python, folder, precision)


def _embed(bundle: Path, python: Python, folder: Path, precision: str) -> None:
    texts, vectors = folder / "texts.jsonl", folder / f"{precision}.parquet"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = ["-m", "addnorm", "embed", texts, vectors]
    words += ["--model", f"{bundle}@{precision}"]
    done = subprocess.run(
        [*python.command, *map(str, words)],
        env=python.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"addnorm embed on {python.processor}: {done.stderr[-2000:]}")
    values = parquet.read_table(vectors)["vector"].to_pylist()
    (folder / f"{precision}-vectors.json").write_text(json.dumps({"vectors": values}))
