"""Indexes of all-MiniLM-L6-v2 that were made in many ways, each told apart (`make check-index`).

python examples/check_index.py BUNDLES CHECKPOINT OTHER_CHECKPOINT WORK_FOLDER PEER_PYTHON

Writes Parquet files of texts and vectors: by the server in fp32 and int8, by another model of the
same shape (OTHER_CHECKPOINT), by sentence-transformers (PEER_PYTHON), and changed ones. Runs
`addnorm check` on each, and exits with 1 if a verdict or a cause is not the expected one.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from beside_sentence_transformers import some_texts
from serving import served

MODEL, OTHER = "all-minilm-l6-v2", "sre-embedding"
NUM_TEXTS, TEXTS_AT_ONCE = 256, 32
CHANGED_ROW = 100

PEER = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer

checkpoint, asked, out = sys.argv[1:]
model = SentenceTransformer(checkpoint, device="cpu", local_files_only=True)
np.save(out, model.encode(json.load(open(asked))))
"""


class Index(NamedTuple):
    """Stored vectors, their fingerprint if it is stored, and what the check must say."""

    vectors: np.ndarray
    fingerprint: str | None
    verdict: str
    parts: tuple[str, ...] = ()  # of the fingerprint, that differ
    options: tuple[str, ...] = ()


def main(bundles: Path, checkpoint: Path, other: Path, work: Path, peer_python: str) -> None:
    shutil.rmtree(work, ignore_errors=True)
    both, texts = work / "bundles", some_texts(NUM_TEXTS)
    both.mkdir(parents=True)
    (both / MODEL).symlink_to((bundles / MODEL).resolve())
    export = ("export", "--checkpoint", other, "--name", OTHER, "--out", both)
    run(sys.executable, "-m", "addnorm", *export)
    (work / "texts.json").write_text(json.dumps(texts))
    run(peer_python, "-c", PEER, checkpoint, work / "texts.json", work / "peer.npy")
    with served(both) as url:
        indexes = made(url, texts, np.load(work / "peer.npy"))
        bundle = max((both / MODEL).iterdir(), key=lambda version: int(version.name))
        checked = [check(work, texts, name, found, url) for name, found in indexes.items()]
    by_bundle = ("--bundle", str(bundle))
    name = "fp32, without a server"
    checked.append(check(work, texts, name, indexes["fp32"], *by_bundle))
    sys.exit("unexpected" if not all(checked) else 0)


def made(url: str, texts: Sequence[str], peer: np.ndarray) -> dict[str, Index]:
    """Name -> index."""
    fp32, fingerprint = embedded(url, texts)
    int8, of_int8 = embedded(url, texts, precision="int8")
    others, of_other = embedded(url, texts, model=OTHER)
    behind_prompt, _ = embedded(url, [f"query: {text}" for text in texts])
    beginnings, _ = embedded(url, [" ".join(text.split()[:16]) for text in texts])
    changed = fp32.copy()
    changed[CHANGED_ROW].view(np.uint8)[40] ^= 1  # the last bit of a number
    return {
        "fp32": Index(fp32, fingerprint, "bit-equal"),
        "fp32 as float16": Index(fp32.astype(np.float16), fingerprint, "bit-equal"),
        "fp32, one byte changed": Index(changed, fingerprint, "some rows"),
        "fp32, rows backwards": Index(fp32[::-1], fingerprint, "other rows"),
        "fp32, no fingerprint": Index(fp32, None, "bit-equal"),
        "fp32, a digest of another version": Index(fp32, "0" * 32, "bit-equal"),
        "sentence-transformers": Index(peer, None, "rounding"),
        "sentence-transformers, float16": Index(peer.astype(np.float16), None, "rounding"),
        "int8": Index(int8, of_int8, "approximation", ("precision",)),
        "int8, int8 asked": Index(int8, of_int8, "bit-equal", options=("--precision", "int8")),
        "another model": Index(others, of_other, "other vectors", ("manifest_sha256",)),
        "not normalized": Index(fp32 * np.float32(3.7), fingerprint, "scaled"),
        "fp32 cut to float16, stored as float32": Index(
            fp32.astype(np.float16).astype(np.float32), fingerprint, "approximation"
        ),
        "a prompt before each text": Index(behind_prompt, fingerprint, "other vectors"),
        "texts cut to 16 words": Index(beginnings, fingerprint, "some rows"),
    }


def embedded(url: str, texts: Sequence[str], **options: str) -> tuple[np.ndarray, str]:
    """Vectors, and the text of their fingerprint."""
    client, vectors = httpx.Client(base_url=url, timeout=300), list[list[float]]()
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        body = {"model": MODEL, "input": texts[start : start + TEXTS_AT_ONCE], **options}
        answer = client.post("/v1/embeddings", json={**body, "truncate": True})
        vectors += [entry["embedding"] for entry in answer.raise_for_status().json()["data"]]
    digest = answer.headers["x-addnorm-fingerprint"]
    entry = client.get(f"/v1/models/{body['model']}").json()
    (precision,) = (name for name, known in entry["fingerprint"].items() if known == digest)
    parts = entry["fingerprint_parts"][precision]
    return np.array(vectors, np.float32), json.dumps({**parts, "fingerprint": digest})


def check(work: Path, texts: Sequence[str], name: str, index: Index, *where: str) -> bool:
    """Writes the index, checks it, prints a row of figures. Whether all is as expected.

    where: the server's URL, or the options that name a bundle.
    """
    file, report = work / "vectors.parquet", work / "report.json"
    table = pa.table({"text": texts, "vector": list(index.vectors)})
    if index.fingerprint:
        table = table.replace_schema_metadata({"addnorm.fingerprint": index.fingerprint})
    pq.write_table(table, file)
    asked = where if len(where) > 1 else ("--url", *where, "--model", MODEL)
    command = [sys.executable, "-m", "addnorm", "check", file, "--json", report]
    done = subprocess.run(
        [*command, *asked, *index.options], capture_output=True, text=True, check=False
    )
    if done.returncode > 1:
        sys.exit(done.stderr)
    found = json.loads(report.read_text())
    differences = tuple(entry["part"] for entry in found["fingerprint"]["differences"])
    print(row(name, found, differences), flush=True)
    expected = index.verdict, index.parts, int(index.verdict != "bit-equal")
    return (found["verdict"], differences, done.returncode) == expected


def row(name: str, found: dict[str, Any], differences: Sequence[str]) -> str:
    figures, equal = found["figures"], found["fingerprint"]["equal"]
    fingerprint = {True: "equal", None: "none stored", False: "differs"}[equal]
    return (
        f"{name:40s} {found['verdict']:14s} {figures['num_different']:4d} rows"
        f"  {figures['relative_difference']:.1e} of the largest"
        f"  cosine {figures['smallest_cosine']:.7f} {figures['mean_cosine']:.7f}"
        f"  neighbours {figures['neighbours_shared']:.1%}"
        f"  fingerprint {fingerprint} {' '.join(differences)}"
    )


def run(*command: str | Path) -> None:
    """Shows what it printed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), sys.argv[5])
