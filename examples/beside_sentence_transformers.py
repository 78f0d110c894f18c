"""Texts per second of a served checkpoint, beside sentence-transformers (`make beside`).

python examples/beside_sentence_transformers.py CHECKPOINT_FOLDER BUNDLES PEER_PYTHON

PEER_PYTHON is the interpreter of an environment with sentence-transformers, FastAPI and uvicorn.
It runs this file too: as a FastAPI application around `SentenceTransformer.encode`, with the
defaults of both. Run it on a machine that does nothing else: PyTorch's threads wait for each other,
and lose more than Addnorm's where other programs take a core.
"""

import base64
import http.client
import json
import os
import pydoc_data.topics
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import numpy as np
from serving import free_port, running, served
from tokenizers import Tokenizer

MODEL = "all-minilm-l6-v2"
INSTALL = (
    "pip install torch sentence-transformers fastapi 'uvicorn[standard]'"  # `make beside` does
)
NUM_TEXTS = 512
NUM_CALLERS = 8
NUM_ROUNDS = 7
LEAST_COSINE = 0.9999
ENCODE, FASTAPI, FP32, INT8 = "encode", "FastAPI", "fp32", "int8"

Ask = Callable[[http.client.HTTPConnection, list[str]], np.ndarray]


@dataclass(frozen=True)
class Run:
    """All texts, once."""

    seconds: float
    latencies_s: list[float]  # of each request
    vectors: np.ndarray  # [texts, d_model]

    @property
    def texts_per_s(self) -> float:
        return NUM_TEXTS / self.seconds


Runs = dict[
    tuple[str, int], list[Run]
]  # who answered and the texts of a request -> a run of each round


def main(checkpoint: Path, bundles: Path, peer_python: str) -> None:
    before = f"{os.cpu_count()} cores, load average before {os.getloadavg()[0]:.1f}"
    machine = f"{before}; {peer_versions(peer_python)}"
    texts = some_texts(NUM_TEXTS)
    port = free_port()
    command = [peer_python, __file__, "peer", str(checkpoint), str(port)]
    with running(command, port) as peer, served(bundles) as addnorm:
        runs = rounds(texts, peer, addnorm)
    print(f"{machine}. {lengths(texts, checkpoint)} Medians of {NUM_ROUNDS} rounds.\n")
    print_table(runs)
    check_vectors(runs)


# The texts


def some_texts(number: int, seed: int = 0) -> list[str]:
    """Pieces of Python's own documentation: from a few words to long paragraphs."""
    prose = documentation()
    starts = [i + 1 for i, word in enumerate(prose[:-300]) if word.endswith(".")]
    draws = random.Random(seed)
    return [
        " ".join(prose[start : start + num_words(draws)])
        for start in draws.choices(starts, k=number)
    ]


def documentation() -> list[str]:
    """The words of its paragraphs, without headings, code and grammar."""
    paragraphs = "\n\n".join(pydoc_data.topics.topics.values()).split("\n\n")
    return " ".join(
        part for part in paragraphs if re.match("[A-Z]", part) and "***" not in part
    ).split()


def num_words(draws: random.Random) -> int:
    """Log-normal, as lengths of texts are: half have fewer than 18, one of twenty more than 80."""
    return min(max(2, round(draws.lognormvariate(2.9, 0.9))), 200)


def lengths(texts: list[str], checkpoint: Path) -> str:
    """Of their tokens, as both servers cut them."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(
        json.loads((checkpoint / "sentence_bert_config.json").read_text())["max_seq_length"]
    )
    counts = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    middle = f"median {median(counts):.0f}, mean {sum(counts) / len(counts):.0f}"
    return f"{len(texts):,} texts of {min(counts)} to {max(counts)} tokens, {middle}."


# The servers


def peer_versions(python: str) -> str:
    """What the peer runs on. Ends the program where something is missing."""
    ask = (
        "import torch, fastapi, uvicorn, sentence_transformers as s;"
        "print(s.__version__, torch.__version__)"
    )
    try:
        found = subprocess.run(
            [python, "-c", ask], check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"{python} lacks sentence-transformers; in an environment of its own: {INSTALL}")
    return "sentence-transformers {}, torch {}".format(*found.split())


def serve_peer(checkpoint: str, port: int) -> None:
    """What one would write: no coroutine, so that FastAPI runs it in its thread pool."""
    import uvicorn
    from fastapi import Body, FastAPI, Response
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    model, app = SentenceTransformer(checkpoint, device="cpu"), FastAPI()

    @app.post("/embed")
    def embed(texts: list[str] = Body()) -> Response:  # noqa: B008
        started = time.perf_counter()
        vectors = model.encode(
            texts, batch_size=32, normalize_embeddings=True, show_progress_bar=False
        )
        seconds = time.perf_counter() - started
        return Response(
            vectors.tobytes(), headers={"encode-seconds": str(seconds)}
        )  # JSON would take it longer

    uvicorn.run(app, port=port, log_level="warning")


# The callers


def rounds(texts: list[str], peer: str, addnorm: str) -> Runs:
    """All loads in turns, so that other work on the machine meets all. Round one warms up.

    peer, addnorm: the URLs of the servers.
    """
    loads: dict[tuple[str, int], Callable[[], Run]] = {
        (ENCODE, NUM_TEXTS): partial(encode, peer, texts)
    }
    for size in (32, 1):
        loads[FASTAPI, size] = partial(call, peer, ask_fastapi, texts, size)
    for size in (NUM_TEXTS, 32, 1):
        for precision in (FP32, INT8):
            loads[precision, size] = partial(
                call, addnorm, partial(ask_addnorm, precision), texts, size
            )
    runs: Runs = {key: [] for key in loads}
    for _ in range(1 + NUM_ROUNDS):
        for key, load in loads.items():
            runs[key].append(load())
    return {key: measured[1:] for key, measured in runs.items()}


def encode(url: str, texts: list[str]) -> Run:
    """One call of `SentenceTransformer.encode`, timed where it runs: HTTP does not count."""
    answer, headers = post(connection_to(url), "/embed", texts)
    seconds = float(headers["encode-seconds"])
    return Run(seconds, [seconds], as_vectors(answer, len(texts)))


def call(url: str, ask: Ask, texts: list[str], size: int) -> Run:
    """Callers with a connection each send requests of `size` texts until all are answered."""
    parts = [texts[i : i + size] for i in range(0, len(texts), size)]
    answers: list[np.ndarray] = [np.empty(0)] * len(parts)
    latencies_s = [0.0] * len(parts)
    order = iter(range(len(parts)))

    def caller() -> None:
        connection = connection_to(url)
        for i in order:
            sent = time.perf_counter()
            answers[i] = ask(connection, parts[i])
            latencies_s[i] = time.perf_counter() - sent

    started = time.perf_counter()
    with ThreadPoolExecutor(NUM_CALLERS) as callers:
        for done in [callers.submit(caller) for _ in range(NUM_CALLERS)]:
            done.result()
    return Run(time.perf_counter() - started, latencies_s, np.concatenate(answers))


def ask_fastapi(connection: http.client.HTTPConnection, texts: list[str]) -> np.ndarray:
    return as_vectors(post(connection, "/embed", texts)[0], len(texts))


def ask_addnorm(
    precision: str, connection: http.client.HTTPConnection, texts: list[str]
) -> np.ndarray:
    """What OpenAI's client sends and reads."""
    body = {
        "model": MODEL,
        "input": texts,
        "encoding_format": "base64",
        "precision": precision,
        "truncate": True,
    }
    answer = json.loads(post(connection, "/v1/embeddings", body)[0])
    return as_vectors(
        b"".join(base64.b64decode(entry["embedding"]) for entry in answer["data"]), len(texts)
    )


