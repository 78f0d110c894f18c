"""A reranker that is given 100 ms to a second for 300 documents of 200 tokens: when its answer
comes, how many are scored, and which of the best ten are among them."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
from httpx import codes

from addnorm.export import sources
from addnorm.export.exporting import export
from benchmarks.data.made_text import Maker
from benchmarks.findings import BUILD, Findings, Options, newest
from benchmarks.processes import folder
from benchmarks.tables import table

CROSS_ENCODER = BUILD / "trained/cross-encoder"
NUM_DOCUMENTS, NUM_SENTENCES, NUM_BEST = 300, 14, 10
BUDGETS_MS, CALLERS = (100, 300, 1000), (1, 8)
REQUESTS = {1: 12, 8: 32}  # of a row, by callers
NUM_KNOWN = 2  # of them, whose whole order is known
LATE = 1.15  # times the budget
WAYS = {"alone": "reranker", "first stage": "cascade"}
ALIAS = "cascade=reranker?first=all-minilm-l6-v2&keep=50"
COLUMNS = (
    "callers", "ms", "way", "latest answer / budget", "scored", "best ten found", "other bits",
)  # fmt: skip
Scores = Mapping[int, float]


class Answer(NamedTuple):
    seconds: float
    scores: Scores
    best: Sequence[int]


def run(options: Options) -> Findings:
    """The order sent is by chance. The first stage finds the documents' vectors in the cache."""
    questions, documents = _texts()
    settings = {"ADDNORM_ALIASES": ALIAS, "ADDNORM_CACHE_BYTES": str(2**26)}
    rows, missed, figures = [], list[str](), {}
    with TemporaryDirectory() as root:
        export(sources.checkpoint(CROSS_ENCODER), Path(root), "reranker")
        minilm = newest("all-minilm-l6-v2")
        Path(root, "all-minilm-l6-v2").symlink_to(minilm.path.resolve().parent)
        with (
            folder(Path(root), **settings) as server,
            httpx.Client(base_url=f"http://{server.host}:{server.port}", timeout=600) as client,
        ):
            _ask(client, "cascade", next(questions), documents, 60_000)  # vectors are held then
            whole_s = list[float]()
            for callers in CALLERS:
                for budget_ms in BUDGETS_MS:
                    for way, model in WAYS.items():
                        sample = list(islice(questions, options.times(REQUESTS[callers], callers)))
                        expected = {
                            question: _ask(client, "reranker", question, documents)
                            for question in sample[:NUM_KNOWN]
                        }
                        whole_s += [answer.seconds for answer in expected.values()]
                        with ThreadPoolExecutor(callers) as pool:
                            work = [
                                pool.submit(_ask, client, model, question, documents, budget_ms)
                                for question in sample
                            ]
                            answers = [task.result() for task in work]
                        row = _row(dict(zip(sample, answers, strict=True)), expected, budget_ms)
                        name = f"{callers} callers, {budget_ms} ms, {way}"
                        figures[name] = row
                        late, scored, recall, other_bits = row
                        cells = f"{late:.2f}", f"{scored:.0%}", f"{recall:.0%}", other_bits
                        rows.append((callers, budget_ms, way, *cells))
                        if late > LATE:
                            missed.append(f"{name}: an answer after {late:.2f} x its time")
                        if other_bits:
                            missed.append(f"{name}: {other_bits} scores have other bits")
    took = f"All {NUM_DOCUMENTS} documents take {statistics.median(whole_s):.1f} s, one caller."
    return Findings(f"{table(COLUMNS, rows)}\n\n{took}", missed, figures)


def _texts() -> tuple[Iterator[str], list[str]]:
    """Questions, and documents of which some answer some of them."""
    maker = Maker(seed=0, held_out=True)
    pairs = list(islice(maker.pairs(), NUM_DOCUMENTS * NUM_SENTENCES))
    documents = [
        " ".join(pair.sentence for pair in pairs[index::NUM_DOCUMENTS])
        for index in range(NUM_DOCUMENTS)
    ]
    return iter(dict.fromkeys(pair.question for pair in pairs if pair.answers)), documents


def _ask(
    client: httpx.Client, model: str, question: str, documents: list[str], ms: int | None = None
) -> Answer:
    """ms: None: the whole order, which the cache neither has nor keeps."""
    body = {"model": model, "query": question, "documents": documents, "max_time_ms": ms}
    headers = {} if ms else {"cache-control": "no-cache", "x-request-timeout-ms": "600000"}
    started = time.monotonic()
    answer = client.post("/v1/rerank", json=body, headers=headers)
    seconds = time.monotonic() - started
    if ms and answer.status_code == codes.TOO_MANY_REQUESTS:  # nothing would be scored
        return Answer(seconds, {}, [])
    entries: list[dict[str, Any]] = answer.raise_for_status().json()["results"]
    scores = {entry["index"]: entry["relevance_score"] for entry in entries}
    best = [entry["index"] for entry in entries[:NUM_BEST]]
    return Answer(seconds, {at: score for at, score in scores.items() if score is not None}, best)


def _row(
    answers: Mapping[str, Answer], expected: Mapping[str, Answer], budget_ms: int
) -> tuple[float, float, float, int]:
    late = max(1000 * answer.seconds / budget_ms for answer in answers.values())
    scored = statistics.mean(len(answer.scores) / NUM_DOCUMENTS for answer in answers.values())
    recalls, other_bits = list[float](), 0
    for question, complete in expected.items():
        partial = answers[question]
        recalls.append(len({*partial.best} & {*complete.best}) / NUM_BEST)
        other_bits += sum(score != complete.scores[at] for at, score in partial.scores.items())
    return late, scored, statistics.mean(recalls), other_bits
