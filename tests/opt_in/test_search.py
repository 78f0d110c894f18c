"""The programs of examples/search/ find the rows that an exact search in numpy finds."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from addnorm.load.stream import prose
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.fingerprint import METADATA_KEY
from benchmarks.findings import BUILD, newest
from benchmarks.processes import serving
from tests.support import web

pytestmark = pytest.mark.search
PROGRAMS = ("faiss", "lancedb", "qdrant", "pgvector")
MODEL, RERANKER = "all-minilm-l6-v2", "reranker"
QUERIES = ("how do I catch an error", "a loop that ends early")
CANDIDATES, TOP = 30, 5


class Corpus(NamedTuple):
    """A file of vectors, and a server of the model that made them."""

    vectors: Path
    client: httpx.Client

    def exact(self, query: str) -> list[int]:
        """Rows, the nearest first."""
        body = {"model": MODEL, "input": query}
        answer = self.client.post("/v1/embeddings", json=body).raise_for_status().json()
        column = pq.read_table(self.vectors).column("vector").combine_chunks()
        vectors = column.flatten().to_numpy().reshape(len(column), -1)
        order = np.argsort(-(vectors @ np.float32(answer["data"][0]["embedding"])))
        return [int(row) for row in order[:CANDIDATES]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, task_bundles: Path) -> Iterator[Corpus]:
    folder, model = tmp_path_factory.mktemp("search"), newest(MODEL)
    lines = [json.dumps({"text": text}) for text in dict.fromkeys(prose(300))]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    command = ["embed", folder / "texts.jsonl", folder / "vectors.parquet", "--truncate"]
    subprocess.run([sys.executable, "-m", "addnorm", *command, "--model", model.path], check=True)
    with (
        serving([model, bundles.read(task_bundles / RERANKER / "1")]) as server,
        web.client(base_url=f"http://{server.host}:{server.port}", timeout=60) as client,
    ):
        yield Corpus(folder / "vectors.parquet", client)


def run(
    corpus: Corpus, name: str, index: Path, query: str, *options: str, vectors: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [
        BUILD / "search/bin/python", f"examples/search/{name}_search.py",
        vectors or corpus.vectors, query, "--index", index, "--model", MODEL,
        "--url", str(corpus.client.base_url), *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    return [int(line.split()[1]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_what_an_exact_search_finds(
    corpus: Corpus, tmp_path: Path, name: str
) -> None:
    """The first run makes the index, the others open it."""
    for query in QUERIES:
        exact = corpus.exact(query)
        assert rows_of(run(corpus, name, tmp_path / "index", query)) == exact[:TOP]
    documents = pq.read_table(corpus.vectors).column("text").take(pa.array(exact)).to_pylist()
    body = {"model": RERANKER, "query": QUERIES[-1], "documents": documents}
    results = corpus.client.post("/v1/rerank", json=body).raise_for_status().json()["results"]
    reranked = rows_of(run(corpus, name, tmp_path / "index", QUERIES[-1], "--reranker", RERANKER))
    assert reranked == [exact[entry["index"]] for entry in results[:TOP]]
    assert reranked != exact[:TOP]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_that_something_else_made_is_not_searched(
    corpus: Corpus, tmp_path: Path, name: str
) -> None:
    table = pq.read_table(corpus.vectors)
    foreign = {METADATA_KEY: json.dumps({"fingerprint": "of another"})}
    pq.write_table(table.replace_schema_metadata(foreign), tmp_path / "foreign.parquet")
    vectors = tmp_path / "foreign.parquet"
    done = run(corpus, name, tmp_path / "index", QUERIES[0], vectors=vectors)
    assert done.returncode == 1
    assert "the index was made by of another, the server is " in done.stderr