def post(
    connection: http.client.HTTPConnection, path: str, body: object
) -> tuple[bytes, http.client.HTTPMessage]:
    """The body and headers of the answer."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != http.client.OK:
        raise RuntimeError(f"{path}: {response.status} {answer[:300]!r}")
    return answer, response.headers


def connection_to(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc)


def as_vectors(values: bytes, number: int) -> np.ndarray:
    return np.frombuffer(values, np.float32).reshape(number, -1)


# What came out


def print_table(runs: Runs) -> None:
    """The ratios are medians over rounds, each against the peer of the same round."""
    print("| texts per second | sentence-transformers | Addnorm fp32 | int8 |\n|---|---|---|---|")
    print(
        texts_row(
            runs,
            "all texts in one call, beside `encode` without a server",
            ENCODE,
            NUM_TEXTS,
            NUM_TEXTS,
        )
    )
    print(
        texts_row(
            runs,
            f"{NUM_CALLERS} callers, 32 texts a request, beside the same",
            ENCODE,
            NUM_TEXTS,
            32,
        )
    )
    print(texts_row(runs, "the same, beside FastAPI around `encode`", FASTAPI, 32, 32))
    print(
        texts_row(runs, f"{NUM_CALLERS} callers, 1 text a request, beside FastAPI", FASTAPI, 1, 1)
    )
    print(latency_row(runs, 50))
    print(latency_row(runs, 99))


def texts_row(runs: Runs, load: str, peer: str, peer_size: int, size: int) -> str:
    base = runs[peer, peer_size]
    cells = [f"{median(run.texts_per_s for run in base):,.0f}"]
    for precision in (FP32, INT8):
        ours = runs[precision, size]
        ratio = median(
            mine.texts_per_s / theirs.texts_per_s for mine, theirs in zip(ours, base, strict=True)
        )
        cells.append(f"{median(run.texts_per_s for run in ours):,.0f} ({ratio:.1f} x)")
    return f"| {load} | {' | '.join(cells)} |"


def latency_row(runs: Runs, percent: int) -> str:
    seconds = {
        who: median(float(np.percentile(run.latencies_s, percent)) for run in runs[who, 1])
        for who in (FASTAPI, FP32, INT8)
    }
    cells = [f"{value * 1000:.0f} ms" for value in seconds.values()]
    return f"| the same: p{percent} of a request | {' | '.join(cells)} |"


def check_vectors(runs: Runs) -> None:
    """Compares every text's vector in every load with `encode`'s. Exits if Addnorm's is wrong."""
    expected = runs[ENCODE, NUM_TEXTS][0].vectors
    for name, answering in {
        "sentence-transformers": (ENCODE, FASTAPI),
        FP32: (FP32,),
        INT8: (INT8,),
    }.items():
        found = np.stack(
            [
                run.vectors
                for (who, _), measured in runs.items()
                if who in answering
                for run in measured
            ]
        )
        cosines = (found * expected).sum(2)  # all have length 1
        num_changed = int((found != found[0]).any(axis=(0, 2)).sum())
        print(
            f"\n{name}: cosine to `encode` lowest {cosines.min():.7f}, mean {cosines.mean():.7f};",
            end=" ",
        )
        print(f"{num_changed} of {NUM_TEXTS} texts have other bits in other requests")
        if name == FP32 and cosines.min() < LEAST_COSINE:
            sys.exit(f"the limit is {LEAST_COSINE}")
        if name in (FP32, INT8) and num_changed:
            sys.exit("the same text must have the same bits")


if __name__ == "__main__":
    if sys.argv[1] == "peer":
        serve_peer(sys.argv[2], int(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
