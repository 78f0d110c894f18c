"""all-MiniLM-L6-v2 on a processor: `addnorm serve`, asked over HTTP, and `addnorm embed`."""

import json
import subprocess
from pathlib import Path

import httpx
import pyarrow.parquet as parquet

from addnorm.export.sources import sources
from addnorm.export.writer import Plan, export
from benchmarks import processes
from benchmarks.findings import MINILM
from benchmarks.processors.emulated import Python
from benchmarks.processors.questions import TEXTS

NAME = "all-minilm-l6-v2"
OVER_HTTP, BY_JOB = " over HTTP", " by addnorm embed"  # behind its name
PRECISIONS = ("fp32", "int8")
PATIENCE_S = 1200.0
SETTINGS = {
    "ADDNORM_TOKEN_BUDGET": "512", "ADDNORM_WORKER_THREADS": "2",
    "ADDNORM_TIMEOUT_S": "600", "ADDNORM_RUN_TIMEOUT_S": "600",
}  # fmt: skip


def export_to(root: Path) -> None:
    """Exports it by the code of this checkout, certified on this machine."""
    export(sources.checkpoint(MINILM), root, NAME, 1, Plan(precisions=PRECISIONS))


def ask(bundles: Path, python: Python, out: Path, name: str = NAME) -> None:
    """Writes the vectors of TEXTS that a server and a job make on the processor."""
    served = out / f"{name}{OVER_HTTP}"
    served.mkdir(parents=True)
    with (
        (out / f"{python.processor}.log").open("wb") as log,
        processes.folder(
            bundles, None, log, python.command, PATIENCE_S, **SETTINGS, **python.own
        ) as server,
    ):
        for precision in PRECISIONS:
            body = {"model": name, "input": TEXTS, "precision": precision}
            answer = httpx.post(
                f"http://{server.host}:{server.port}/v1/embeddings", json=body, timeout=PATIENCE_S
            )
            answer.raise_for_status()
            (served / f"{precision}-embeddings.json").write_bytes(answer.content)
    for precision in PRECISIONS:
        _embed(bundles / name / "1", python, out / f"{name}{BY_JOB}", precision)


def _embed(bundle: Path, python: Python, folder: Path, precision: str) -> None:
    folder.mkdir(exist_ok=True)
    texts, vectors = folder / "texts.jsonl", folder / f"{precision}.parquet"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = ["-m", "addnorm", "embed", texts, vectors, "--bundle", bundle]
    words += ["--precision", precision]
    done = subprocess.run(
        [*python.command, *map(str, words)],
        env=python.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"addnorm embed on {python.processor}: {done.stderr[-2000:]}")
    found = parquet.read_table(vectors)["vector"].to_pylist()
    (folder / f"{precision}-vectors.json").write_text(json.dumps({"vectors": found}))
