"""Indexes of all-MiniLM-L6-v2 that were made in many ways, each told apart by `addnorm check`.

Parquet files of texts and vectors: by the server in fp32 and int8, by another model of the same
shape with random weights, by sentence-transformers, and changed ones.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from addnorm.load.stream import prose
from benchmarks import processes
from benchmarks.findings import MINILM, newest
from tests.support import web

pytestmark = pytest.mark.check_index
MODEL, OTHER = "all-minilm-l6-v2", "other"
Verdict = tuple[str, tuple[str, ...], int]  # the parts that differ, the exit code
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
    precision: str = ""  # that is asked for

    @property
    def expected(self) -> Verdict:
        return self.verdict, self.parts, int(self.verdict != "bit-equal")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both bundles, the texts, and sentence-transformers' vectors of them."""
    root = tmp_path_factory.mktemp("index")
    (root / "bundles" / MODEL).mkdir(parents=True)
    bundle = newest(MODEL).path
    (root / "bundles" / MODEL / bundle.name).symlink_to(bundle.resolve())
    torch.manual_seed(0)
    BertModel(BertConfig.from_pretrained(MINILM)).save_pretrained(root / OTHER)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(root / OTHER)
    export = ("export", root / OTHER, "--name", OTHER, "--out", root / "bundles")
    subprocess.run([sys.executable, "-m", "addnorm", *export], check=True)
    (root / "texts.json").write_text(json.dumps(prose(NUM_TEXTS)))
    peer = [sys.executable, "-c", PEER, MINILM, root / "texts.json", root / "peer.npy"]
    subprocess.run(peer, check=True)
    return root


@pytest.fixture(scope="module")
def url(work: Path) -> Iterator[str]:
    with processes.folder(work / "bundles") as server:
        yield f"http://{server.host}:{server.port}"


@pytest.fixture(scope="module")
def indexes(work: Path, url: str) -> dict[str, Index]:
    return made(url, json.loads((work / "texts.json").read_text()), np.load(work / "peer.npy"))


def test_every_index_gets_its_verdict(work: Path, url: str, indexes: dict[str, Index]) -> None:
    where = ("--model", f"{url}#{MODEL}")
    verdicts = {name: verdict(work, name, index, *where) for name, index in indexes.items()}
    assert verdicts == {name: index.expected for name, index in indexes.items()}


def test_a_bundle_does_in_place_of_a_server(work: Path, indexes: dict[str, Index]) -> None:
    index = indexes["fp32"]
    where = ("--model", str(newest(MODEL).path))
    assert verdict(work, "fp32, without a server", index, *where) == index.expected


def made(url: str, texts: Sequence[str], peer: np.ndarray) -> dict[str, Index]:
    """Name -> index."""
    fp32, fingerprint = embedded(url, texts)
    int8, of_int8 = embedded(url, texts, precision="int8")
    others, of_other = embedded(url, texts, model=OTHER)
    smaller, _ = embedded(url, texts, dtype="int8")
    smallest, _ = embedded(url, texts, dtype="int8", precision="int8")
    bits, _ = embedded(url, texts, dtype="ubinary")
    with web.client(base_url=url) as client:
        ranges = client.get(f"/v1/models/{MODEL}").json()["vector_ranges"]
    lowest, highest = (np.array(each, np.float32) for each in ranges)
    turned_back, both = (
        lowest + (each + np.float32(128.5)) * (highest - lowest) / np.float32(255)
        for each in (smaller, smallest)
    )
    signs = 2 * np.unpackbits(bits.astype(np.uint8), axis=1).astype(np.float32) - 1
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
        "int8, int8 asked": Index(int8, of_int8, "bit-equal", precision="@int8"),
        "answers in int8, turned back": Index(turned_back, fingerprint, "approximation"),
        "answers in int8 of int8, turned back": Index(
            both, of_int8, "approximation", ("precision",)
        ),
        "answers in bits, as 1 and -1": Index(signs, fingerprint, "other vectors"),
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
    vectors = list[list[float]]()
    with web.client(base_url=url, timeout=300) as client:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            body = {"model": MODEL, "input": texts[start : start + TEXTS_AT_ONCE], **options}
            answer = client.post("/v1/embeddings", json={**body, "truncate": True})
            vectors += [entry["embedding"] for entry in answer.raise_for_status().json()["data"]]
        digest = answer.headers["x-addnorm-fingerprint"]
        entry = client.get(f"/v1/models/{body['model']}").json()
    (precision,) = (name for name, value in entry["fingerprint"].items() if value == digest)
    parts = entry["fingerprint_parts"][precision]
    return np.array(vectors, np.float32), json.dumps({**parts, "fingerprint": digest})


def verdict(work: Path, name: str, index: Index, *where: str) -> Verdict:
    """Writes the index, checks it and prints its figures. where: the options that name what to
    compare with."""
    file, report = work / "vectors.parquet", work / "report.json"
    texts = json.loads((work / "texts.json").read_text())
    table = pa.table({"text": texts, "vector": list(index.vectors)})
    if index.fingerprint:
        table = table.replace_schema_metadata({"addnorm.fingerprint": index.fingerprint})
    pq.write_table(table, file)
    command = [sys.executable, "-m", "addnorm", "check", file, "--json", report]
    done = subprocess.run(
        [*command, *where[:-1], where[-1] + index.precision],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode <= 1, done.stderr
    figures = json.loads(report.read_text())
    differences = tuple(entry["part"] for entry in figures["fingerprint"]["differences"])
    print(name, figures["verdict"], figures["figures"], differences)
    return figures["verdict"], differences, done.returncode
